// Shared by the tests of the inner loop: random values, gradients by differences, a text to train on.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/run_config.h"
#include "gtest/gtest.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::worker {

inline std::vector<float> RandomValues(uint64_t seed, size_t size, double scale = 1.0) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>(scale * (2 * core::UnitInterval(core::HashCombine(seed, i)) - 1));
  }
  return values;
}

inline double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// df/dx_i by central differences of fourth order: their error falls with h⁴, so that h can be large enough for float32
// noise (about 1e-7 / h) not to show.
inline double Difference(std::span<float> x, size_t i, const std::function<double()>& f, double h = 0.02) {
  const float kept = x[i];
  const auto at = [&](double shift) {
    x[i] = static_cast<float>(kept + shift);
    return f();
  };
  const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  x[i] = kept;
  return slope;
}

// Holds `gradient` against differences of f at up to 60 of its values, spread evenly.
inline void ExpectGradient(const char* what, std::span<const float> gradient, std::span<float> x,
                           const std::function<double()>& f, double tolerance = 2e-4) {
  ASSERT_EQ(gradient.size(), x.size());
  double size = 0;
  for (size_t i = 0; i < x.size(); i += (x.size() + 59) / 60) {
    EXPECT_NEAR(gradient[i], Difference(x, i, f), tolerance) << what << " " << i;
    size += std::fabs(gradient[i]);
  }
  EXPECT_GT(size, 10 * tolerance) << what << " is too small to show anything";
}

// English enough for a model to learn from: sentences of words drawn from a short list.
inline std::string SmallText(size_t bytes) {
  static const char* const kWords[] = {"the",  "river",  "carries", "water", "to",   "sea",   "and",
                                       "rain", "brings", "it",      "back",  "over", "hills", "again"};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    text += kWords[core::SplitMix64(i) % std::size(kWords)];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

inline std::string WriteTemporary(const std::string& name, const std::string& content) {
  return FolderOfProcess().Write(name, content);
}

inline core::LlamaConfig TinyLlama() {
  return {.hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .vocab_size = 256,
          .max_position_embeddings = 12};
}

inline core::RunConfig TinyRun() {
  core::RunConfig config;
  config.run_id = "test";
  config.llama = TinyLlama();
  config.inner.lr = 1e-2;
  config.inner.warmup_steps = 5;
  config.inner.batch_size = 8;
  return config;
}

}  // namespace causeway::worker
