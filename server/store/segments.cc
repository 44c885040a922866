#include "server/store/segments.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"
#include "formats/atomic_file.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;

formats::NumberedFiles SegmentsOf(const std::string& directory) { return {directory, ".segment"}; }

struct Frame {
  char magic[4];
  uint32_t kind;
  int64_t bytes;
  uint64_t digest;  // of the chunks' digests
  uint64_t sequence;
  std::array<std::byte, 24> hash;
  uint64_t check;  // of all before
};
static_assert(sizeof(Frame) == 64);
constexpr char kSegmentMagic[4] = {'C', 'W', 'S', 'G'};

uint64_t CheckOf(const Frame& frame) { return core::Xxh3(&frame, offsetof(Frame, check)); }

uint64_t DigestOfDigests(const Extent& extent) {
  return core::Xxh3(extent.chunk_digests.data(), extent.chunk_digests.size() * sizeof(uint64_t));
}

Frame FrameOf(PayloadKind kind, const Extent& extent, const LogMark& durable) {
  Frame frame = {.magic = {},
                 .kind = static_cast<uint32_t>(kind),
                 .bytes = extent.bytes(),
                 .digest = DigestOfDigests(extent),
                 .sequence = durable.sequence,
                 .hash = {},
                 .check = 0};
  std::copy_n(kSegmentMagic, sizeof(kSegmentMagic), frame.magic);
  std::copy_n(durable.hash.begin(), frame.hash.size(), frame.hash.begin());
  frame.check = CheckOf(frame);
  return frame;
}

bool IsWhole(const Frame& frame) {
  return std::equal(kSegmentMagic, kSegmentMagic + sizeof(kSegmentMagic), frame.magic) && frame.bytes >= 0 &&
         frame.check == CheckOf(frame);
}

}  // namespace

std::string Segments::Path(const std::string& directory, int64_t segment) {
  return SegmentsOf(directory).Path(segment);
}

bool Segments::IsFrameOf(const Extent& extent, std::span<const std::byte> bytes) {
  static_assert(kFrameBytes == sizeof(Frame));
  CHECK(bytes.size() == sizeof(Frame));
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  return IsWhole(frame) && frame.bytes == extent.bytes() && frame.digest == DigestOfDigests(extent);
}

int64_t Extent::bytes() const { return std::accumulate(chunk_bytes.begin(), chunk_bytes.end(), int64_t{0}); }

absl::Status Segments::Check(const std::string& directory, const std::map<int64_t, int64_t>& ends) {
  for (const auto& [segment, end] : ends) {
    const std::string path = Path(directory, segment);
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(path, error));
    if (error)
      return absl::DataLossError(
          absl::StrCat(path, ", which the journal references, cannot be opened: ", error.message()));
    if (size < end) {
      return absl::DataLossError(absl::StrCat(path, ": expected ", end, " bytes at least, got ", size,
                                              ": it was cut after the journal was written"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Segments::NewestSequence(const std::string& directory,
                                                  const std::map<int64_t, int64_t>& ends) {
  uint64_t newest = 0;
  for (const int64_t segment : SegmentsOf(directory).Numbers()) {
    const std::string path = Path(directory, segment);
    ASSIGN_OR_RETURN(const formats::FileDescriptor file, formats::OpenRegularFile(path));
    ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
    const auto end = ends.find(segment);
    Frame frame;
    for (int64_t at = end == ends.end() ? 0 : end->second; at + static_cast<int64_t>(sizeof(frame)) <= size;) {
      RETURN_IF_ERROR(formats::ReadAt(file, path, at, std::as_writable_bytes(std::span(&frame, 1))));
      if (!IsWhole(frame)) break;
      newest = std::max(newest, frame.sequence);
      at += static_cast<int64_t>(sizeof(frame)) + frame.bytes;
    }
  }
  return newest;
}

absl::StatusOr<std::unique_ptr<Segments>> Segments::Open(const std::string& directory, int64_t segment_bytes,
                                                         const std::map<int64_t, int64_t>& ends) {
  int64_t last = ends.empty() ? 0 : ends.rbegin()->first;
  for (const int64_t segment : SegmentsOf(directory).Numbers()) {
    last = std::max(last, segment);
    const std::string path = Path(directory, segment);
    if (ends.contains(segment)) continue;
    if (::unlink(path.c_str()) != 0) return formats::FileError("remove", path);
  }
  return std::unique_ptr<Segments>(new Segments(directory, segment_bytes, last + 1));
}

absl::Status Segments::BeginSegment(Appending& appending) {
  const std::string path = Path(directory_, next_);
  formats::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return formats::FileError("create", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  appending = {next_++, 0, std::make_shared<const formats::FileDescriptor>(std::move(file))};
  return absl::OkStatus();
}

absl::StatusOr<Extent> Segments::Append(PayloadKind kind, const std::vector<ChunkPtr>& chunks, const LogMark& durable) {
  Extent extent;
  for (const ChunkPtr& chunk : chunks) {
    extent.chunk_bytes.push_back(static_cast<uint32_t>(chunk->size()));
    extent.chunk_digests.push_back(core::Xxh3(chunk->data(), chunk->size()));
  }
  const int64_t bytes = static_cast<int64_t>(sizeof(Frame)) + extent.bytes();
  Appending& appending = appending_[static_cast<int>(kind)];
  if (appending.segment == 0 || (appending.bytes > 0 && appending.bytes + bytes > segment_bytes_)) {
    RETURN_IF_ERROR(BeginSegment(appending));
  }
  extent.segment = appending.segment;
  extent.offset = appending.bytes + static_cast<int64_t>(sizeof(Frame));
  const std::string path = Path(directory_, appending.segment);
  if (std::ranges::find(unsynced_, path, &File::path) == unsynced_.end()) {
    unsynced_.push_back({path, appending.file, kind == PayloadKind::kUpdate});
  }
  const Frame frame = FrameOf(kind, extent, durable);
  RETURN_IF_ERROR(formats::WriteAll(*appending.file, path, std::as_bytes(std::span(&frame, 1))));
  for (const ChunkPtr& chunk : chunks)
    RETURN_IF_ERROR(formats::WriteAll(*appending.file, path, std::as_bytes(std::span(*chunk))));
  appending.bytes += bytes;
  return extent;
}

absl::Status Segments::SyncFiles(const Files& files) {
  for (const File& each : files) {
    if (::fdatasync(each.file->get()) != 0) return formats::FileError("sync", each.path);
    // A cache full of contributions, which only a restart reads, makes each further write three times as slow.
    if (!each.is_read) ::posix_fadvise(each.file->get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  return absl::OkStatus();
}

absl::Status Segments::RemoveAllBut(const std::vector<int64_t>& live) {
  for (const int64_t segment : SegmentsOf(directory_).Numbers()) {
    const bool appended_to = segment == appending_[0].segment || segment == appending_[1].segment;
    if (appended_to || std::find(live.begin(), live.end(), segment) != live.end()) continue;
    const core::MutexLock lock(mutex_);
    opened_.remove_if([&](const auto& opened) { return opened.first == segment; });
    const std::string path = Path(directory_, segment);
    if (::unlink(path.c_str()) != 0) return formats::FileError("remove", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<Segments::Descriptor> Segments::OpenSegment(int64_t segment) const {
  const core::MutexLock lock(mutex_);
  const auto found =
      std::find_if(opened_.begin(), opened_.end(), [&](const auto& opened) { return opened.first == segment; });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
    return opened_.front().second;
  }
  const std::string path = Path(directory_, segment);
  auto file = std::make_shared<const formats::FileDescriptor>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file->is_open()) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": was pruned"));
    return formats::FileError("open", path);
  }
  opened_.emplace_front(segment, file);
  if (opened_.size() > core::kMaxOpenSegments) opened_.pop_back();
  return file;
}

absl::StatusOr<std::string> Segments::ReadChunk(const Extent& extent, size_t index) const {
  if (extent.segment == 0) return absl::NotFoundError("the payload was pruned, or never stored");
  CHECK(index < extent.chunk_bytes.size());
  ASSIGN_OR_RETURN(const Descriptor file, OpenSegment(extent.segment));
  const auto first = extent.chunk_bytes.begin();
  const int64_t offset = std::accumulate(first, first + static_cast<int64_t>(index), extent.offset);
  std::string chunk(extent.chunk_bytes[index], '\0');
  const std::string path = Path(directory_, extent.segment);
  RETURN_IF_ERROR(formats::ReadAt(*file, path, offset, std::as_writable_bytes(std::span(chunk))));
  const uint64_t digest = core::Xxh3(chunk.data(), chunk.size());
  if (digest == extent.chunk_digests[index]) return chunk;
  return absl::DataLossError(absl::StrCat(path, ": is damaged in the ", chunk.size(), " bytes from ", offset,
                                          " on: expected XXH3-64 ", core::DigestText(extent.chunk_digests[index]),
                                          ", got ", core::DigestText(digest)));
}

absl::Status Segments::CheckPayloads(const std::string& directory, const std::vector<Extent>& payloads) {
  const Segments segments(directory, /*segment_bytes=*/0, /*next=*/0);
  for (const Extent& payload : payloads) RETURN_IF_ERROR(segments.CheckPayload(payload));
  return absl::OkStatus();
}

absl::Status Segments::CheckPayload(const Extent& extent) const {
  if (extent.segment == 0) return absl::NotFoundError("the payload was pruned, or never stored");
  for (size_t i = 0; i < extent.chunk_bytes.size(); ++i) RETURN_IF_ERROR(ReadChunk(extent, i).status());
  return absl::OkStatus();
}

}  // namespace causeway::server
