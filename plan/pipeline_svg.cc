#include "plan/pipeline_svg.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace causeway::plan {
namespace {

constexpr double kWidth = 1200, kLeft = 70, kTop = 34, kRow = 30, kBar = 24, kBetween = 14, kLegend = 40;
constexpr double kLeastText = 20;  // a bar's width, for its words

const char* ColorOf(const ScheduleStep& step) {
  if (step.second) return "#8a63c9";
  const bool second = step.first.copy > 0;
  switch (step.first.kind) {
    case OperationKind::kForward: return second ? "#2f6db3" : "#6aa5e8";
    case OperationKind::kBackward:
    case OperationKind::kInput: return second ? "#c76a14" : "#f0a04b";
    case OperationKind::kWeight: return second ? "#3d8a4e" : "#7cc48a";
    default: return "none";
  }
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The rows of devices, from `top` on.
void AppendRows(const PipelineSchedule& schedule, const PlayedPipeline& played, double scale, double top,
                const char* label, std::string& svg) {
  for (size_t d = 0; d < schedule.lists.size(); ++d) {
    const double y = top + kRow * static_cast<double>(d);
    absl::StrAppendFormat(&svg, "<text x=\"8\" y=\"%.0f\">%s %d</text>\n", y + 16, label, d);
    absl::StrAppendFormat(&svg, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"#eeeeee\"/>\n",
                          kLeft, y, scale * static_cast<double>(played.makespan), kBar);
    for (size_t i = 0; i < schedule.lists[d].size(); ++i) {
      const ScheduleStep& step = schedule.lists[d][i];
      if (!IsCompute(step.first.kind)) continue;
      const PlayedStep& at = played.steps[d][i];
      const double x = kLeft + scale * static_cast<double>(at.start);
      const double width = scale * static_cast<double>(at.end - at.start);
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"%s\" stroke=\"white\"/>",
                            x, y, width, kBar, ColorOf(step));
      if (width >= kLeastText) {
        const std::string words = step.second ? absl::StrCat(step.first.micro_batch, ";", step.second->micro_batch)
                                              : absl::StrCat(step.first.micro_batch);
        absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>", x + width / 2,
                              y + 16, words);
      }
      absl::StrAppend(&svg, "\n");
    }
  }
}

}  // namespace

std::string PipelineSvg(const PipelineSchedule& schedule, const PlayedPipeline& played, const std::string& title,
                        const PlayedPipeline* measured) {
  const double rows = kRow * schedule.devices;
  const double height = kTop + rows + (measured == nullptr ? 0 : kBetween + rows) + kLegend;
  const int64_t longest = std::max(played.makespan, measured == nullptr ? 1 : measured->makespan);
  const double scale = (kWidth - kLeft - 10) / static_cast<double>(std::max<int64_t>(1, longest));
  std::string words = Escaped(title);
  if (measured != nullptr) {
    absl::StrAppendFormat(&words, ": %.2f ms predicted, above, %.2f ms measured, below",
                          1e-6 * static_cast<double>(played.makespan), 1e-6 * static_cast<double>(measured->makespan));
  }
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"20\" font-size=\"14\">%s</text>\n",
      kWidth, height, words);
  AppendRows(schedule, played, scale, kTop, "device", svg);
  if (measured != nullptr) AppendRows(schedule, *measured, scale, kTop + rows + kBetween, "measured", svg);
  constexpr std::pair<const char*, const char*> kLegendParts[] = {{"#6aa5e8", "F"},
                                                                  {"#f0a04b", "B or I"},
                                                                  {"#7cc48a", "W"},
                                                                  {"#8a63c9", "F and B at once"},
                                                                  {"#2f6db3", "darker: the second copy"}};
  double x = kLeft;
  const double y = height - kLegend + 12;
  for (const auto& [color, words] : kLegendParts) {
    absl::StrAppendFormat(
        &svg,
        "<rect x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\" fill=\"%s\"/><text x=\"%.0f\" y=\"%.0f\">"
        "%s</text>\n",
        x, y, color, x + 20, y + 11, words);
    x += 60 + 7.0 * static_cast<double>(std::string(words).size());
  }
  absl::StrAppend(&svg, "</svg>\n");
  return svg;
}

}  // namespace causeway::plan
