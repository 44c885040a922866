#include "codecs/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/encode_input.h"
#include "codecs/simd/simd.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

// A codec of independent blocks, for any number of values: whole blocks go through the loops directly, the last,
// partial one through a padded buffer.
//
//   values   |256        |256        |44 … +0 |
//             └ loops.encode ───────┘ └ a run of one block
//   bytes    |scale|codes|scale|codes|scale|codes   (scales and codes lie in two arrays)
//
// Thread-safe.
class BlockCodec final : public Codec {
 public:
  // Null loops are replaced by the reference's.
  BlockCodec(const BlockFormat& format, BlockLoops loops) : format_(format), loops_(loops) {}

  bool rotates() const override { return format_.rotates; }
  int64_t ScaleBytes(int64_t values) const override { return core::BlocksFor(values) * format_.scale_bytes; }
  int64_t CodeBytes(int64_t values) const override { return core::BlocksFor(values) * format_.code_bytes; }
  int64_t ScaleOffset(int64_t unit) const override { return unit * core::kBlocksPerUnit * format_.scale_bytes; }
  int64_t CodeOffset(int64_t unit) const override { return unit * core::kBlocksPerUnit * format_.code_bytes; }

  bool Encode(const EncodeJob& job) const override;
  void Decode(const DecodeJob& job) const override;
  void DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const override;
  double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const override;
  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const override;

 private:
  // Whole blocks of the job, and the values of a partial one after them; a job in the domain of a codec that rotates
  // has none.
  struct Parts {
    int64_t blocks;
    int64_t rest;
  };
  Parts PartsOf(int64_t count, bool in_domain) const;
  int64_t Valid(int64_t block, int64_t values) const;  // the number of the block's values without padding
  bool EncodeLoops(const EncodeRun& run) const;
  void DecodeLoops(const DecodeRun& run) const;
  void SumLoops(const SumRun& run) const;
  bool EncodeLast(const EncodeJob& job, const EncodeRun& whole, int64_t valid) const;
  void DecodeLast(const DecodeJob& job, const DecodeRun& whole, int64_t valid) const;

  const BlockFormat& format_;
  const BlockLoops loops_;
};

using BlockBuffer = std::array<float, core::kBlockValues>;

CAUSEWAY_MULTIVERSION
void AddWeighted(float weight, const float* values, float* sum) {
  for (int64_t i = 0; i < core::kBlockValues; ++i) sum[i] = std::fma(weight, values[i], sum[i]);
}

}  // namespace

bool EncodeReference(const BlockFormat& format, const EncodeRun& run) {
  for (int64_t b = 0; b < run.blocks; ++b) {
    const int64_t at = b * core::kBlockValues;
    uint8_t* scale = run.scales + b * format.scale_bytes;
    uint8_t* codes = run.codes + b * format.code_bytes;
    BlockBuffer d;
    std::copy_n(run.values + at, core::kBlockValues, d.begin());
    if (run.rotate) Rotate(SignsOf(run.rotation.seed, run.rotation.first_block + b), d);
    if (run.residual != nullptr) AddFeedback(run.beta, run.residual + at, d.data(), core::kBlockValues, d.data());
    if (!BringIntoRange(run.saturate, d)) return false;
    format.encode(d, run.inverse_count, run.gain, scale, codes);
    if (run.next_residual == nullptr) continue;
    BlockBuffer decoded;
    format.decode(scale, codes, decoded);
    for (int64_t i = 0; i < core::kBlockValues; ++i) run.next_residual[at + i] = d[i] - decoded[i];
  }
  return true;
}

void DecodeReference(const BlockFormat& format, const DecodeRun& run) {
  for (int64_t b = 0; b < run.blocks; ++b) {
    BlockBuffer decoded;
    format.decode(run.scales + b * format.scale_bytes, run.codes + b * format.code_bytes, decoded);
    if (run.rotate) Unrotate(SignsOf(run.rotation.seed, run.rotation.first_block + b), decoded);
    float* values = run.values + b * core::kBlockValues;
    if (run.add) {
      AddWeighted(run.weight, decoded.data(), values);
    } else {
      std::copy_n(decoded.begin(), core::kBlockValues, values);
    }
  }
}

void SumReference(const BlockFormat& format, const SumRun& run) {
  for (int64_t b = 0; b < run.blocks; ++b) {
    float* sum = run.sum + b * core::kBlockValues;
    std::fill_n(sum, core::kBlockValues, 0.0f);
    for (int64_t n = 0; n < run.num_terms; ++n) {
      const DecodeTerm& term = run.terms[n];
      BlockBuffer decoded;
      format.decode(term.scales + b * format.scale_bytes, term.codes + b * format.code_bytes, decoded);
      AddWeighted(term.weight, decoded.data(), sum);
    }
  }
}

namespace {

bool BlockCodec::EncodeLoops(const EncodeRun& run) const {
  return loops_.encode != nullptr ? loops_.encode(run) : EncodeReference(format_, run);
}

void BlockCodec::DecodeLoops(const DecodeRun& run) const {
  if (loops_.decode != nullptr) {
    loops_.decode(run);
  } else {
    DecodeReference(format_, run);
  }
}

void BlockCodec::SumLoops(const SumRun& run) const {
  if (loops_.sum != nullptr) {
    loops_.sum(run);
  } else {
    SumReference(format_, run);
  }
}

BlockCodec::Parts BlockCodec::PartsOf(int64_t count, bool in_domain) const {
  if (format_.rotates && in_domain) return {core::BlocksFor(count), 0};
  return {count / core::kBlockValues, count % core::kBlockValues};
}

bool BlockCodec::Encode(const EncodeJob& job) const {
  CHECK((job.residual == nullptr) == (job.beta == 0) && (job.residual == nullptr) == (job.next_residual == nullptr));
  CHECK(format_.rotates || !job.rotation.has_value());
  const Parts parts = PartsOf(job.count, !job.rotation.has_value());
  const EncodeRun whole = {.blocks = parts.blocks,
                           .values = job.values,
                           .rotate = job.rotation.has_value(),
                           .rotation = job.rotation.value_or(Rotation{}),
                           .beta = job.beta,
                           .residual = job.residual,
                           .next_residual = job.next_residual,
                           .gain = job.gain,
                           .saturate = job.saturate,
                           .scales = job.scales,
                           .codes = job.codes};
  if (parts.blocks > 0 && !EncodeLoops(whole)) return false;
  return parts.rest == 0 || EncodeLast(job, whole, parts.rest);
}

bool BlockCodec::EncodeLast(const EncodeJob& job, const EncodeRun& whole, int64_t valid) const {
  const int64_t at = whole.blocks * core::kBlockValues;
  BlockBuffer values = {}, residual = {};
  std::copy_n(job.values + at, valid, values.begin());
  EncodeRun last = whole;
  last.blocks = 1;
  last.values = values.data();
  last.rotation.first_block += whole.blocks;
  last.scales += whole.blocks * format_.scale_bytes;
  last.codes += whole.blocks * format_.code_bytes;
  if (!format_.rotates) last.inverse_count = 1.0f / static_cast<float>(valid);
  if (job.residual == nullptr) return EncodeLoops(last);
  // After a rotation padding is not zero, and its residual is kept, too.
  const int64_t kept = format_.rotates ? core::kBlockValues : valid;
  std::copy_n(job.residual + at, kept, residual.begin());
  last.residual = residual.data();
  last.next_residual = residual.data();
  if (!EncodeLoops(last)) return false;
  std::copy_n(residual.begin(), kept, job.next_residual + at);
  return true;
}

void BlockCodec::Decode(const DecodeJob& job) const {
  CHECK(format_.rotates || !job.rotation.has_value());
  const Parts parts = PartsOf(job.count, !job.rotation.has_value());
  const DecodeRun whole = {.blocks = parts.blocks,
                           .scales = job.scales,
                           .codes = job.codes,
                           .rotate = job.rotation.has_value(),
                           .rotation = job.rotation.value_or(Rotation{}),
                           .values = job.values,
                           .add = job.add.has_value(),
                           .weight = job.add.value_or(0.0f)};
  if (parts.blocks > 0) DecodeLoops(whole);
  if (parts.rest > 0) DecodeLast(job, whole, parts.rest);
}

void BlockCodec::DecodeLast(const DecodeJob& job, const DecodeRun& whole, int64_t valid) const {
  const int64_t at = whole.blocks * core::kBlockValues;
  BlockBuffer values = {};
  std::copy_n(job.values + at, valid, values.begin());
  DecodeRun last = whole;
  last.blocks = 1;
  last.values = values.data();
  last.rotation.first_block += whole.blocks;
  last.scales += whole.blocks * format_.scale_bytes;
  last.codes += whole.blocks * format_.code_bytes;
  DecodeLoops(last);
  std::copy_n(values.begin(), valid, job.values + at);
}

void BlockCodec::DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const {
  const Parts parts = PartsOf(count, /*in_domain=*/true);
  if (parts.blocks > 0) SumLoops({parts.blocks, terms.data(), std::ssize(terms), sum});
  if (parts.rest == 0) return;
  std::vector<DecodeTerm> last(terms.begin(), terms.end());
  for (DecodeTerm& term : last) {
    term.scales += parts.blocks * format_.scale_bytes;
    term.codes += parts.blocks * format_.code_bytes;
  }
  BlockBuffer values;
  SumLoops({1, last.data(), std::ssize(last), values.data()});
  std::copy_n(values.begin(), parts.rest, sum + parts.blocks * core::kBlockValues);
}

double BlockCodec::SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const {
  double sum = 0;
  for (int64_t b = 0; b < core::BlocksFor(values); ++b) {
    sum += format_.sum_squares(scales + b * format_.scale_bytes, codes + b * format_.code_bytes, Valid(b, values));
  }
  return sum;
}

int64_t BlockCodec::Valid(int64_t block, int64_t values) const {
  return format_.rotates ? core::kBlockValues : std::min(core::kBlockValues, values - block * core::kBlockValues);
}

absl::Status BlockCodec::Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const {
  for (int64_t b = 0; b < core::BlocksFor(values); ++b) {
    const int64_t valid = Valid(b, values);
    const absl::Status status =
        format_.validate(scales + b * format_.scale_bytes, codes + b * format_.code_bytes, valid);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("block ", b, ": ", status.message()));
  }
  return absl::OkStatus();
}

const BlockFormat* const kFormats[] = {&kFloat32Format,     &kBfloat16Format,   &kInt8Format,
                                       &kInt4Format,        &kE3m0Format,       &kSignFormat,
                                       &kRotatedSignFormat, &kRotatedLm2Format, &kRotatedLm4Format};

BlockLoops LoopsFor(core::CodecId id, Target target) {
  switch (target) {
    case Target::kScalar: return {};
    case Target::kAvx2: return simd::Avx2Loops(id);
    case Target::kAvx512: return simd::Avx512Loops(id);
  }
  return {};
}

constexpr size_t kNumNumbers =
    1 + static_cast<size_t>(*std::max_element(std::begin(core::kAllCodecs), std::end(core::kAllCodecs)));

// By number and target; onebit_adam_sign has one version.
struct Registry {
  Registry() {
    for (Target target : kAllTargets) {
      std::vector<const Codec*>& of_target = codecs[static_cast<size_t>(target)];
      of_target.resize(kNumNumbers);
      for (const BlockFormat* format : kFormats) {
        blocks.push_back(std::make_unique<BlockCodec>(*format, LoopsFor(format->id, target)));
        of_target[static_cast<size_t>(format->id)] = blocks.back().get();
      }
      for (core::CodecId id : core::kTopkCodecs) {
        others.push_back(MakeTopk(core::TopkEntries(id), target));
        of_target[static_cast<size_t>(id)] = others.back().get();
      }
      of_target[static_cast<size_t>(core::CodecId::kOnebitAdamSign)] = &OnebitAdamSign();
    }
  }

  std::vector<std::unique_ptr<Codec>> blocks, others;
  std::vector<const Codec*> codecs[std::size(kAllTargets)];
};

Target ChooseTarget() {
  Target best = Target::kScalar;
  const char* wanted = std::getenv("CAUSEWAY_SIMD");
  for (Target target : kAllTargets) {
    if (Supported(target)) best = target;
    if (wanted != nullptr && std::string_view(wanted) == TargetName(target)) return best;
  }
  if (wanted == nullptr || *wanted == '\0') return best;
  std::fprintf(stderr, "CAUSEWAY_SIMD: expected scalar, avx2 or avx512, got %s\n", wanted);
  std::exit(2);
}

}  // namespace

void Codec::DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const {
  std::fill_n(sum, rotates() ? core::BlocksFor(count) * core::kBlockValues : count, 0.0f);
  for (const DecodeTerm& term : terms) {
    Decode({.scales = term.scales, .codes = term.codes, .values = sum, .count = count, .add = term.weight});
  }
}

const char* TargetName(Target target) {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx512"};
  return kNames[static_cast<size_t>(target)];
}

bool Supported(Target target) {
#if defined(__x86_64__)
  // The wider loads of AVX-512 alone are not enough: masks of bytes, dwords by sign, and 128-bit forms are used, too.
  if (target == Target::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (target == Target::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  }
#endif
  return target == Target::kScalar;
}

Target ActiveTarget() {
  static const Target target = ChooseTarget();
  return target;
}

const Codec& GetCodec(core::CodecId id) { return GetCodec(id, ActiveTarget()); }

const Codec& GetCodec(core::CodecId id, Target target) {
  static const Registry registry;
  CHECK(Supported(target));
  const std::vector<const Codec*>& of_target = registry.codecs[static_cast<size_t>(target)];
  const auto number = static_cast<size_t>(id);
  CHECK(number < of_target.size() && of_target[number] != nullptr);
  return *of_target[number];
}

}  // namespace causeway::codecs
