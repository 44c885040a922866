#include "formats/file_kind.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace causeway::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

using namespace std::string_view_literals;

constexpr size_t kLookedAt = 512;  // a tar's first header

constexpr std::string_view kToTokens =
    R"(load it with the library that wrote it, and write its tokens: numpy.array(tokens, "<u2").tofile("train.bin"))";
constexpr std::string_view kToSafetensors =
    R"(load it with the library that wrote it, and write safetensors.torch.save_file(tensors, "model.safetensors"))";
constexpr std::string_view kToJsonLines =
    R"(write its texts as JSON lines, as pandas.DataFrame.to_json("train.jsonl", orient="records", lines=True) does)";
constexpr std::string_view kUnpack = "unpack it, and name what was in it";
constexpr std::string_view kDownloadAnew =
    "it came instead of the file; download that anew, with a login if it needs one";

struct Magic {
  FileKind kind;
  std::string_view bytes;
  size_t offset = 0;
};

constexpr FileKind kNumpy = {"a NumPy array (.npy)", "docs/data.md says which are read", kToSafetensors};
constexpr FileKind kNumpyArchive = {
    "an archive of NumPy arrays (.npz)",
    R"(write the array of tokens: numpy.save("train.npy", numpy.load("x.npz")["tokens"]))", kToSafetensors};
constexpr FileKind kGzip = {"a gzip file (.gz)", "unpack it with gunzip"};
constexpr FileKind kBzip2 = {"a bzip2 file (.bz2)", "unpack it with bunzip2"};
constexpr FileKind kZstd = {"a zstd file (.zst)", "unpack it with unzstd"};
constexpr FileKind kZip = {"a zip archive", "unpack it with unzip, and name what was in it"};
constexpr FileKind kTorch = {"a file of torch.save (a zip archive)", kToTokens, kToSafetensors};
constexpr FileKind kPickle = {"a pickle of Python, as torch.save and pandas write them", kToTokens, kToSafetensors};
constexpr FileKind kSafetensors = {
    "a safetensors file", "it holds tensors of a model (model.init_from), no data", {}, false, true};
constexpr FileKind kArrow = {"an Arrow file, as Hugging Face's datasets keep them", kToJsonLines, kToSafetensors};
constexpr FileKind kPointer = {
    "a pointer of Git LFS, which stands for the file", "git lfs pull brings the file itself", {}, true};
constexpr FileKind kAnnex = {
    "a pointer of git-annex, which stands for the file", "git annex get brings the file itself", {}, true};
constexpr FileKind kPage = {"a web page (HTML)", kDownloadAnew, {}, true};
constexpr FileKind kStoreError = {"an error message of an object store (XML)", kDownloadAnew, {}, true};
constexpr FileKind kUtf16 = {"text in UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"};
constexpr FileKind kUtf32 = {"text in UTF-32", "write it as UTF-8: iconv -f UTF-32 -t UTF-8"};

constexpr Magic kMagics[] = {
    {kZstd, "\x28\xB5\x2F\xFD"sv},
    {{"an xz file (.xz)", "unpack it with unxz"},
     "\xFD"
     "7zXZ\0"sv},
    {{"an lz4 file (.lz4)", "unpack it with unlz4"}, "\x04\x22\x4D\x18"sv},
    {{"an lzip file (.lz)", "unpack it with lzip -d"}, "LZIP\1"sv},
    {{"a Snappy file (.sz)", kUnpack}, "\xFF\x06\x00\x00sNaPpY"sv},
    {kZip, "PK\5\6\0\0\0\0"sv},
    {{"a 7z archive (.7z)", "unpack it with 7z x, and name what was in it"}, "7z\xBC\xAF\x27\x1C"sv},
    {{"a RAR archive (.rar)", kUnpack}, "Rar!\x1A\x07"sv},
    {{"a tar archive (.tar)", "unpack it with tar -x, and name the folder"}, "ustar"sv, 257},
    {{"a Parquet file (.parquet)", kToJsonLines, kToSafetensors}, "PAR1"sv},
    {{"an encrypted Parquet file", kToJsonLines, kToSafetensors}, "PARE"sv},
    {kArrow, "ARROW1\0\0"sv},
    {{"a Feather file (.feather)", kToJsonLines, kToSafetensors}, "FEA1"sv},
    {{"an ORC file (.orc)", kToJsonLines, kToSafetensors}, "ORC\x0A"sv},
    {{"an Avro file (.avro)", kToJsonLines, kToSafetensors}, "Obj\x01"sv},
    {{"an HDF5 file (.h5)", kToTokens, kToSafetensors}, "\x89HDF\r\n\x1A\n"sv},
    {{"a NetCDF file", kToTokens, kToSafetensors}, "CDF\1\0\0\0"sv},
    {{"a MATLAB file (.mat)", kToTokens, kToSafetensors}, "MATLAB 5.0 MAT-file"sv},
    {{"a GGUF model (.gguf)", "it holds a model, no data", kToSafetensors}, "GGUF"sv},
    {{"an SQLite database", kToJsonLines, kToSafetensors}, "SQLite format 3\0"sv},
    {{"an LMDB database", kToJsonLines, kToSafetensors}, "\xDE\xC0\xEF\xBE\1\0\0\0"sv, 16},
    {{"an index of Megatron-LM (.idx)", "name the .bin beside it"}, "MMIDIDX\0\0"sv},
    {{"a PDF", "write its text to a .txt file: pdftotext"}, "%PDF-"sv},
    {{"a PNG image", "it holds no text"}, "\x89PNG\r\n\x1A\n"sv},
    {{"a JPEG image", "it holds no text"}, "\xFF\xD8\xFF\xE0\0\x10JFIF"sv},
    {{"a program (ELF)", "it holds no text"},
     "\x7F"
     "ELF"sv},
    {{"a PostScript file", "write its text to a .txt file: ps2txt"}, "%!PS-Adobe"sv},
    {{"an RTF document", "save it as plain text"}, "{\\rtf1"sv},
    {kPointer, "version https://git-lfs.github.com/spec/"sv},
    {kPointer, "version https://hawser.github.com/spec/"sv},
    {kAnnex, "/annex/objects/"sv},
};

class Head {
 public:
  explicit Head(std::span<const std::byte> bytes)
      : all_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), head_(all_.substr(0, kLookedAt)) {}

  bool Has(std::string_view magic, size_t offset = 0) const {
    return head_.size() >= offset + magic.size() && head_.substr(offset, magic.size()) == magic;
  }
  uint8_t At(size_t offset) const { return offset < head_.size() ? static_cast<uint8_t>(head_[offset]) : 0; }
  template <typename Integer>
  std::optional<Integer> Number(size_t offset) const {
    Integer value;
    if (head_.size() < offset + sizeof value) return std::nullopt;
    std::memcpy(&value, head_.data() + offset, sizeof value);
    return value;
  }
  std::string_view text() const { return head_; }
  std::string_view all() const { return all_; }

 private:
  std::string_view all_, head_;
};

// Reserved flags are zero, the level is one of three, and the system is a known one (RFC 1952).
bool IsGzip(const Head& head) {
  const uint8_t flags = head.At(3), level = head.At(8), system = head.At(9);
  return head.Has("\x1F\x8B\x08"sv) && flags < 0x20 && (level == 0 || level == 2 || level == 4) &&
         (system <= 13 || system == 255) && head.text().size() >= 10;
}

// A block begins with the digits of pi, an empty file ends with those of its root.
bool IsBzip2(const Head& head) {
  return head.Has("BZh"sv) && head.At(3) >= '1' && head.At(3) <= '9' &&
         (head.Has("\x31\x41\x59\x26\x53\x59"sv, 4) || head.Has("\x17\x72\x45\x38\x50\x90"sv, 4));
}

// A frame that decoders skip, as parallel compressors put one first: 16 magics, then its length and a frame.
bool IsSkippableZstd(const Head& head) {
  const auto length = head.Number<uint32_t>(4);
  return head.Has("\x2A\x4D\x18"sv, 1) && (head.At(0) & 0xF0) == 0x50 && length && *length < (1 << 24);
}

const FileKind* ZipKind(const Head& head) {
  if (!head.Has("PK\3\4"sv)) return nullptr;
  const std::string_view name =
      head.text().substr(std::min<size_t>(30, head.text().size()), head.Number<uint16_t>(26).value_or(0));
  if (name.ends_with(".npy")) return &kNumpyArchive;
  const bool torch = name.ends_with("/data.pkl") || name.ends_with("/.format_version") || name.ends_with("/byteorder");
  return torch ? &kTorch : &kZip;
}

// From protocol 4 on a frame follows, whose length fits the file; before, what pickles begin with and their last byte.
bool IsPickle(const Head& head) {
  if (head.At(0) != 0x80 || head.text().size() < 4) return false;
  if (head.At(1) >= 4 && head.At(1) <= 5) {
    const auto length = head.Number<uint64_t>(3);
    return head.At(2) == 0x95 && length && (*length <= head.all().size() || *length < (uint64_t{1} << 24));
  }
  if (head.Has("\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19"sv, 2)) return true;  // torch.save before zip
  constexpr std::string_view kOpcodes = "])}c(XKJMGU";
  return head.At(1) >= 2 && head.At(1) <= 3 && kOpcodes.find(head.text()[2]) != std::string_view::npos &&
         head.all().back() == '.';
}

bool IsSafetensors(const Head& head) {
  const auto length = head.Number<uint64_t>(0);
  return length && *length > 0 && *length <= 100'000'000 && (head.Has("{\""sv, 8) || head.Has("{}"sv, 8));
}

// A message: continuation, a length that is a multiple of 8, and a FlatBuffer that begins with its own offsets.
bool IsArrowStream(const Head& head) {
  const auto continuation = head.Number<uint32_t>(0), length = head.Number<uint32_t>(4),
             root = head.Number<uint32_t>(8);
  return continuation && *continuation == 0xFFFFFFFF && length && *length > 0 && *length % 8 == 0 &&
         *length < (1 << 24) && root && *root > 0 && *root <= 64 && *root % 4 == 0;
}

const FileKind* TextKind(const Head& head) {
  if (head.Has("\xFF\xFE\0\0"sv) || head.Has("\0\0\xFE\xFF"sv)) return &kUtf32;
  if (head.Has("\xFF\xFE"sv) || head.Has("\xFE\xFF"sv)) return &kUtf16;
  return nullptr;
}

const FileKind* PageKind(const Head& head) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(head.text().data(), head.text().size()));
  std::string_view text = lower;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
  for (const char* begin : {"<!doctype html", "<html", "<head>", "<head ", "<body"}) {
    if (text.starts_with(begin)) return &kPage;
  }
  const bool xml = text.starts_with("<?xml");
  if (text.starts_with("<error>") || (xml && text.find("<error>") != std::string_view::npos)) return &kStoreError;
  return xml && text.find("<html") != std::string_view::npos ? &kPage : nullptr;
}

}  // namespace

bool IsNumpyArray(std::span<const std::byte> bytes) { return Head(bytes).Has("\x93NUMPY"sv); }

const FileKind* RecognizeFile(std::span<const std::byte> bytes) {
  const Head head(bytes);
  if (bytes.empty()) return nullptr;
  if (IsNumpyArray(bytes)) return &kNumpy;
  for (const Magic& magic : kMagics) {
    if (head.Has(magic.bytes, magic.offset)) return &magic.kind;
  }
  if (IsGzip(head)) return &kGzip;
  if (IsBzip2(head)) return &kBzip2;
  if (IsSkippableZstd(head)) return &kZstd;
  if (const FileKind* zip = ZipKind(head)) return zip;
  if (IsPickle(head)) return &kPickle;
  if (IsSafetensors(head)) return &kSafetensors;
  if (IsArrowStream(head)) return &kArrow;
  return PageKind(head);
}

const FileKind* RecognizeText(std::span<const std::byte> bytes) {
  const FileKind* kind = RecognizeFile(bytes);
  return kind != nullptr ? kind : TextKind(Head(bytes));
}

absl::Status RefuseKind(const std::string& path, const FileKind* kind, std::string_view expected, FileUse use) {
  if (kind == nullptr) return absl::OkStatus();
  const std::string_view way_out = use == FileUse::kModel && !kind->as_model.empty() ? kind->as_model : kind->as_data;
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected ", std::string(expected), ", got ",
                                                 std::string(kind->name), ": ", std::string(way_out)));
}

}  // namespace causeway::formats
