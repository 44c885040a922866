// Where the chunks of a download come from.
//
//   Update   appended by the merge while sites already read: encoded once, sent to all
//   Anchor   encoded from the fragment's state as it is asked for; the state is shared, not copied
//
// A reader asks for chunk i; if it is not there yet its `wake` is called once, as soon as asking again makes sense.
// Thread-safe; `wake` is called without a lock held.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "core/fragment_state.h"
#include "core/mutex.h"
#include "server/store/state_store.h"
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
  // Asked first; nothing while it waits.
  virtual std::optional<transport::DownloadHeader> Header(std::function<void()> wake) = 0;
  virtual Item Get(size_t index, std::function<void()> wake) = 0;
};

class Update final : public ChunkSource {
 public:
  Update() = default;
  explicit Update(const SavedUpdate& saved);  // complete

  void Begin(transport::DownloadHeader header);  // the round was decided
  void Append(std::string chunk);
  void End(uint64_t digest);
  std::optional<SavedUpdate> Save() const;  // nothing before it has ended

  std::optional<transport::DownloadHeader> Header(std::function<void()> wake) override;
  Item Get(size_t index, std::function<void()> wake) override;

 private:
  void Wake();

  mutable core::Mutex mutex_;
  std::optional<transport::DownloadHeader> header_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkPtr> chunks_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> digest_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// Anchor and momentum of one version as float32 chunks, anchor first.
class Anchor final : public ChunkSource {
 public:
  // `state` stays as it is. With `already_held` no chunk is sent.
  Anchor(std::shared_ptr<const core::FragmentState> state, const core::Fragment& fragment, bool already_held);

  std::optional<transport::DownloadHeader> Header(std::function<void()> wake) override;
  Item Get(size_t index, std::function<void()> wake) override;

 private:
  const std::shared_ptr<const core::FragmentState> state_;
  const std::vector<codecs::ChunkSpan> plan_;
  const bool already_held_;
};

}  // namespace causeway::server
