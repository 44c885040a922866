// Carries out the actions of a site's rules that concern arrays: copies of θ, contributions, anchors, updates.
//
//   step thread   ReadTheta ─► copy thread: the copy is there ─► OnCopied
//                 MoveTheta
//   task thread   Encode ─► OnEncoded        PlaceAnchor ─► OnAnchorPlaced        TakeUpdate ─► OnUpdateTaken
//
// Tasks run in the order in which they were posted. The rules ensure that a fragment's arrays have one user at a time;
// only the step thread calls the store's BeginRead and Move. Calls are thread-safe; the listener is called on the copy
// thread and the task thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/buffer_pool.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"
#include "replica/replica.h"
#include "transport/coordinator_link.h"
#include "worker/site/site_events.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

// A copy of all anchors, tensor by tensor in manifest order, without padding; empty for a tensor that is not synced.
struct AnchorCopy {
  std::vector<std::vector<float>> tensors;
  std::vector<core::Version> versions;
};

// A download, complete and still encoded.
struct Payload {
  transport::DownloadHeader header;
  std::vector<std::string> chunks;
  uint64_t digest = 0;   // the resulting anchor's, as the coordinator has computed it
  int64_t begun_us = 0;  // when its header arrived
};

class MoverListener {
 public:
  virtual ~MoverListener() = default;
  virtual void OnCopied(core::FragmentId fragment) = 0;
  virtual void OnEncoded(core::FragmentId fragment, Chunks chunks, const std::string& where) = 0;  // host | device
  virtual void OnAnchorPlaced(core::FragmentId fragment, const core::AnchorDigest& anchor) = 0;
  // `mismatch`: how the anchor differs from the coordinator's; empty if they agree.
  virtual void OnUpdateTaken(core::FragmentId fragment, const core::AnchorDigest& anchor,
                             const std::string& mismatch) = 0;
  // DATA_LOSS: a value is not finite (named). INTERNAL: the coordinator broke the protocol. Others are errors of the
  // store.
  virtual void OnMoverFailed(const absl::Status& status) = 0;
};

class Movers {
 public:
  // The arguments outlive it.
  Movers(const core::FragmentMap& map, const core::RunSettings& settings, replica::ParameterStore* store,
         MoverListener* listener);

  // ---- The step thread ----
  void ReadTheta(core::FragmentId p);
  absl::Status MoveTheta(const action::MoveTheta& move);
  absl::StatusOr<uint64_t> OfferInitial(core::FragmentId p);  // W ← θ; returns W's digest
  absl::StatusOr<Chunks> EncodeInitial(core::FragmentId p);

  // ---- The task thread ----
  void Encode(core::FragmentId p);
  void Resolve(const action::Resolve& resolve);
  void ForgetResidual(core::FragmentId p);
  void PlaceAnchor(const action::PlaceAnchor& place, std::shared_ptr<const Payload> payload);
  void TakeUpdate(const action::TakeUpdate& take, std::shared_ptr<const Payload> payload);
  void PostAnchorCopy(std::function<void(AnchorCopy)> take);
  void PostHoldings(std::function<void(std::vector<core::HeldFragment>)> show);
  void PostHeld(core::FragmentId p, std::function<void(transport::HeldValues)> send);
  void Post(std::function<void()> task) { tasks_.Post(std::move(task)); }
  void Finish();  // returns when all tasks posted earlier have run

  // ---- Between tasks, or on the task thread ----
  absl::Status Restore(const SiteCheckpoint& checkpoint);  // INVALID_ARGUMENT if it does not fit
  std::vector<replica::ReplicaArrays> Arrays() const;      // of each fragment
  double ResidualNorm() const;
  void FreeSpareMemory();  // memory that only joining needed

 private:
  // Brings W to where contributions are encoded; false: failed, and the listener was called.
  bool BringAnchor(core::FragmentId p);
  void GiveUp(core::FragmentId p);  // drops the copy of θ to be sent
  absl::StatusOr<std::vector<core::Bytes>> EncodeCopied(core::FragmentId p, const char** where);
  AnchorCopy CopyAnchors() const;
  absl::StatusOr<core::AnchorDigest> Place(const action::PlaceAnchor& place, const Payload& payload);
  absl::StatusOr<core::AnchorDigest> Take(const action::TakeUpdate& take, const Payload& payload);

  const core::FragmentMap& map_;
  const core::RunSettings& settings_;
  const float alpha_;
  replica::ParameterStore* const store_;
  MoverListener* const listener_;
  core::BufferPool pool_;
  std::vector<replica::UnitRanges> ranges_;  // of each fragment
  std::vector<std::unique_ptr<replica::Replica>> replicas_;
  // The copy of θ being encoded and sent: on the host, or kept where θ lies, under a ticket.
  std::vector<core::Buffer> staging_;
  std::vector<std::optional<int64_t>> kept_;
  replica::ThetaEncoder* encoder_ = nullptr;  // null: contributions are encoded on the host
  std::atomic<bool> lacked_memory_ = false;   // whether the encoder did, at least once; logged then
  TaskThread tasks_;
  TaskThread copies_;  // declared after tasks_, to which it posts
};

}  // namespace causeway::worker
