#include "worker/model/stage_profile.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "core/multiversion.h"
#include "core/random.h"
#include "formats/run_yaml.h"
#include "worker/model/llama_block.h"
#include "worker/model/llama_layers.h"

namespace causeway::worker {
namespace {

constexpr int kPasses = 5;

// Amounts a second.
double BestRate(double amount, const std::function<void()>& work) {
  work();
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    work();
    best = std::max(best, amount / core::SystemClock().SecondsSince(begin));
  }
  return best;
}

CAUSEWAY_MULTIVERSION
float Sum(const float* values, size_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < size; ++i) sum += values[i];
  return sum;
}

double ReadRate(int64_t bytes) {
  const std::vector<float> values(static_cast<size_t>(bytes) / sizeof(float), 1.0f);
  const int64_t times = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  volatile float sink = 0;
  return BestRate(static_cast<double>(bytes * times), [&] {
    for (int64_t i = 0; i < times; ++i) sink = sink + Sum(values.data(), values.size());
  });
}

constexpr int64_t kValueBytes = sizeof(float);

std::vector<float> Values(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(0.04 * core::UnitInterval(core::HashCombine(seed, i)) - 0.02);
  }
  return values;
}

// The best of several passes, in microseconds.
double Microseconds(int passes, const std::function<void()>& work) {
  work();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < passes; ++i) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    work();
    best = std::min(best, core::SystemClock().SecondsSince(begin));
  }
  return 1e6 * best;
}

struct PartTimes {
  double forward = 0, input = 0, weight = 0;

  std::string Json() const {
    return absl::StrFormat(R"({"forward_us": %.1f, "input_us": %.1f, "weight_us": %.1f})", forward, input, weight);
  }
};

// A block's weights and their gradients, in the order of the manifest.
struct Weights {
  Weights(const core::LlamaConfig& config, uint64_t seed) {
    const core::Manifest manifest = core::LlamaManifest(config);
    for (int i = 0; i < kBlockTensors; ++i) {
      const int64_t count = manifest[static_cast<size_t>(1 + i)].NumValues();
      values.push_back(Values(count, seed + static_cast<uint64_t>(i)));
      gradients.emplace_back(static_cast<size_t>(count));
    }
    for (auto& tensor : values) views.emplace_back(tensor);
    for (auto& tensor : gradients) gradient_views.emplace_back(tensor);
  }

  std::vector<std::vector<float>> values, gradients;
  std::vector<std::span<const float>> views;
  std::vector<std::span<float>> gradient_views;
};

PartTimes ProfileBlock(const core::LlamaConfig& config, const LlamaShape& shape, int passes) {
  const Rope rope(shape.attention.sequence,
                  RopeFrequencies(shape.attention.head_size, config.rope_theta, config.rope_scaling));
  Weights weights(config, 1);
  BlockActivations activations(shape);
  BlockGradients gradients(shape);
  activations.input = Values(std::ssize(activations.input), 100);
  const std::vector<float> doutput = Values(std::ssize(activations.input), 101);
  std::vector<float> output(activations.input.size()), dinput(output.size());
  return {
      .forward = Microseconds(passes, [&] { BlockForward(shape, rope, weights.views, activations, output.data()); }),
      .input = Microseconds(passes,
                            [&] {
                              BlockBackwardInput(shape, rope, weights.views, activations, doutput.data(), gradients,
                                                 dinput.data());
                            }),
      .weight = Microseconds(
          passes, [&] { BlockBackwardWeight(shape, activations, doutput.data(), gradients, weights.gradient_views); })};
}

PartTimes ProfileEmbedding(const core::LlamaConfig& config, const std::vector<int32_t>& tokens, int passes) {
  const int64_t hidden = config.hidden_size, rows = std::ssize(tokens);
  const std::vector<float> w = Values(config.vocab_size * hidden, 200);
  std::vector<float> y(static_cast<size_t>(rows * hidden)), dw(w.size());
  return {.forward = Microseconds(passes, [&] { Embedding(tokens, hidden, w.data(), y.data()); }),
          .weight = Microseconds(passes, [&] { EmbeddingBackwardWeight(tokens, hidden, y.data(), dw.data()); })};
}

// The last norm, the projection to the vocabulary and the loss.
PartTimes ProfileHead(const core::LlamaConfig& config, const LlamaShape& shape, const std::vector<int32_t>& targets,
                      int passes) {
  const int64_t rows = shape.rows(), hidden = shape.hidden, vocab = config.vocab_size;
  const std::vector<float> x = Values(rows * hidden, 300), norm = Values(hidden, 301), w = Values(vocab * hidden, 302);
  std::vector<float> normed(x.size()), scale(static_cast<size_t>(rows)), dnormed(x.size()), dx(x.size());
  std::vector<float> logits(static_cast<size_t>(rows * vocab)), dw(w.size()), dnorm(norm.size());
  return {.forward = Microseconds(passes,
                                  [&] {
                                    RmsNorm(rows, hidden, shape.norm_epsilon, x.data(), norm.data(), normed.data(),
                                            scale.data());
                                    Linear(rows, hidden, vocab, normed.data(), w.data(), logits.data());
                                    CrossEntropy(targets, vocab, logits.data());
                                  }),
          .input = Microseconds(passes,
                                [&] {
                                  CrossEntropyBackwardInput(targets, vocab, 1, logits.data());
                                  LinearBackwardInput(rows, hidden, vocab, logits.data(), w.data(), dnormed.data());
                                  RmsNormBackwardInputAdd(rows, hidden, dnormed.data(), x.data(), norm.data(),
                                                          scale.data(), dx.data());
                                }),
          .weight = Microseconds(passes, [&] {
            LinearBackwardWeight(rows, hidden, vocab, logits.data(), normed.data(), dw.data());
            RmsNormBackwardWeight(rows, hidden, dnormed.data(), x.data(), scale.data(), dnorm.data());
          })};
}

// The bytes that a block keeps of a micro-batch until its weight gradient.
int64_t BytesOf(const BlockActivations& a) {
  size_t values = 0;
  for (const std::vector<float>* part :
       {&a.input, &a.normed_input, &a.q, &a.attended, &a.middle, &a.normed_middle, &a.k, &a.v, &a.probabilities,
        &a.gate, &a.up, &a.activated, &a.input_scale, &a.middle_scale}) {
    values += part->size();
  }
  return static_cast<int64_t>(values * sizeof(float));
}

double LayerParameters(const core::LlamaConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config);
  double all = 0;
  for (int i = 0; i < kBlockTensors; ++i) all += static_cast<double>(manifest[static_cast<size_t>(1 + i)].NumValues());
  return all;
}

}  // namespace

MachineSpeeds MeasureMachine() {
  constexpr int64_t kSide = 512;
  const std::vector<float> x(kSide * kSide, 0.5f), w(kSide * kSide, 0.25f);
  std::vector<float> y(kSide * kSide);
  return {.flops =
              BestRate(2.0 * kSide * kSide * kSide, [&] { Linear(kSide, kSide, kSide, x.data(), w.data(), y.data()); }),
          .l2 = ReadRate(int64_t{256} << 10),
          .l3 = ReadRate(int64_t{8} << 20),
          .dram = ReadRate(int64_t{256} << 20)};
}

absl::StatusOr<std::string> ProfileStages(const core::RunConfig& config, int passes) {
  if (config.model_kind != core::ModelKind::kLlama) {
    return absl::InvalidArgumentError("model.kind: expected llama, whose stages can be profiled, got another");
  }
  const int64_t batch = std::max<int64_t>(1, config.inner.batch_size / config.inner.micro_batches);
  const LlamaShape shape(config.llama, batch, config.sequence_length());
  std::vector<int32_t> tokens(static_cast<size_t>(shape.rows()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(core::SplitMix64(i) % static_cast<uint64_t>(config.llama.vocab_size));
  }
  const int64_t table = config.llama.vocab_size * config.llama.hidden_size;
  return absl::StrFormat(
      "{\"layers\": %d, \"layer\": %s,\n \"embedding\": %s,\n \"head\": %s,\n \"layer_bytes\": %d, "
      "\"message_bytes\": %d, \"sequences\": %d, \"heads\": %d,\n \"layer_parameters\": %.0f, "
      "\"embedding_parameters\": %d, \"head_parameters\": %d, \"parameter_bytes\": %d, \"gradient_bytes\": %d}",
      config.llama.num_hidden_layers, ProfileBlock(config.llama, shape, passes).Json(),
      ProfileEmbedding(config.llama, tokens, passes).Json(), ProfileHead(config.llama, shape, tokens, passes).Json(),
      BytesOf(BlockActivations(shape)), shape.rows() * shape.hidden * kValueBytes, batch,
      config.llama.num_key_value_heads, LayerParameters(config.llama), table, table + config.llama.hidden_size,
      core::HasMoments(config.inner.optimizer) ? 4 * kValueBytes : 2 * kValueBytes, kValueBytes);
}

absl::StatusOr<std::string> ProfileRunYaml(const std::string& path) {
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ReadRunYaml(path));
  return ProfileStages(config);
}

}  // namespace causeway::worker
