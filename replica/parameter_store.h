// The only access to θ, the parameters that a site trains, wherever they lie and whatever program trains them.
//
//   BeginRead(ranges, staging) ─► (the next step computes) ─► AwaitRead ─► staging holds θ of the step that began it
//   Move(ranges, movement) ─► θ is another one ─► the observer is called
//
// Values are counted in units of 4096 (core/layout.h): a range is whole units of one tensor of the manifest, the last
// of them as long as the tensor is. An array beside θ (`staging`, an anchor, a step) has the ranges one after the other
// in padded layout, as a fragment has its tensors; padding is left alone.
//
// Threads: the step thread, which trains, calls BeginRead and Move, and nothing else changes θ meanwhile. AwaitRead may
// be called on another thread. A failed read or move ends the site: θ may have moved in part.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/codec.h"
#include "core/dtype.h"
#include "core/fragment_map.h"

namespace causeway::replica {

// Units [first, first + count) of a tensor of the manifest.
struct UnitRange {
  int tensor = 0;
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};
using UnitRanges = std::vector<UnitRange>;

// The parts of tensors that a fragment has, in its order: their arrays are the fragment's padded arrays.
UnitRanges RangesOf(const core::Fragment& fragment);

// How θ moves. Arrays are of the ranges' padded size.
struct Movement {
  enum class Kind {
    kMix,   // θ ← fma(α, θ, (1 − α) W); α = 0 sets θ to W
    kStep,  // θ ← fma(−η, s, θ): by the step that an anchor took, or by ± another array with η = ∓1
  };
  Kind kind = Kind::kMix;
  float factor = 0;               // α or η
  std::span<const float> values;  // W or s
  uint64_t stamp = 0;             // stamp of an anchor's contents (core/stamp.h); 0: no encoder has them

  static Movement Mix(float alpha, std::span<const float> anchor, uint64_t stamp = 0) {
    return {Kind::kMix, alpha, anchor, stamp};
  }
  static Movement Step(float lr, std::span<const float> step) { return {Kind::kStep, lr, step, 0}; }
};

// Encodes contributions where θ lies, so that no copy of θ comes to the host.
//
//   step thread   BeginKeep ─► ticket      θ as it is now, kept where it lies
//   another one   Encode …, chunk by chunk ─► End          (or Read: θ itself, to describe a bad value)
//
// RESOURCE_EXHAUSTED: there is no memory for it now. Then the contribution is encoded on the host, by Read of what was
// kept, and the encoder remains usable.
class ThetaEncoder {
 public:
  virtual ~ThetaEncoder() = default;

  // Whether it supports all of these codecs, and is faster than the host. The first call may measure, for a second or
  // two.
  virtual bool Takes(std::span<const core::CodecId> codecs) = 0;

  // The best memory for a chunk; returned when the last holder releases it.
  virtual std::shared_ptr<char> ChunkMemory(size_t bytes) = 0;

  virtual absl::StatusOr<int64_t> BeginKeep(const UnitRanges& ranges) = 0;
  // The arrays from which the ranges' chunks are made, besides θ: whole, in padded layout, in host memory, with the
  // stamps of their contents (core/stamp.h), by which an encoder knows what it still has. Empty residuals: there is no
  // feedback.
  struct Arrays {
    std::span<const float> anchor, residual;  // W, e
    uint64_t anchor_stamp = 0, residual_stamp = 0, next_stamp = 0;
  };
  virtual absl::Status BeginEncode(int64_t ticket, const Arrays& arrays) = 0;
  // d = (W − θ) + β e of the values from `first` of the ranges on. The job's scales and codes are in ChunkMemory, its
  // next residual in host memory; all that is there when this returns. INVALID_ARGUMENT: a value out of range.
  virtual absl::Status Encode(int64_t ticket, core::CodecId codec, const codecs::EncodeJob& job, int64_t first) = 0;
  virtual absl::Status Read(int64_t ticket, std::span<float> staging) = 0;
  virtual void End(int64_t ticket) = 0;

  // W of the ranges has changed. An encoder that keeps anchors takes it now, in parallel with the steps, so that no
  // Move waits for it.
  virtual absl::Status TakeAnchor(const UnitRanges& ranges, std::span<const float> anchor, uint64_t stamp) = 0;
  // The anchor's place in the device's memory; null: it is not there, or has another stamp. For the step thread.
  virtual const float* AnchorOf(const UnitRanges& ranges, uint64_t stamp) = 0;
};

class ParameterStore {
 public:
  using Observer = std::function<void(const UnitRanges&)>;

  virtual ~ParameterStore() = default;

  // The dtype of θ of a tensor; all other arrays are float32. A θ that is not float32 is rounded to nearest when it
  // moves, and the outer gradient is taken against W rounded in the same way (Replica::EncodeContribution).
  virtual core::DType dtype(int /*tensor*/) const { return core::DType::kFloat32; }

  // Ensures that `staging` will hold θ as it is now, however soon θ changes. Both arguments' memory stays until
  // AwaitRead of the ticket that it returns, which is called once.
  virtual int64_t BeginRead(const UnitRanges& ranges, std::span<float> staging) = 0;
  virtual absl::Status AwaitRead(int64_t ticket) = 0;

  virtual ThetaEncoder* encoder() { return nullptr; }  // null: contributions are encoded on the host

  // θ has moved when it returns, and the observer was called.
  absl::Status Move(const UnitRanges& ranges, const Movement& movement) {
    absl::Status moved = DoMove(ranges, movement);
    if (moved.ok() && observer_ != nullptr) observer_(ranges);
    return moved;
  }

  // Called on the step thread at the end of each Move: for a trainer that keeps copies of θ. REQUIRES: no Move yet.
  void SetObserver(Observer observer) { observer_ = std::move(observer); }

  // θ as it is now, at once.
  absl::Status Read(const UnitRanges& ranges, std::span<float> staging) {
    return AwaitRead(BeginRead(ranges, staging));
  }

 protected:
  virtual absl::Status DoMove(const UnitRanges& ranges, const Movement& movement) = 0;

 private:
  Observer observer_;
};

}  // namespace causeway::replica
