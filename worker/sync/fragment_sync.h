// One fragment at a site: its anchor, what is sent and what comes back. Arithmetic alone; SyncEngine knows when.
//
//   θ (live tensors) ── CopyLocal ─► staging ── EncodeContribution ─► chunks          Δ = W − θ, error feedback
//                                                                         ⋮
//   θ ◄── Mix or Rebase ◄── W, v ◄── TakeUpdate ◄──────────────────── chunks          g decoded, outer step
//
// All arrays are in the fragment's padded layout. Mix and Rebase belong to the step loop; CopyLocal runs while θ does
// not change (offload/bus_schedule.h); the rest may run on another thread, one call at a time; the engine hands the
// fragment over between them. Source: docs/architecture.md (arXiv 2501.18512; 2604.21428 for the rebase).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codecs/error_feedback.h"
#include "core/aligned.h"
#include "core/fragment_map.h"
#include "core/outer_step.h"
#include "core/run_config.h"
#include "offload/bus_schedule.h"
#include "worker/sync/sync_checkpoint.h"

namespace causeway::worker {

// What the coordinator chose with a version of a fragment; none: as the config says.
struct ChosenCodecs {
  std::optional<core::CodecId> down;  // of the update that makes the version
  std::optional<core::CodecId> up;    // of contributions to it
};

class FragmentSync {
 public:
  using Range = offload::BusSchedule::Range;

  // `tensors` are the live parameters of all the manifest's tensors (θ, unpadded); they outlive this object.
  FragmentSync(const core::FragmentMap& map, core::FragmentId id, const core::RunConfig& config,
               std::vector<std::span<float>> tensors);

  core::Version version() const { return version_; }
  uint64_t Digest() const;
  std::span<const float> anchor() const { return anchor_; }
  double ResidualNorm() const { return feedback_.ResidualNorm(); }

  // ---- Sending ----

  void CopyLocal();
  // The same, piece by piece: what is to be copied, by values of θ counted through all tensors of the manifest, and one
  // part of it.
  std::vector<Range> LocalRanges() const;
  void CopyLocal(const Range& piece);
  // The outer gradient of what CopyLocal took, encoded. INVALID_ARGUMENT if a value is not finite, with the tensor's
  // name and the index in it; nothing is pending then.
  absl::StatusOr<std::vector<std::string>> EncodeContribution();
  // The contribution is in the update, or is refused and stays whole in θ and the residual.
  void Resolve(bool merged);

  // The live parameters as float32 chunks: the initial parameters of a run.
  absl::StatusOr<std::vector<std::string>> EncodeInitial();

  // ---- Receiving ----

  // Takes the outer step with the update's chunks. INVALID_ARGUMENT if they do not make up an update of this fragment,
  // or the run's config does not allow such codecs; W and v are untouched then.
  absl::Status TakeUpdate(const core::OuterParameters& outer, const std::vector<std::string>& chunks,
                          const ChosenCodecs& codecs = {});

  void Mix(float alpha);  // θ ← α θ + (1 − α) W
  void Rebase();          // θ moves by the step that W took in the last TakeUpdate

  // Anchor and momentum from the coordinator, as its download's chunks. What becomes of θ and the residual:
  enum class Local {
    kReset,  // a full resync: the residual starts at zero, θ is to be set from W
    kKeep,   // θ moves by what W moves, and the residual stays: nothing that was trained is lost
  };
  absl::Status SetAnchor(core::Version version, const std::vector<std::string>& chunks, Local local,
                         const ChosenCodecs& codecs = {});
  void ForgetResidual() { feedback_.Reset(); }
  void SetAnchorFromLocal();  // the coordinator holds what we started with: W ← θ, v ← 0, version 0
  void CopyAnchorToLocal();   // θ ← W

  // All arrays, to be written to a checkpoint; and a fragment as it was then.
  FragmentArrays Arrays() const;
  void Restore(core::Version version, const FragmentArrays& arrays);

  // The part of an array in padded layout that belongs to the i-th tensor of the fragment, without padding.
  std::span<const float> PartOf(std::span<const float> padded, const core::TensorPlace& place) const;
  const core::Fragment& fragment() const { return map_.fragment(id_); }

 private:
  // Chunks that cover the fragment, as planned, and the bytes of those that came compressed.
  struct CheckedChunks {
    std::deque<std::string> expanded;  // views point into it
    std::vector<codecs::ChunkView> views;
  };
  absl::Status CheckCodecs(const ChosenCodecs& codecs) const;
  absl::StatusOr<CheckedChunks> Check(const codecs::LegCodec& leg, std::span<const std::string> chunks) const;
  static void Decode(const CheckedChunks& chunks, std::span<float> values);  // padding is left as it is
  std::span<float> PartOf(std::span<float> padded, const core::TensorPlace& place) const;
  void AddAnchorToLocal(float sign);
  absl::Status CheckFinite(std::span<const float> padded, const char* what) const;

  const core::FragmentMap& map_;
  const core::FragmentId id_;
  const core::CodecConfig codec_config_;
  const codecs::LegCodec up_, down_;  // as the config says
  std::optional<core::CodecId> chosen_up_;
  const std::vector<std::span<float>> tensors_;
  std::vector<int64_t> firsts_;  // of each tensor of the fragment, counted through all of the manifest's
  core::Version version_ = 0;
  core::AlignedFloats anchor_;    // W
  core::AlignedFloats momentum_;  // v
  core::AlignedFloats staging_;   // θ as sent, then Δ; between rounds g of the last update
  core::OuterParameters last_outer_;
  codecs::ErrorFeedback feedback_;
};

}  // namespace causeway::worker
