// One fragment's anchor and its updates: only the arithmetic, without θ and without the schedule.
//
//   θ in staging ── EncodeContribution ─► chunks            Δ = W − θ, error feedback
//                                           ⋮
//   step s ◄── W, v ◄── TakeUpdate ◄───── chunks            g decoded; v, W take the outer step
//
// All arrays are in the fragment's padded layout (core/fragment_map.h). For each parameter it holds W and v, and the
// residual where there is error feedback; arrays that only a fragment in flight needs come from the pool. The fast path
// and the coordinator's merge give the same bits: docs/architecture.md, invariants. One owner at a time.
// Source: arXiv 2501.18512; 2604.21428 for moving θ with the anchor.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "codecs/chunk.h"
#include "codecs/error_feedback.h"
#include "core/aligned.h"
#include "core/buffer_pool.h"
#include "core/dtype.h"
#include "core/fragment_map.h"
#include "core/fragment_state.h"
#include "core/outer_step.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"

namespace causeway::replica {

// The codecs that the coordinator chose with a version of a fragment; none: as the config says.
struct ChosenCodecs {
  std::optional<core::CodecId> down;  // codec of the update that makes the version
  std::optional<core::CodecId> up;    // codec of contributions to the version
};

// Everything that another process needs to continue a replica, wherever it lies.
struct ReplicaArrays {
  std::span<const float> anchor;         // W
  std::span<const float> momentum;       // v
  std::span<const float> step;           // s of the last update, until θ has moved by it; else empty
  std::span<const float> residual;       // e; empty without feedback
  std::span<const float> next_residual;  // e, if the unresolved contribution is merged
  float step_lr = 0;                     // η of that step
  uint64_t anchor_stamp = 0;             // stamp of W's contents (core/stamp.h), in this process
  bool pending = false;                  // there is an unresolved contribution
  std::optional<core::CodecId> up;       // codec of contributions to this version; none: as the config says
};

// Chunks that cover a fragment as planned, checked, and the bytes of those that came compressed.
struct CheckedChunks {
  std::deque<std::string> expanded;  // views point into it
  std::vector<codecs::ChunkView> views;
};

// INVALID_ARGUMENT if the chunks are not those that `leg` plans for the fragment.
absl::StatusOr<CheckedChunks> CheckChunks(const core::Fragment& fragment, const codecs::LegCodec& leg,
                                          std::span<const std::string> chunks);

// Takes the anchor download of a fragment, chunk by chunk and in order: those of W, then as many of v.
class AnchorReader {
 public:
  // Arrays in padded layout, with padding of zero; an empty `momentum` leaves v out. All outlive it.
  AnchorReader(const core::Fragment& fragment, std::span<float> anchor, std::span<float> momentum);

  absl::Status Add(const std::string& chunk);  // INVALID_ARGUMENT if it is not the next one
  // OK once all have arrived and W has that digest; otherwise INVALID_ARGUMENT or INTERNAL names the missing or
  // differing part.
  absl::Status Finish(uint64_t digest) const;

 private:
  const core::Fragment& fragment_;
  const std::vector<codecs::ChunkSpan> plan_;  // chunks of each of the two arrays
  const std::span<float> anchor_, momentum_;
  size_t next_ = 0;
};

// The part of an array in padded layout that belongs to a tensor of the fragment, without padding.
std::span<const float> PartOf(std::span<const float> padded, const core::TensorPlace& place);
std::span<float> PartOf(std::span<float> padded, const core::TensorPlace& place);

class Replica {
 public:
  // `map` and `pool` outlive it. `dtypes`: the dtype of θ for each of the fragment's tensors; empty: all float32.
  Replica(const core::FragmentMap& map, core::FragmentId id, const core::RunConfig& config, core::BufferPool* pool,
          std::vector<core::DType> dtypes = {});

  const core::Fragment& fragment() const { return map_.fragment(id_); }
  core::Version version() const { return version_; }
  core::HeldFragment Held() const;  // with digests of W and v: computed here, unless the last step computed them
  std::span<const float> anchor() const { return anchor_; }
  double ResidualNorm() const { return feedback_.ResidualNorm(); }

  // Sets the codecs from now on: `codec` for contributions to this version and the update that it awaits, `next` for
  // contributions to the next one.
  void Use(const core::CodecConfig& codec, const core::CodecConfig& next);

  // ---- Sending ----

  // The outer gradient of `theta`, encoded. Where θ is not float32, Δ = round(W) − θ: against
  // W itself, a θ that was never trained would pull all of W to the numbers that its dtype has. INVALID_ARGUMENT if a
  // value is not finite, with the tensor's name and the index in it; nothing is pending then.
  absl::StatusOr<std::vector<core::Bytes>> EncodeContribution(std::span<const float> theta);
  // The same for the θ that `encoder` keeps under this ticket.
  absl::StatusOr<std::vector<core::Bytes>> EncodeKept(ThetaEncoder& encoder, int64_t ticket);
  // The pending contribution is in the update (`merged`), or is refused and stays whole in θ and the residual.
  void Resolve(bool merged);
  void ForgetResidual();  // also the pending step of θ: θ is no longer W plus the local training

  // θ as float32 chunks: the initial parameters of a run. INVALID_ARGUMENT as above.
  absl::StatusOr<std::vector<core::Bytes>> EncodeInitial(std::span<const float> theta) const;

  // ---- Receiving ----

  // Takes the outer step with the update's chunks. INVALID_ARGUMENT if they do not make up an update of this fragment,
  // or the run's config does not allow such codecs; W and v are untouched then. With `keep_step` the step s that W took
  // stays in step() until ReleaseStep: θ is to move by it.
  absl::Status TakeUpdate(const core::OuterParameters& outer, std::span<const std::string> chunks,
                          const ChosenCodecs& codecs, bool keep_step);
  struct Step {
    float lr = 0;
    std::span<const float> values;  // empty: no step is kept
  };
  Step step() const { return {step_.lr, step_.buffer.values()}; }
  void ReleaseStep() { step_.buffer.Reset(); }

  // Decodes anchor and momentum from the chunks of a download, beside those that the replica has. INVALID_ARGUMENT as
  // for TakeUpdate; INTERNAL if the digest differs.
  absl::Status StageAnchor(core::Version version, std::span<const std::string> chunks, const ChosenCodecs& codecs,
                           uint64_t digest);
  // Makes the staged arrays the replica's own. An unresolved contribution counts as refused; the residual stays, or
  // starts at zero (a full resync).
  void CommitAnchor(bool keep_residual);
  // The coordinator holds the site's initial parameters: W ← θ, v ← 0, version 0.
  void SetInitial(std::span<const float> theta);

  // All arrays, for a checkpoint; and the restoration of a replica from them. INVALID_ARGUMENT if they are of another
  // size than this fragment's; nothing is restored then.
  ReplicaArrays Arrays() const;
  absl::Status Restore(core::Version version, const ReplicaArrays& arrays);

  void ClearPadding(std::span<float> padded) const;

 private:
  struct KeptStep {
    core::Buffer buffer;  // s; empty: none
    float lr = 0;
  };
  struct StagedAnchor {
    core::Version version = 0;
    core::Buffer anchor, momentum;
    std::optional<core::CodecId> up;
  };

  absl::Status CheckCodecs(const ChosenCodecs& codecs) const;
  absl::Status CheckSizes(const ReplicaArrays& arrays) const;
  absl::StatusOr<std::vector<core::Bytes>> Named(absl::StatusOr<std::vector<core::Bytes>> chunks,
                                                 absl::FunctionRef<absl::Status(std::span<float>)> read_theta);
  // Δ from value `first` on, as much of one tensor as the tile has room for; returns the tile.
  std::span<const float> OuterGradientAt(std::span<const float> theta, int64_t first, std::span<float> tile) const;
  absl::Status CheckFinite(std::span<const float> padded, const char* what) const;

  const core::FragmentMap& map_;
  const core::FragmentId id_;
  const std::vector<core::DType> dtypes_;  // dtype of θ for each of the fragment's tensors
  core::CodecConfig codec_config_, next_codec_config_;
  codecs::LegCodec up_, down_;  // as the config says
  core::BufferPool* const pool_;
  std::optional<core::CodecId> chosen_up_;
  core::Version version_ = 0;
  std::optional<core::HeldFragment> held_;  // set if it was computed with the last step
  core::AlignedFloats anchor_;              // W
  uint64_t anchor_stamp_ = 0;               // stamp of W's contents
  core::AlignedFloats momentum_;            // v
  KeptStep step_;
  std::optional<StagedAnchor> staged_;
  codecs::ErrorFeedback feedback_;
};

}  // namespace causeway::replica
