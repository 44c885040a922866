#include "server/store/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/atomic_file.h"

namespace causeway::server {
namespace {

constexpr char kLogMagic[4] = {'C', 'W', 'L', 'R'};
constexpr size_t kSectorBytes = 512;
constexpr size_t kZerosInAHash = 4;                  // at its end; hardly more
constexpr int64_t kAheadBytes = int64_t{256} << 10;  // some hundred commits
constexpr int64_t kPieceBytes = int64_t{256} << 10;
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

LogHash Sha256(std::string_view bytes) { return formats::Sha256(std::as_bytes(std::span(bytes))); }

// The record at the start of `bytes`, whole according to its own hash, and its length.
std::optional<LogRecord> RecordAt(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header) + sizeof(LogHash)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kLogMagic, sizeof(kLogMagic)) != 0 || header.sequence == 0) return std::nullopt;
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

// Whole records anywhere in `bytes`, from the first one found on.
std::vector<LogRecord> FindRecords(std::string_view bytes) {
  std::vector<LogRecord> found;
  const std::string_view magic(kLogMagic, sizeof(kLogMagic));
  for (size_t at = bytes.find(magic, 1); at != std::string_view::npos; at = bytes.find(magic, at)) {
    std::optional<LogRecord> record = RecordAt(bytes.substr(at));
    if (!record || (!found.empty() && record->previous != found.back().mark)) {
      ++at;
      continue;
    }
    at += static_cast<size_t>(SizeInFile(*record));
    found.push_back(*std::move(record));
  }
  return found;
}

size_t WithoutZerosAtTheEnd(std::string_view bytes) {
  const size_t last = bytes.find_last_not_of('\0');
  return last == std::string_view::npos ? 0 : last + 1;
}

// `bytes` begin at `offset` of their file. A sector that was never written is zero.
bool HasUnwrittenSector(std::string_view bytes, size_t offset) {
  while (!bytes.empty()) {
    const std::string_view sector = bytes.substr(0, kSectorBytes - offset % kSectorBytes);
    if (WithoutZerosAtTheEnd(sector) == 0) return true;
    bytes.remove_prefix(sector.size());
    offset += sector.size();
  }
  return false;
}

bool FollowsIn(const Header& header, const std::optional<LogMark>& end) {
  if (std::memcmp(header.magic, kLogMagic, sizeof(kLogMagic)) != 0 || header.sequence == 0) return false;
  return !end || (header.sequence == end->sequence + 1 && header.previous == end->hash);
}

// Whether a record begins after the start of `bytes`, whole or not.
bool HasHeaderBehind(std::string_view bytes, uint64_t least_sequence) {
  const std::string_view magic(kLogMagic, sizeof(kLogMagic));
  for (size_t at = bytes.find(magic, 1); at != std::string_view::npos; at = bytes.find(magic, at + 1)) {
    Header header;
    if (bytes.size() - at < sizeof(header)) return false;
    std::memcpy(&header, bytes.data() + at, sizeof(header));
    if (header.sequence >= least_sequence && header.sequence - least_sequence <= bytes.size()) return true;
  }
  return false;
}

// Whether there is a record that is whole except for a wrong length. A torn record would look the same, if not for its
// hash.
bool IsWholeButForItsLength(std::string_view bytes, Header header) {
  const size_t used = WithoutZerosAtTheEnd(bytes);
  for (size_t size = used; size <= std::min(bytes.size(), used + kZerosInAHash); ++size) {
    if (size < sizeof(header) + sizeof(LogHash)) continue;
    header.bytes = size - sizeof(header) - sizeof(LogHash);
    std::string record(bytes.substr(0, size - sizeof(LogHash)));
    std::memcpy(record.data(), &header, sizeof(header));
    const LogHash hash = Sha256(record);
    if (std::memcmp(hash.data(), bytes.data() + record.size(), hash.size()) == 0) return true;
  }
  return false;
}

// Determines how bytes that are no record came to `offset`, after the record `end`.
struct Remains {
  bool torn = false;             // the beginning of a record whose rest never reached the disk
  bool followed = false;         // by another record, so it had been synced
  std::optional<LogMark> after;  // the record that it claims to follow
};

// `bytes` are not zero throughout.
Remains RemainsOf(std::string_view bytes, size_t offset, const std::optional<LogMark>& end) {
  const size_t used = WithoutZerosAtTheEnd(bytes);
  Header header;
  if (used + kZerosInAHash < sizeof(header) + sizeof(LogHash)) return {.torn = true};
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (!FollowsIn(header, end)) {  // a sector of it is missing, or it is damaged
    const bool followed = HasHeaderBehind(bytes.substr(0, used), end ? end->sequence + 2 : 2);
    return {.torn = !followed && HasUnwrittenSector(bytes.substr(0, sizeof(header)), offset), .followed = followed};
  }
  const LogMark after{header.sequence - 1, header.previous};
  if (IsWholeButForItsLength(bytes, header)) return {.after = after};
  const size_t most = bytes.size() - std::min(bytes.size(), sizeof(header) + sizeof(LogHash));
  if (header.bytes > most) return {.torn = true, .after = after};
  const size_t size = sizeof(header) + header.bytes + sizeof(LogHash);
  const bool followed = used > size;
  return {.torn = !followed && HasUnwrittenSector(bytes.substr(0, size), offset), .followed = followed, .after = after};
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  if (size > kMaxFileBytes) return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, which no log has"));
  std::string bytes(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(formats::ReadAt(file, path, 0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

absl::Status WriteAt(const formats::FileDescriptor& file, const std::string& path, int64_t offset,
                     std::string_view bytes) {
  if (::lseek(file.get(), offset, SEEK_SET) < 0) return formats::FileError("write", path);
  return formats::WriteAll(file, path, std::as_bytes(std::span<const char>(bytes)));
}

}  // namespace

int64_t SizeInFile(const LogRecord& record) {
  return static_cast<int64_t>(sizeof(Header) + record.contents.size() + sizeof(LogHash));
}

absl::StatusOr<LogContents> ReadLogFile(const std::string& path, const std::optional<LogMark>& previous) {
  ASSIGN_OR_RETURN(const std::string file, ReadWhole(path));
  LogContents contents{.path = path, .digest = core::Xxh3(file.data(), file.size())};
  std::optional<LogMark> end = previous;
  std::string_view rest = file;
  while (true) {
    contents.end = static_cast<int64_t>(file.size() - rest.size());
    std::optional<LogRecord> record = RecordAt(rest);
    if (!record && WithoutZerosAtTheEnd(rest) == 0) return contents;
    if (!record || (end && record->previous != *end)) {
      contents.wrong = record ? "does not follow the record before" : "is not what was written";
      contents.behind_damage = FindRecords(rest);
      const Remains remains = RemainsOf(rest, file.size() - rest.size(), end);
      contents.torn = !record && contents.behind_damage.empty() && remains.torn;
      contents.wrong_after = remains.after;
      contents.followed = !contents.behind_damage.empty() || remains.followed;
      return contents;
    }
    if (record->kind != RecordKind::kState && record->kind != RecordKind::kRows) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": record ", record->mark.sequence, " is of kind ",
                                                        static_cast<uint32_t>(record->kind),
                                                        ", which another version of the coordinator wrote"));
    }
    end = record->mark;
    rest.remove_prefix(static_cast<size_t>(SizeInFile(*record)));
    contents.records.push_back(*std::move(record));
  }
}

absl::StatusOr<LogEnd> FindLogEnd(int64_t file_bytes, const ReadPiece& read) {
  constexpr int64_t kAround = sizeof(Header) + sizeof(LogHash);
  LogEnd found;
  std::vector<std::byte> piece(kPieceBytes);
  while (true) {
    Header header = {};
    LogHash hash = {};
    const int64_t left = file_bytes - found.offset;
    const std::span<std::byte> head = std::as_writable_bytes(std::span(&header, 1))
                                          .first(static_cast<size_t>(std::clamp<int64_t>(left, 0, sizeof(Header))));
    RETURN_IF_ERROR(read(found.offset, head));
    found.clean = std::ranges::all_of(head, [](std::byte byte) { return byte == std::byte{0}; });
    if (left < kAround || std::memcmp(header.magic, kLogMagic, sizeof(kLogMagic)) != 0 || header.sequence == 0 ||
        header.bytes > static_cast<uint64_t>(left - kAround)) {
      return found;
    }
    const LogMark previous = {header.sequence - 1, header.previous};
    if (found.previous && previous != found.end) return found;
    formats::RunningSha256 expected;
    expected.Add(head);
    int64_t at = found.offset + static_cast<int64_t>(sizeof(Header));
    for (const int64_t end = at + static_cast<int64_t>(header.bytes); at < end;) {
      const std::span<std::byte> part = std::span(piece).first(static_cast<size_t>(std::min(kPieceBytes, end - at)));
      RETURN_IF_ERROR(read(at, part));
      expected.Add(part);
      at += static_cast<int64_t>(part.size());
    }
    RETURN_IF_ERROR(read(at, hash));
    if (hash != expected.value()) return found;
    if (!found.previous) found.previous = previous;
    found.end = {header.sequence, hash};
    found.offset = at + static_cast<int64_t>(sizeof(hash));
  }
}

absl::StatusOr<LogFile> LogFile::Create(const std::string& path, const LogMark& previous, uint64_t epoch) {
  formats::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return formats::FileError("create", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  return LogFile(path, std::move(file), previous, epoch);
}

absl::Status LogFile::Sync() const {
  return ::fdatasync(file_->get()) == 0 ? absl::OkStatus() : formats::FileError("sync", path_);
}

absl::Status LogFile::Append(RecordKind kind, std::string_view contents, bool sync) {
  Header header = {.magic = {},
                   .kind = static_cast<uint32_t>(kind),
                   .sequence = end_.sequence + 1,
                   .epoch = epoch_,
                   .bytes = contents.size(),
                   .previous = end_.hash};
  std::memcpy(header.magic, kLogMagic, sizeof(kLogMagic));
  std::string record;
  record.reserve(sizeof(header) + contents.size() + sizeof(LogHash));
  record.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(contents);
  const LogHash hash = Sha256(record);
  record.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  RETURN_IF_ERROR(WriteAt(*file_, path_, bytes_, record));
  bytes_ += static_cast<int64_t>(record.size());
  if (bytes_ > zeros_to_) WriteZerosAhead();
  if (sync) RETURN_IF_ERROR(Sync());
  end_ = {header.sequence, hash};
  return absl::OkStatus();
}

// This only saves time: if there is no room, the file grows with each record.
void LogFile::WriteZerosAhead() {
  static const std::string zeros(kAheadBytes, '\0');
  zeros_to_ = bytes_;
  if (WriteAt(*file_, path_, bytes_, zeros).ok()) zeros_to_ += kAheadBytes;
}

}  // namespace causeway::server
