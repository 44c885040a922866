// The calls to a device that encodes contributions: all that DeviceEncoder needs (worker/device/device_encoder.h).
// Nothing blocks; errors show in device().status() from then on.
#pragma once

#include "codecs/codec.h"
#include "core/codec_id.h"
#include "offload/device.h"

namespace causeway::worker {

class EncodeBackend {
 public:
  virtual ~EncodeBackend() = default;

  virtual offload::Device& device() = 0;
  virtual bool timed() const { return true; }  // false: durations there say nothing

  // Encode: as in codecs/cuda/cuda_codec.h, with the job's arrays and `bad_block` in device memory; for codecs that
  // Encodes accepts.
  virtual bool Encodes(core::CodecId codec) const = 0;
  virtual void Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
                      unsigned long long* bad_block) = 0;
};

}  // namespace causeway::worker
