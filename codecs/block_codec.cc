#include "codecs/block_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/encode_input.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

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

}  // namespace causeway::codecs
