// Any floats into any codec: they are refused exactly if one of them is out of range; else all versions write the bytes
// and keep the residual that the specification's second writing has, and a receiver accepts the chunk.
//
//   | codec | flags | u16 count | u8 first unit | u64 rotation seed | floats, over and over |
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codecs/chunk.h"
#include "codecs/chunk_writer.h"
#include "core/check.h"
#include "core/limits.h"
#include "tests/codecs/by_specification.h"

namespace causeway::codecs {
namespace {

constexpr int64_t kFewValues = 700;         // a few blocks,
constexpr int64_t kMostValues = 4400;       // or, less often, more than a unit
constexpr size_t kMostSpecified = 4 * 256;  // the second writing is slow
constexpr float kLargest = 0x1.fffffep99f;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename T>
  T Take() {
    T value = {};
    const size_t bytes = std::min(size_, sizeof(value));
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }

  // The floats that are left, every `stride`-th, over and over.
  std::vector<float> Floats(size_t count, size_t stride) const {
    const size_t available = size_ / sizeof(float);
    std::vector<float> floats(count);
    for (size_t i = 0; i < count && available > 0; ++i) {
      std::memcpy(&floats[i], data_ + i * stride % available * sizeof(float), sizeof(float));
    }
    return floats;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// All that one call of a codec gives.
struct Encoded {
  bool accepted = false;
  std::vector<uint8_t> scales, codes;
  std::vector<float> residual;
};

struct Task {
  ChunkSpan span;
  bool saturate = false;
  float gain = 1, beta = 0;
  std::vector<float> values, residual;

  Rotation rotation() const { return {span.rotation_seed, span.first_unit * core::kBlocksPerUnit}; }
  bool rotates() const { return GetCodec(span.codec).rotates(); }
};

Task ReadTask(Input input) {
  Task task;
  task.span.codec = core::kAllCodecs[input.Take<uint8_t>() % std::size(core::kAllCodecs)];
  const auto flags = input.Take<uint8_t>();
  task.span.values = 1 + input.Take<uint16_t>() % ((flags & 0x18) == 0x18 ? kMostValues : kFewValues);
  task.span.first_unit = input.Take<uint8_t>();
  const auto seed = input.Take<uint64_t>();
  if (task.rotates()) task.span.rotation_seed = seed;
  task.saturate = (flags & 1) != 0;
  task.beta = (flags & 2) != 0 ? 0.75f : 0.0f;
  task.gain = (flags & 4) != 0 ? 1.25f : 1.0f;
  task.values = input.Floats(task.span.values, 1);
  if (task.beta > 0) task.residual = input.Floats(ResidualValues(task.span), 7);
  if (!task.saturate) return task;
  // The caller of `saturate` has no NaN, and nothing that becomes one in a sum of 256.
  const auto tame = [](float& x) { x = std::isnan(x) ? 0 : std::clamp(x, -0x1p110f, 0x1p110f); };
  std::ranges::for_each(task.values, tame);
  std::ranges::for_each(task.residual, tame);
  return task;
}

Encoded EncodeWith(const Codec& codec, const Task& task) {
  Encoded encoded = {false, std::vector<uint8_t>(codec.ScaleBytes(task.span.values)),
                     std::vector<uint8_t>(codec.CodeBytes(task.span.values)), std::vector<float>(task.residual.size())};
  EncodeJob job = {.values = task.values.data(),
                   .count = task.span.values,
                   .beta = task.beta,
                   .gain = task.gain,
                   .saturate = task.saturate,
                   .scales = encoded.scales.data(),
                   .codes = encoded.codes.data()};
  if (codec.rotates()) job.rotation = task.rotation();
  if (task.beta > 0) {
    job.residual = task.residual.data();
    job.next_residual = encoded.residual.data();
  }
  encoded.accepted = codec.Encode(job);
  return encoded;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  const auto same = [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); };
  return std::ranges::equal(a, b, same);
}

std::vector<float> InDomain(const Task& task) {
  std::vector<float> d = task.rotates() ? RotatedBySpecification(task.rotation(), task.values) : task.values;
  for (size_t i = 0; i < task.residual.size(); ++i) d[i] = std::fma(task.beta, task.residual[i], d[i]);
  if (task.saturate) {
    for (float& x : d) x = std::clamp(x, -kLargest, kLargest);
  }
  return d;
}

void CheckAgainstSpecification(const Task& task, std::span<const float> d, const Encoded& encoded) {
  const Specified specified = BySpecification(task.span.codec, d, task.gain);
  CHECK(encoded.scales == specified.scales && encoded.codes == specified.codes);
  for (size_t i = 0; i < encoded.residual.size(); ++i) CHECK(encoded.residual[i] == d[i] - specified.decoded[i]);
}

// The version that is in use, in a chunk: what it refuses it explains, what it writes is accepted.
void CheckChunk(const Task& task, const Encoded& encoded) {
  std::vector<float> next(task.residual.size());
  const auto chunk = EncodeChunk(task.span, task.values, {task.beta, task.residual, next});
  CHECK(chunk.ok() == encoded.accepted);
  if (!chunk.ok()) return;
  const auto view = ChunkView::Parse(*chunk);
  CHECK(view.ok() && view->span() == task.span);
  if (task.gain == GainFor(task.beta)) CHECK(SameBits(next, encoded.residual));
}

void Run(const Task& task) {
  const std::vector<float> d = InDomain(task);
  const bool in_range = std::ranges::all_of(d, [](float x) { return std::abs(x) < core::kMaxMagnitude; });
  const Encoded expected = EncodeWith(GetCodec(task.span.codec, Target::kScalar), task);
  CHECK(expected.accepted == in_range);
  if (!task.saturate) CheckChunk(task, expected);
  for (Target target : kAllTargets) {
    if (!Supported(target)) continue;
    const Codec& codec = GetCodec(task.span.codec, target);
    const Encoded encoded = EncodeWith(codec, task);
    CHECK(encoded.accepted == expected.accepted);
    if (!encoded.accepted) continue;
    CHECK(encoded.scales == expected.scales && encoded.codes == expected.codes);
    CHECK(SameBits(encoded.residual, expected.residual));
    CHECK(codec.Validate(encoded.scales.data(), encoded.codes.data(), task.span.values).ok());
    std::vector<float> decoded(task.span.values);
    DecodeJob job = {.scales = encoded.scales.data(),
                     .codes = encoded.codes.data(),
                     .values = decoded.data(),
                     .count = task.span.values};
    if (codec.rotates()) job.rotation = task.rotation();
    codec.Decode(job);
    for (float value : decoded) CHECK(std::abs(value) < core::kMaxMagnitude);
  }
  if (in_range && d.size() <= kMostSpecified) CheckAgainstSpecification(task, d, expected);
}

}  // namespace
}  // namespace causeway::codecs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::codecs::Run(causeway::codecs::ReadTask({data, size}));
  return 0;
}
