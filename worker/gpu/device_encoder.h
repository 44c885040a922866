// Contributions of a device's trainer, encoded where θ lies (replica::ThetaEncoder).
//
//   step thread       θ ─► copy of the fragment's θ, on the device                       (kCompute, before θ changes)
//   another thread    W, e ─► device ─► Δ = W − θ, + β e, codes, next e ─► host, chunk by chunk             (kSync)
//
// Beside the copies it takes the room of one chunk: a few arrays of its values. The bytes are the CPU codec's.
// Source: docs/gpu.md. BeginKeep is for the step thread; the others are for one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/mutex.h"
#include "replica/parameter_store.h"
#include "worker/gpu/compute_backend.h"

namespace causeway::worker {

class DeviceEncoder final : public replica::ThetaEncoder {
 public:
  // Where the values of a range lie on the device, and how many there are.
  struct Place {
    const float* values = nullptr;
    int64_t count = 0;
  };
  using PlaceOf = std::function<Place(const replica::UnitRange&)>;

  // The backend outlives it.
  DeviceEncoder(ComputeBackend* backend, PlaceOf place_of);
  ~DeviceEncoder() override;

  bool Encodes(core::CodecId codec) const override { return backend_->Encodes(codec); }
  absl::StatusOr<int64_t> BeginKeep(const replica::UnitRanges& ranges) override;
  absl::Status Encode(int64_t ticket, core::CodecId codec, const codecs::EncodeJob& job, int64_t first,
                      std::span<const float> anchor) override;
  absl::Status Read(int64_t ticket, std::span<float> staging) override;
  void End(int64_t ticket) override;

 private:
  // Device memory that grows.
  struct Room {
    void* memory = nullptr;
    int64_t bytes = 0;
  };
  // A fragment's θ, in padded layout.
  struct Kept {
    Room room;
    offload::Device::Event taken = 0;
  };

  absl::Status Grow(Room& room, int64_t bytes);
  absl::StatusOr<Kept*> Of(int64_t ticket);
  absl::Status Finish();  // what was queued for it

  ComputeBackend* const backend_;
  const PlaceOf place_of_;
  const offload::Device::Event done_;
  core::Mutex mutex_;
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::unique_ptr<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Kept>> free_ ABSL_GUARDED_BY(mutex_);
  Room anchor_, residual_, scales_, codes_, bad_block_;  // of one chunk
};

}  // namespace causeway::worker
