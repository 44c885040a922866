#include "server/store/log_file.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/atomic_file.h"

namespace causeway::server {
namespace {

constexpr char kMagic[4] = {'C', 'W', 'L', 'R'};
constexpr size_t kSectorBytes = 512;
constexpr int64_t kMaxFileBytes = int64_t{1} << 32;  // more than is ever written

struct Header {
  char magic[4];
  uint32_t kind;
  uint64_t sequence;
  uint64_t epoch;
  uint64_t bytes;
  LogHash previous;
};
static_assert(sizeof(Header) == 64);

LogHash Sha256(std::string_view bytes) {
  LogHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

// The record at the start of `bytes`, whole by its own hash, and how long it is.
std::optional<LogRecord> RecordAt(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header) + sizeof(LogHash)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.sequence == 0) return std::nullopt;
  if (header.bytes > bytes.size() - sizeof(header) - sizeof(LogHash)) return std::nullopt;
  const std::string_view contents = bytes.substr(sizeof(header), header.bytes);
  LogHash hash;
  std::memcpy(hash.data(), contents.data() + contents.size(), hash.size());
  if (hash != Sha256(bytes.substr(0, sizeof(header) + contents.size()))) return std::nullopt;
  return LogRecord{.kind = static_cast<RecordKind>(header.kind),
                   .epoch = header.epoch,
                   .previous = {header.sequence - 1, header.previous},
                   .mark = {header.sequence, hash},
                   .contents = std::string(contents)};
}

size_t SizeOf(const LogRecord& record) { return sizeof(Header) + record.contents.size() + sizeof(LogHash); }

// Whole records anywhere in `bytes`, from the first one that is found on.
std::vector<LogRecord> FindRecords(std::string_view bytes) {
  std::vector<LogRecord> found;
  const std::string_view magic(kMagic, sizeof(kMagic));
  for (size_t at = bytes.find(magic, 1); at != std::string_view::npos; at = bytes.find(magic, at)) {
    std::optional<LogRecord> record = RecordAt(bytes.substr(at));
    if (!record || (!found.empty() && record->previous != found.back().mark)) {
      ++at;
      continue;
    }
    at += SizeOf(*record);
    found.push_back(*std::move(record));
  }
  return found;
}

// `bytes` begin at `offset` of their file. A sector that was never written is zero.
bool HasUnwrittenSector(std::string_view bytes, size_t offset) {
  while (!bytes.empty()) {
    const std::string_view sector = bytes.substr(0, kSectorBytes - offset % kSectorBytes);
    if (std::all_of(sector.begin(), sector.end(), [](char byte) { return byte == 0; })) return true;
    bytes.remove_prefix(sector.size());
    offset += sector.size();
  }
  return false;
}

// Whether it ends before its own header says, as far as that one is there.
bool EndsEarly(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return true;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
         header.bytes > bytes.size() - std::min(bytes.size(), sizeof(header) + sizeof(LogHash));
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  if (size > kMaxFileBytes) return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, which no log has"));
  std::string bytes(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(formats::ReadAt(file, path, 0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

}  // namespace

absl::StatusOr<LogContents> ReadLogFile(const std::string& path, const std::optional<LogMark>& previous) {
  ASSIGN_OR_RETURN(const std::string file, ReadWhole(path));
  LogContents contents{.path = path};
  std::optional<LogMark> end = previous;
  std::string_view rest = file;
  while (!rest.empty()) {
    std::optional<LogRecord> record = RecordAt(rest);
    if (!record || (end && record->previous != *end)) {
      contents.wrong_at = static_cast<int64_t>(file.size() - rest.size());
      contents.wrong = record ? "does not follow the record before" : "is not what was written";
      contents.behind_damage = FindRecords(rest);
      contents.torn = !record && contents.behind_damage.empty() &&
                      (EndsEarly(rest) || HasUnwrittenSector(rest, file.size() - rest.size()));
      return contents;
    }
    if (record->kind != RecordKind::kState && record->kind != RecordKind::kRows) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": record ", record->mark.sequence, " is of kind ",
                                                        static_cast<uint32_t>(record->kind),
                                                        ", which a later version of the coordinator wrote"));
    }
    end = record->mark;
    rest.remove_prefix(SizeOf(*record));
    contents.records.push_back(*std::move(record));
  }
  return contents;
}

absl::StatusOr<LogFile> LogFile::Create(const std::string& path, const LogMark& previous, uint64_t epoch) {
  formats::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return formats::FileError("create", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  return LogFile(path, std::move(file), previous, epoch);
}

absl::Status LogFile::Append(RecordKind kind, std::string_view contents) {
  Header header = {.magic = {},
                   .kind = static_cast<uint32_t>(kind),
                   .sequence = end_.sequence + 1,
                   .epoch = epoch_,
                   .bytes = contents.size(),
                   .previous = end_.hash};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::string record;
  record.reserve(sizeof(header) + contents.size() + sizeof(LogHash));
  record.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(contents);
  const LogHash hash = Sha256(record);
  record.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  RETURN_IF_ERROR(formats::WriteAll(file_, path_, std::as_bytes(std::span<const char>(record))));
  if (::fdatasync(file_.get()) != 0) return formats::FileError("sync", path_);
  end_ = {header.sequence, hash};
  bytes_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

}  // namespace causeway::server
