#include "worker/optimizer/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::worker {

double LearningRate(const core::InnerConfig& config, double end, double place) {
  const auto warmup = static_cast<double>(config.warmup_steps);
  if (warmup > 0 && place <= warmup) return config.lr * place / warmup;
  if (config.schedule == core::InnerSchedule::kConstant || end <= warmup) return config.lr;
  const double progress = (place - warmup) / (end - warmup);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return config.lr * (0.1 + 0.9 * cosine);
}

void RateSchedule::Change(const core::RunConfig& config) {
  inner_ = config.inner;
  steps_ = config.steps;
  tokens_ = static_cast<double>(config.tokens);
  tokens_of_step_ = static_cast<double>(config.TokensOfAStep());
}

double RateSchedule::At(core::Step t) const {
  if (tokens_ == 0) return LearningRate(inner_, static_cast<double>(steps_), static_cast<double>(t));
  return LearningRate(inner_, tokens_ / tokens_of_step_, static_cast<double>(run_tokens_) / tokens_of_step_);
}
namespace {

const std::string kFirstMoment = "first_moment.";
const std::string kSecondMoment = "second_moment.";

// In double, where no sum of float squares overflows. The order of the sum is fixed, so that a run repeats itself on
// the same machine.
CAUSEWAY_MULTIVERSION
double SumOfSquares(const float* values, size_t size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < size; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

}  // namespace

std::vector<offload::DecaySegment> DecaySegmentsOf(const core::Manifest& manifest) {
  std::vector<offload::DecaySegment> segments;
  for (const core::TensorSpec& spec : manifest) segments.push_back({spec.NumValues(), Decays(spec)});
  return segments;
}

bool Decays(const core::TensorSpec& spec) { return spec.shape.size() >= 2; }

float ClipFactor(double clip, double sum_of_squares) {
  const double norm = std::sqrt(sum_of_squares);
  return clip == 0 || norm <= clip ? 1.0f : static_cast<float>(clip / norm);
}

absl::StatusOr<int64_t> ReadStepsTaken(const formats::SafetensorsFile& file) {
  int64_t taken = 0;
  const auto steps = file.metadata().find(kStepsTaken);
  if (steps != file.metadata().end() && absl::SimpleAtoi(steps->second, &taken)) return taken;
  return absl::DataLossError(absl::StrCat(file.path(), ": its metadata has no ", kStepsTaken));
}

void AppendMoments(const core::Manifest& manifest, const TensorValues& first, const TensorValues& second,
                   std::vector<formats::TensorData>& tensors) {
  for (size_t i = 0; i < manifest.size(); ++i) {
    const auto index = static_cast<int>(i);
    tensors.push_back({kFirstMoment + manifest[i].name, manifest[i].shape, first[index]});
    tensors.push_back({kSecondMoment + manifest[i].name, manifest[i].shape, second[index]});
  }
}

absl::Status ReadMoments(const core::Manifest& manifest, const formats::SafetensorsFile& file, TensorValues& first,
                         TensorValues& second, const std::vector<int64_t>& part_firsts) {
  for (size_t i = 0; i < manifest.size(); ++i) {
    const auto index = static_cast<int>(i);
    for (const auto& [kind, moments] : {std::pair(kFirstMoment, &first), std::pair(kSecondMoment, &second)}) {
      const std::string name = kind + manifest[i].name;
      if (part_firsts.empty()) {
        RETURN_IF_ERROR(file.Read(name, (*moments)[index]));
      } else if (part_firsts[i] >= 0) {
        RETURN_IF_ERROR(file.ReadPart(name, part_firsts[i], (*moments)[index]));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<double> SquaresOf(const TensorValues& gradients) {
  std::vector<double> squares;
  for (int i = 0; i < gradients.size(); ++i) {
    squares.push_back(SumOfSquares(gradients[i].data(), gradients[i].size()));
  }
  return squares;
}

absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t) {
  const auto bad = std::find_if(gradient.begin(), gradient.end(), [](float g) { return !std::isfinite(g); });
  if (bad == gradient.end()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("gradient of %s is %f at index %d in step %d", spec.name, *bad, bad - gradient.begin(), t));
}

}  // namespace causeway::worker
