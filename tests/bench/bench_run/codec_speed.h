// Measures the speed of the codecs on this machine, beside the limit set by its memory.
//
//   pair   |ceiling|operation|      timed one after the other, many times: ratio = median of ceiling ÷ operation time
//
//   operation         bytes per value   ceiling (tests/bench/bench_run/codec_ceilings.h)
//   encode_feedback   12                b = a + b in place
//   encode             4                a read
//   decode             4                a fill around the caches
//   decode_add         8                a scaling in place
//
// By this table both move the same number of bytes per value; the scales and codes that a codec reads or writes come on
// top and count against it. A ceiling uses the processor's best instruction set, whatever the operation uses. Values
// are Gaussian; one thread, or several that each take their share of the units.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "codecs/codec.h"

namespace causeway::codecs {

enum class SpeedOperation { kEncodeFeedback, kEncode, kDecode, kDecodeAdd };
const char* SpeedOperationName(SpeedOperation operation);  // "encode_feedback"

struct SpeedOptions {
  std::vector<int64_t> megabytes;  // of float32, 10^6 bytes
  std::vector<int> threads;
  std::vector<Target> targets;  // supported ones
  std::vector<core::CodecId> codecs;
};

struct SpeedRow {
  int64_t megabytes = 0;
  int threads = 0;
  Target target = Target::kScalar;
  core::CodecId codec = core::CodecId::kFloat32;
  SpeedOperation operation = SpeedOperation::kEncodeFeedback;
  int pairs = 0;
  double ratio = 0;             // 0: this build has no ceilings
  double gigavalues_per_s = 0;  // medians
  double gigabytes_per_s = 0;   // by the table
  double ceiling_gigabytes_per_s = 0;
};

// Calls `row` for each as soon as it is measured: sizes, then threads, then codecs, then targets, then operations.
// 12 bytes of memory a value of the largest size, and its codes.
void MeasureSpeed(const SpeedOptions& options, absl::FunctionRef<void(const SpeedRow&)> row);

}  // namespace causeway::codecs
