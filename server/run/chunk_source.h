// The source of a download's chunks.
//
//   Update   appended by the merge while sites already read: encoded once, sent to all; read from the journal once it
//            is there
//   Anchor   encoded from a snapshot's file on demand, so that merging never waits for a joiner
//
// A reader requests chunk i; if it is not there yet, its waiter is answered once, as soon as a retry makes sense.
// Thread-safe.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "server/store/journal.h"
#include "transport/coordinator_link.h"

namespace causeway::server {

// All readers that wait for a part of the model: for an anchor, for an update, or for an update's next chunk.
//
//   reader ── Add(generation, fragment, version) ──► Waiters ── Wake ──────────► OK: retry
//                                                       └──── BeginGeneration ──► ABORTED: the model is another one
//
// There is one registry, so that no waiter is forgotten with the object that it waits for. Each is answered exactly
// once: a waiter that the registry drops without an answer answers ABORTED itself, so that its stream ends and is
// retried. Thread-safe; waiters are answered with no lock held.
// Identifies the object of a wait.
struct WaitKey {
  uint64_t generation = 0;  // the model's generation
  core::FragmentId fragment = 0;
  core::Version version = 0;

  friend auto operator<=>(const WaitKey&, const WaitKey&) = default;
};

// Receives the answer to a reader: OK when a retry makes sense, else the status with which its call ends.
class Waiter {
 public:
  using Answer = std::function<void(const absl::Status&)>;

  // A waiter for an owner that may disappear while it waits, and is then forgotten.
  Waiter(std::weak_ptr<const void> owner, Answer answer)
      : owned_(true), owner_(std::move(owner)), answer_(std::move(answer)) {}
  // A waiter for an owner that outlives the registry, and retries whatever the answer is.
  template <std::invocable Call>
  Waiter(Call call)  // NOLINT(google-explicit-constructor): a lambda is a waiter
      : answer_([call = std::move(call)](const absl::Status&) { call(); }) {}
  Waiter(Waiter&& other) noexcept;
  Waiter& operator=(Waiter&& other) noexcept;
  ~Waiter();

  bool gone() const { return owned_ && owner_.expired(); }
  void Await() { waits_ = true; }  // from now on it must be answered
  void Tell(const absl::Status& status);

 private:
  bool waits_ = false;
  bool owned_ = false;
  std::weak_ptr<const void> owner_;
  Answer answer_;
};

class Waiters {
 public:
  // REQUIRES: `key` is of the current generation: a reader of an older one is refused before it waits.
  void Add(const WaitKey& key, Waiter waiter);

  void Wake(const WaitKey& key);
  void WakeFragment(core::FragmentId fragment);
  void WakeAll();

  // The model has been replaced: answers those that wait for an earlier one accordingly.
  void BeginGeneration(uint64_t generation);

  size_t size() const;

 private:
  void TellTaken(std::vector<Waiter> taken, const absl::Status& status);
  template <typename Wanted>
  std::vector<Waiter> Take(Wanted wanted);

  mutable core::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<WaitKey, std::vector<Waiter>> waiting_ ABSL_GUARDED_BY(mutex_);
};

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
