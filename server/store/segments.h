// Payload bytes on disk, in append-only files. Rows name each payload's place; a segment is removed when no row names
// it.
//
//   segments/000007.segment   |frame|chunk|chunk|chunk|frame|chunk|chunk| …     a payload lies back to back in one
//                             |       payload A       |    payload B    |       segment
//
// A frame has 64 bytes: "CWSG", kind, bytes of the payload, XXH3-64 of its chunks' digests, how far the log was durable
// then (sequence and the first 24 bytes of its hash), XXH3-64 of all that. So the segments reveal a log that has lost
// its end.
//
// Contributions live until the next snapshot and updates until the log is full, so each kind has its own segments.
// Every life of the coordinator begins new segments. Append, Sync and Remove are for one thread; ReadChunk is for any.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "formats/posix_file.h"
#include "server/store/log_file.h"
#include "server/store/records.h"

namespace causeway::server {

enum class PayloadKind { kContribution, kUpdate };

class Segments {
 public:
  // `ends` has, for each segment that a row names, the end of the last payload. DATA_LOSS names a segment that is
  // missing or shorter. Changes nothing.
  static absl::Status Check(const std::string& directory, const std::map<int64_t, int64_t>& ends);

  // DATA_LOSS names the first of these payloads that is not what was appended. Reads all of them.
  static absl::Status CheckPayloads(const std::string& directory, const std::vector<Extent>& payloads);

  // The log's last record at the time when the last payload beyond these ends was appended; no row names those
  // payloads.
  static absl::StatusOr<uint64_t> NewestSequence(const std::string& directory, const std::map<int64_t, int64_t>& ends);

  // After Check: removes segments that no row names. The others stay as they are, and are not appended to.
  static absl::StatusOr<std::unique_ptr<Segments>> Open(const std::string& directory, int64_t segment_bytes,
                                                        const std::map<int64_t, int64_t>& ends);

  static std::string Path(const std::string& directory, int64_t segment);

  // Whether these bytes, from before the payload's first chunk, are its frame.
  static constexpr int64_t kFrameBytes = 64;
  static bool IsFrameOf(const Extent& extent, std::span<const std::byte> bytes);

  // `durable`: the end of the log.
  absl::StatusOr<Extent> Append(PayloadKind kind, const std::vector<ChunkPtr>& chunks, const LogMark& durable);
  // Files with bytes not yet synced by Sync or SyncFiles; the caller must sync them.
  struct File {
    std::string path;
    std::shared_ptr<const formats::FileDescriptor> file;
    bool is_read = false;  // will be read soon, so the kernel's cache keeps its bytes
  };
  using Files = std::vector<File>;
  Files TakeUnsynced() { return std::exchange(unsynced_, {}); }
  static absl::Status SyncFiles(const Files& files);  // for any thread

  absl::Status Sync() { return SyncFiles(TakeUnsynced()); }  // makes everything appended so far durable

  void Roll() { appending_[0] = appending_[1] = {}; }  // what is appended from here on goes to new segments

  // Removes all segments that are neither in `live` nor being appended to.
  absl::Status RemoveAllBut(const std::vector<int64_t>& live);

  // NOT_FOUND: the segment was removed. DATA_LOSS: these are not the appended bytes, or the file is shorter.
  absl::StatusOr<std::string> ReadChunk(const Extent& extent, size_t index) const;
  absl::Status CheckPayload(const Extent& extent) const;  // reports as if all of it were read

 private:
  struct Appending {
    int64_t segment = 0;
    int64_t bytes = 0;
    std::shared_ptr<const formats::FileDescriptor> file;
  };
  using Descriptor = std::shared_ptr<const formats::FileDescriptor>;

  Segments(std::string directory, int64_t segment_bytes, int64_t next)
      : directory_(std::move(directory)), segment_bytes_(segment_bytes), next_(next) {}
  absl::Status BeginSegment(Appending& appending);
  absl::StatusOr<Descriptor> OpenSegment(int64_t segment) const;

  const std::string directory_;
  const int64_t segment_bytes_;
  int64_t next_;
  Appending appending_[2];  // by kind
  Files unsynced_;

  // Guards removal, too: a removed file must not stay open here, or its space would not be freed.
  mutable core::Mutex mutex_;
  mutable std::list<std::pair<int64_t, Descriptor>> opened_ ABSL_GUARDED_BY(mutex_);  // last used first
};

}  // namespace causeway::server
