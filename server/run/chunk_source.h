// The source of a download's chunks.
//
//   Update   appended by the merge while sites already read: encoded once, sent to all; read from the journal once it
//            is there
//   Anchor   encoded from a snapshot's file on demand, so that merging never waits for a joiner
//
// A reader requests chunk i; if it is not there yet, its waiter is answered once, as soon as a retry makes sense.
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "core/fragment_map.h"
#include "core/mutex.h"
#include "server/run/waiters.h"
#include "server/store/journal.h"
#include "transport/coordinator_link.h"

namespace causeway::server {

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  // One step of a reader: a chunk, or the end with the digest, or an error, or nothing of these (it waits).
  struct Item {
    ChunkPtr chunk;
    std::optional<uint64_t> end;
    absl::Status error;
  };
  // RETURNS: nothing while the reader waits. REQUIRES: no Get yet.
  virtual std::optional<transport::DownloadHeader> Header(Waiter waiter) = 0;
  virtual Item Get(size_t index, Waiter waiter) = 0;
};

class Update final : public ChunkSource {
 public:
  // A future update: its readers wait under `key`.
  Update(const Journal* journal, std::shared_ptr<Waiters> waiters, const WaitKey& key)
      : journal_(journal), waiters_(std::move(waiters)), key_(key) {}
  Update(const Journal* journal, const StoredRound& stored);  // a complete update, in the journal

  void Begin(const RoundRecord& round, int num_chunks);  // the round was decided
  void Append(std::string chunk);
  void End(uint64_t digest);
  // Called instead of Begin: there will be no update to that version.
  void Abandon(core::Version version, const absl::Status& why);
  void MoveTo(const Extent& extent);  // the update can be read from the journal; frees the memory

  std::vector<ChunkPtr> chunks() const;  // the chunks that are still in memory

  std::optional<transport::DownloadHeader> Header(Waiter waiter) override;
  Item Get(size_t index, Waiter waiter) override;

 private:
  const Journal* const journal_;
  const std::shared_ptr<Waiters> waiters_;  // nullptr: complete from the start
  const WaitKey key_;
  mutable core::Mutex mutex_;
  std::optional<transport::DownloadHeader> header_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkPtr> chunks_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Extent> extent_ ABSL_GUARDED_BY(mutex_);  // replaces chunks_
  std::optional<uint64_t> digest_ ABSL_GUARDED_BY(mutex_);
  absl::Status abandoned_ ABSL_GUARDED_BY(mutex_);
};

// Anchor and momentum of a snapshot as float32 chunks, anchor first, compressed where it pays. Reading continues even
// if the file is replaced meanwhile.
class Anchor final : public ChunkSource {
 public:
  // With `already_held` no chunk is sent.
  Anchor(SnapshotReader snapshot, const core::Fragment& fragment, core::AnchorDigest digest, bool already_held,
         const VersionFacts& facts = {});

  std::optional<transport::DownloadHeader> Header(Waiter waiter) override;
  Item Get(size_t index, Waiter waiter) override;

 private:
  const SnapshotReader snapshot_;
  const std::vector<codecs::ChunkSpan> plan_;
  const core::AnchorDigest digest_;
  const bool already_held_;
  const VersionFacts facts_;
};

}  // namespace causeway::server
