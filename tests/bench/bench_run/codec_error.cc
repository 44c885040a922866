// The codecs' errors: relative squared error once, and what is left of it after 50 rounds with error feedback.
//
//   codec_error [--gradients=DIR]     one line of JSON a codec and distribution
//
//   error         ‖x − x̂‖² / ‖x‖², median of 9 seeds, n = 2^22 (recorded gradients: all tensors of all files together)
//   accumulated   50 rounds of s + noise_r, ‖noise_r‖ = ‖s‖, β = 1:  ‖Σ decoded − Σ inputs‖ / ‖Σ inputs‖
//
// Distributions: Gauss, Laplace, Student's t with 3 degrees of freedom, and outer gradients that
// `tests/bench/quality --record=DIR` has recorded. bits_per_value counts scales, padding and chunk headers;
// with_zstd is the same with codec.zstd.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "codecs/chunk.h"
#include "codecs/compression.h"
#include "codecs/error_feedback.h"
#include "core/buffer_pool.h"
#include "core/check.h"
#include "core/random.h"
#include "formats/safetensors.h"
#include "tests/bench/bench_run/bench_run.h"

namespace causeway {
namespace {

using codecs::ChunkSpan;
using core::CodecId;

constexpr int64_t kValues = 1 << 22;
constexpr int kSeeds = 9;
constexpr int64_t kFeedbackValues = 1 << 20;
constexpr int kRounds = 50;

// A uniform number in (0, 1), and two of them make a Gaussian.
double Uniform(uint64_t seed, uint64_t i) { return core::UnitInterval(core::HashCombine(seed, i)) + 0x1p-54; }
double Gauss(uint64_t seed, uint64_t i) {
  return std::sqrt(-2 * std::log(Uniform(seed, 2 * i))) * std::cos(2 * M_PI * Uniform(seed, 2 * i + 1));
}
double Laplace(uint64_t seed, uint64_t i) {
  const double u = Uniform(seed, i) - 0.5;
  return u < 0 ? std::log(1 + 2 * u) : -std::log(1 - 2 * u);
}
double StudentT3(uint64_t seed, uint64_t i) {
  double square = 0;
  for (uint64_t k = 1; k <= 3; ++k) square += std::pow(Gauss(seed, 4 * i + k), 2);
  return Gauss(seed, 4 * i) / std::sqrt(square / 3);
}

struct Distribution {
  const char* name;
  double (*draw)(uint64_t seed, uint64_t i);
};
constexpr Distribution kDistributions[] = {{"gauss", Gauss}, {"laplace", Laplace}, {"student_t3", StudentT3}};

std::vector<float> Draw(const Distribution& distribution, int64_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(1e-3 * distribution.draw(seed, i));
  return values;
}

// One tensor as a fragment's only one.
struct Tensor {
  explicit Tensor(int64_t size) : map({{"t", {size}}}, {{0}}) {}
  std::vector<ChunkSpan> Plan(CodecId codec) const { return codecs::PlanChunks(map.fragment(0), {codec, {}, 1}); }
  core::FragmentMap map;
};

struct Squares {
  double error = 0, value = 0;
  int64_t bytes = 0, compressed_bytes = 0, values = 0;
};

// Encodes and decodes the values, and adds up.
void Measure(CodecId codec, std::span<const float> values, Squares& squares) {
  for (const ChunkSpan& span : Tensor(std::ssize(values)).Plan(codec)) {
    const std::span<const float> part = values.subspan(span.first_value(), span.values);
    const auto chunk = codecs::EncodeChunk(span, part, {});
    CHECK(chunk.ok());
    std::vector<float> decoded(part.size());
    codecs::ChunkView::Parse(*chunk)->Decode(span.first_unit, decoded);
    for (size_t i = 0; i < part.size(); ++i) {
      squares.error += std::pow(static_cast<double>(part[i]) - decoded[i], 2);
      squares.value += std::pow(static_cast<double>(part[i]), 2);
    }
    squares.bytes += std::ssize(*chunk);
    squares.compressed_bytes += std::ssize(codecs::CompressChunk(*chunk));
    squares.values += span.values;
  }
}

double AccumulatedError(CodecId codec, const Distribution& distribution, uint64_t seed) {
  const Tensor tensor(kFeedbackValues);
  const std::vector<float> signal = Draw(distribution, kFeedbackValues, seed);
  core::BufferPool pool;
  codecs::ErrorFeedback feedback(tensor.map.fragment(0).padded_values(), 1.0f, &pool);
  std::vector<double> difference(kFeedbackValues), inputs(kFeedbackValues);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> input = Draw(distribution, kFeedbackValues, core::HashCombine(seed, round + 1));
    for (int64_t i = 0; i < kFeedbackValues; ++i) input[i] += signal[i];
    const auto chunks = feedback.Encode(tensor.Plan(codec), input);
    CHECK(chunks.ok());
    feedback.Admit();
    for (const core::Bytes& chunk : *chunks) {
      const auto view = codecs::ChunkView::Parse(chunk);
      std::vector<float> decoded(view->span().values);
      view->Decode(view->span().first_unit, decoded);
      for (size_t i = 0; i < decoded.size(); ++i) difference[view->span().first_value() + i] -= decoded[i];
    }
    for (int64_t i = 0; i < kFeedbackValues; ++i) {
      difference[i] += input[i];
      inputs[i] += input[i];
    }
  }
  double error = 0, value = 0;
  for (int64_t i = 0; i < kFeedbackValues; ++i) {
    error += difference[i] * difference[i];
    value += inputs[i] * inputs[i];
  }
  return std::sqrt(error / value);
}

void PrintErrors(CodecId codec, const char* distribution, const Squares& squares, double error, double accumulated) {
  bench::Json row = {{"codec", core::CodecName(codec)},
                     {"distribution", distribution},
                     {"bits_per_value", 8.0 * squares.bytes / squares.values},
                     {"with_zstd", 8.0 * squares.compressed_bytes / squares.values},
                     {"error", error}};
  if (accumulated >= 0) row["accumulated"] = accumulated;
  bench::Print(row);
}

void MeasureDistribution(const Distribution& distribution) {
  std::vector<std::vector<float>> inputs;
  for (int seed = 1; seed <= kSeeds; ++seed) inputs.push_back(Draw(distribution, kValues, seed));
  for (CodecId codec : core::kAllCodecs) {
    std::vector<double> errors;
    Squares squares;
    for (const std::vector<float>& input : inputs) {
      squares = {};
      Measure(codec, input, squares);
      errors.push_back(squares.error / squares.value);
    }
    PrintErrors(codec, distribution.name, squares, bench::Median(errors), AccumulatedError(codec, distribution, 1));
  }
}

// INVALID_ARGUMENT or NOT_FOUND of a file that is no safetensors file.
absl::Status MeasureRecorded(const std::string& folder) {
  std::vector<std::vector<float>> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(entry.path()));
    for (const auto& tensor : file.tensors()) {
      inputs.emplace_back(tensor.bytes / sizeof(float));
      RETURN_IF_ERROR(file.Read(tensor.name, inputs.back()));
    }
  }
  for (CodecId codec : core::kAllCodecs) {
    Squares squares;
    for (const std::vector<float>& input : inputs) Measure(codec, input, squares);
    PrintErrors(codec, "recorded", squares, squares.error / squares.value, -1);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway

namespace causeway::bench {

absl::Status CodecErrors() {
  const std::string gradients = Given<std::string>("gradients");
  if (!gradients.empty()) return MeasureRecorded(gradients);
  for (const Distribution& distribution : kDistributions) MeasureDistribution(distribution);
  return absl::OkStatus();
}

}  // namespace causeway::bench
