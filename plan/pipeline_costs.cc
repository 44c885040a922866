#include "plan/pipeline_costs.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/json_text.h"

namespace causeway::plan {
namespace {

constexpr double kMostCost = 1e15;             // bytes, parameters
constexpr double kMostPartMicroseconds = 1e9;  // of a part
// All parts together; times the most micro-batches (pipeline_file.cc) that is within 64 bits.
constexpr int64_t kMostNanoseconds = 10'000'000'000'000;
constexpr double kMostCount = 1e6;
constexpr double kMostLayers = 2000;  // as in run.yaml

int64_t TotalOf(const StageTimes& times) { return times.forward + times.input + times.weight; }
int64_t PairOf(const StageTimes& times) { return times.pair > 0 ? times.pair : TotalOf(times); }

int LayersOf(const StageLayers& stage) { return stage.last - stage.first + 1; }

// Reads numbers of one file, and keeps the first complaint.
class CostsReader {
 public:
  CostsReader(const std::string& text, const std::string& name) : name_(name) {
    absl::StatusOr<nlohmann::json> json = core::ParseJson<nlohmann::json>(text, name);
    if (!json.ok()) {
      status_ = json.status();
    } else if (!json->is_object()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(name, ": expected a JSON object, got ", json->type_name()));
    } else {
      json_ = *std::move(json);
    }
  }

  const absl::Status& status() const { return status_; }

  // `otherwise` is of a key that may be left out.
  double Number(const std::string& key, double least, double most, std::optional<double> otherwise = {}) {
    return NumberOf(json_, key, "", least, most, otherwise);
  }

  StageTimes Part(const std::string& part) {
    static const nlohmann::json kNone;
    const auto found = json_.find(part);
    const nlohmann::json& object = found == json_.end() ? kNone : *found;
    const auto ns = [&](const char* key, std::optional<double> otherwise) {
      return std::llround(1e3 * NumberOf(object, key, part + ".", 0, kMostPartMicroseconds, otherwise));
    };
    return {.forward = ns("forward_us", {}),
            .input = ns("input_us", {}),
            .weight = ns("weight_us", {}),
            .pair = ns("pair_us", 0)};
  }

 private:
  double NumberOf(const nlohmann::json& object, const std::string& key, const std::string& path, double least,
                  double most, std::optional<double> otherwise) {
    const auto value = object.find(key);
    const bool there = value != object.end();
    if (!there && otherwise) return *otherwise;
    if (there && value->is_number() && value->get<double>() >= least && value->get<double>() <= most) {
      return value->get<double>();
    }
    if (status_.ok()) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat(name_, ": ", path, key, ": expected a number from ", least, " to ",
                                                  most, ", got ", there ? core::ShownJson(*value) : "none"));
    }
    return least;
  }

  nlohmann::json json_ = nlohmann::json::object();
  const std::string name_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<PipelineCosts> ReadPipelineCosts(const std::string& text, const std::string& name) {
  CostsReader reader(text, name);
  RETURN_IF_ERROR(reader.status());
  PipelineCosts costs{.layers = static_cast<int>(reader.Number("layers", 1, kMostLayers)),
                      .layer = reader.Part("layer"),
                      .embedding = reader.Part("embedding"),
                      .head = reader.Part("head"),
                      .layer_bytes = reader.Number("layer_bytes", 0, kMostCost),
                      .message_bytes = reader.Number("message_bytes", 0, kMostCost),
                      .sequences = static_cast<int>(reader.Number("sequences", 1, kMostCount, 0)),
                      .heads = static_cast<int>(reader.Number("heads", 1, kMostCount, 0)),
                      .layer_parameters = reader.Number("layer_parameters", 0, kMostCost, 0),
                      .embedding_parameters = reader.Number("embedding_parameters", 0, kMostCost, 0),
                      .head_parameters = reader.Number("head_parameters", 0, kMostCost, 0),
                      .parameter_bytes = reader.Number("parameter_bytes", 0, kMostCost, 16),
                      .gradient_bytes = reader.Number("gradient_bytes", 0, kMostCost, 4)};
  RETURN_IF_ERROR(reader.status());
  const int64_t all =
      TotalOf(TimesOfStage(costs, {.first = 0, .last = costs.layers - 1, .embedding = true, .head = true}));
  if (all > kMostNanoseconds) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected a micro-batch through all layers within ",
                                                   kMostNanoseconds / 1'000'000'000, " s, got ", all / 1'000'000'000));
  }
  return costs;
}

StageTimes TimesOfStage(const PipelineCosts& costs, const StageLayers& stage) {
  StageTimes times;
  const auto add = [&](int64_t count, const StageTimes& part) {
    times.forward += count * part.forward;
    times.input += count * part.input;
    times.weight += count * part.weight;
    times.pair += count * PairOf(part);
  };
  add(LayersOf(stage), costs.layer);
  if (stage.embedding) add(1, costs.embedding);
  if (stage.head) add(1, costs.head);
  return times;
}

double ParametersOfStage(const PipelineCosts& costs, const StageLayers& stage) {
  return LayersOf(stage) * costs.layer_parameters + (stage.embedding ? costs.embedding_parameters : 0) +
         (stage.head ? costs.head_parameters : 0);
}

absl::StatusOr<std::vector<StageLayers>> SplitLayers(const PipelineCosts& costs, int stages) {
  const int layers = costs.layers;
  if (stages < 1 || layers < stages) {
    return absl::InvalidArgumentError(absl::StrCat("expected a layer for each of ", stages, " stages, got ", layers));
  }
  const int64_t one = TotalOf(costs.layer);
  const auto cost = [&](int stage, int count) {
    return count * one + (stage == 0 ? TotalOf(costs.embedding) : 0) + (stage + 1 == stages ? TotalOf(costs.head) : 0);
  };
  // best[s][l]: the longest of the first s stages, which have l layers.
  const int64_t never = std::numeric_limits<int64_t>::max();
  std::vector best(static_cast<size_t>(stages) + 1, std::vector<int64_t>(static_cast<size_t>(layers) + 1, never));
  std::vector last(static_cast<size_t>(stages) + 1, std::vector<int>(static_cast<size_t>(layers) + 1));
  best[0][0] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int l = s; l <= layers; ++l) {
      for (int count = 1; count <= l; ++count) {
        const int64_t before = best[static_cast<size_t>(s) - 1][static_cast<size_t>(l - count)];
        if (cost(s - 1, count) >= best[static_cast<size_t>(s)][static_cast<size_t>(l)]) break;
        if (before == never) continue;
        const int64_t longest = std::max(before, cost(s - 1, count));
        if (longest >= best[static_cast<size_t>(s)][static_cast<size_t>(l)]) continue;
        best[static_cast<size_t>(s)][static_cast<size_t>(l)] = longest;
        last[static_cast<size_t>(s)][static_cast<size_t>(l)] = count;
      }
    }
  }
  std::vector<StageLayers> split(static_cast<size_t>(stages));
  for (int s = stages, l = layers; s >= 1; --s) {
    const int count = last[static_cast<size_t>(s)][static_cast<size_t>(l)];
    split[static_cast<size_t>(s) - 1] = {.first = l - count, .last = l - 1, .embedding = s == 1, .head = s == stages};
    l -= count;
  }
  return split;
}

}  // namespace causeway::plan
