#include "server/store/segments.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limits.h"
#include "formats/atomic_file.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;

constexpr char kExtension[] = ".segment";

std::string SegmentPath(const std::string& directory, int64_t segment) {
  return absl::StrFormat("%s/%06d%s", directory, segment, kExtension);
}

std::vector<int64_t> SegmentsIn(const std::string& directory) {
  std::vector<int64_t> segments;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    int64_t segment = 0;
    if (entry.path().extension() != kExtension) continue;
    if (absl::SimpleAtoi(entry.path().stem().string(), &segment)) segments.push_back(segment);
  }
  return segments;
}

absl::Status WriteAll(const formats::FileDescriptor& file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return formats::FileError("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Extent::bytes() const { return std::accumulate(chunk_bytes.begin(), chunk_bytes.end(), int64_t{0}); }

absl::Status Segments::Check(const std::string& directory, const std::map<int64_t, int64_t>& ends) {
  for (const auto& [segment, end] : ends) {
    const std::string path = SegmentPath(directory, segment);
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(path, error));
    if (error) return absl::DataLossError(absl::StrCat(path, ": is named by the journal, but: ", error.message()));
    if (size < end) {
      return absl::DataLossError(absl::StrCat(path, ": expected ", end, " bytes at least, got ", size,
                                              ": it was cut after the journal was written"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Segments>> Segments::Open(const std::string& directory, int64_t segment_bytes,
                                                         const std::map<int64_t, int64_t>& ends) {
  int64_t last = ends.empty() ? 0 : ends.rbegin()->first;
  for (const int64_t segment : SegmentsIn(directory)) {
    last = std::max(last, segment);
    const std::string path = SegmentPath(directory, segment);
    const auto end = ends.find(segment);
    if (end == ends.end()) {
      if (::unlink(path.c_str()) != 0) return formats::FileError("remove", path);
    } else if (::truncate(path.c_str(), end->second) != 0) {
      return formats::FileError("truncate", path);
    }
  }
  return std::unique_ptr<Segments>(new Segments(directory, segment_bytes, last + 1));
}

absl::Status Segments::BeginSegment(Appending& appending) {
  const std::string path = SegmentPath(directory_, next_);
  formats::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return formats::FileError("create", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  appending = {.segment = next_++, .bytes = 0, .file = std::move(file), .dirty = true};
  return absl::OkStatus();
}

absl::StatusOr<Extent> Segments::Append(PayloadKind kind, const std::vector<ChunkPtr>& chunks) {
  Extent extent;
  for (const ChunkPtr& chunk : chunks) extent.chunk_bytes.push_back(static_cast<uint32_t>(chunk->size()));
  const int64_t bytes = extent.bytes();
  Appending& appending = appending_[static_cast<int>(kind)];
  if (appending.segment == 0 || (appending.bytes > 0 && appending.bytes + bytes > segment_bytes_)) {
    if (appending.dirty && ::fdatasync(appending.file.get()) != 0) {
      return formats::FileError("sync", SegmentPath(directory_, appending.segment));
    }
    RETURN_IF_ERROR(BeginSegment(appending));
  }
  extent.segment = appending.segment;
  extent.offset = appending.bytes;
  const std::string path = SegmentPath(directory_, appending.segment);
  appending.dirty = true;
  for (const ChunkPtr& chunk : chunks) RETURN_IF_ERROR(WriteAll(appending.file, path, *chunk));
  appending.bytes += bytes;
  return extent;
}

absl::Status Segments::Sync() {
  for (Appending& appending : appending_) {
    if (!appending.dirty) continue;
    if (::fdatasync(appending.file.get()) != 0) {
      return formats::FileError("sync", SegmentPath(directory_, appending.segment));
    }
    appending.dirty = false;
  }
  return absl::OkStatus();
}

absl::Status Segments::RemoveAllBut(const std::vector<int64_t>& live) {
  for (const int64_t segment : SegmentsIn(directory_)) {
    const bool appended_to = segment == appending_[0].segment || segment == appending_[1].segment;
    if (appended_to || std::find(live.begin(), live.end(), segment) != live.end()) continue;
    const core::MutexLock lock(mutex_);
    opened_.remove_if([&](const auto& opened) { return opened.first == segment; });
    const std::string path = SegmentPath(directory_, segment);
    if (::unlink(path.c_str()) != 0) return formats::FileError("remove", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<Segments::Descriptor> Segments::OpenToRead(int64_t segment) const {
  const core::MutexLock lock(mutex_);
  const auto found =
      std::find_if(opened_.begin(), opened_.end(), [&](const auto& opened) { return opened.first == segment; });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
    return opened_.front().second;
  }
  const std::string path = SegmentPath(directory_, segment);
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
  ASSIGN_OR_RETURN(const Descriptor file, OpenToRead(extent.segment));
  const auto first = extent.chunk_bytes.begin();
  const int64_t offset = std::accumulate(first, first + static_cast<int64_t>(index), extent.offset);
  std::string chunk(extent.chunk_bytes[index], '\0');
  RETURN_IF_ERROR(formats::ReadAt(*file, SegmentPath(directory_, extent.segment), offset,
                                  std::as_writable_bytes(std::span(chunk))));
  return chunk;
}

}  // namespace causeway::server
