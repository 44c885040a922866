#include "ctl/utilization_text.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plan/utilization_model.h"

namespace causeway::ctl {
namespace {

using Json = nlohmann::ordered_json;

// Calls row(model, method, the five bandwidths) for each row of the table.
template <typename Row>
void ForTable4(const Row& row) {
  for (const plan::UtilizationModelSize& model : plan::kTable4Models) {
    for (plan::ReductionMethod method : plan::kAllReductionMethods) {
      std::vector<std::optional<double>> gbit;
      for (double utilization : plan::kTable4Utilizations) {
        gbit.push_back(plan::LeastBandwidthGbit({model.parameters, model.layers, model.step_s, method}, utilization));
      }
      row(model, plan::ReductionMethodName(method), gbit);
    }
  }
}

}  // namespace

std::string Table4Text() {
  std::string text = absl::StrFormat(
      "Gbit/s to reach a compute utilization: arXiv 2501.18512, Table 4 (H = 100, 3 layers a fragment, overlap of 1 "
      "step).\n\n%-6s%8s%8s  %-24s",
      "model", "layers", "step s", "method");
  for (double utilization : plan::kTable4Utilizations) absl::StrAppendFormat(&text, "%7.0f%%", 100 * utilization);
  absl::StrAppend(&text, "\n");
  ForTable4(
      [&](const plan::UtilizationModelSize& model, const char* method, const std::vector<std::optional<double>>& gbit) {
        absl::StrAppendFormat(&text, "%-6s%8d%8.1f  %-24s", model.name, model.layers, model.step_s, method);
        for (const auto& cell : gbit)
          absl::StrAppendFormat(&text, "%8s", cell.has_value() ? plan::PaperGbit(*cell) : "more");
        absl::StrAppend(&text, "\n");
      });
  return text;
}

std::string Table4Json() {
  std::string text;
  ForTable4(
      [&](const plan::UtilizationModelSize& model, const char* method, const std::vector<std::optional<double>>& gbit) {
        Json json = {{"model", model.name}, {"method", method}};
        for (size_t i = 0; i < gbit.size(); ++i) {
          const std::string key = absl::StrFormat("gbit_at_%.0f", 100 * plan::kTable4Utilizations[i]);
          json[key] = gbit[i].has_value() ? Json(*gbit[i]) : Json(nullptr);
        }
        absl::StrAppend(&text, json.dump(), "\n");
      });
  return text;
}

}  // namespace causeway::ctl
