#include "ctl/loss_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/text.h"

namespace causeway::ctl {
namespace {

// In units of the drawing, which the page scales to its width.
constexpr double kWidth = 960, kHeight = 300, kLeft = 48, kRight = 130, kTop = 12, kBottom = 30;
constexpr double kLabelHeight = 16;
constexpr size_t kMostLabels = 16;  // more would leave the drawing
constexpr int kHues = 7;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// 1, 2 or 5 times a power of ten, so that about `count` of them fill the range.
double NiceStep(double span, int count) {
  const double raw = span / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

class Chart {
 public:
  Chart(Range time_ms, Range loss) : time_(time_ms), loss_(loss) {
    if (loss_.high - loss_.low < 1e-6) loss_ = {loss_.low - 0.05, loss_.high + 0.05};
    if (time_.high - time_.low < 1) time_.high = time_.low + 1;
  }

  double X(double unix_ms) const {
    return kLeft + (unix_ms - time_.low) / (time_.high - time_.low) * (kWidth - kLeft - kRight);
  }
  double Y(double loss) const {
    return kTop + (loss_.high - loss) / (loss_.high - loss_.low) * (kHeight - kTop - kBottom);
  }

  std::string Axes() const {
    std::string svg;
    const double step = NiceStep(loss_.high - loss_.low, 5);
    const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
    for (double tick = std::ceil(loss_.low / step) * step; tick <= loss_.high; tick += step) {
      absl::StrAppend(&svg,
                      absl::StrFormat("<line class='tick' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>"
                                      "<text x='%.1f' y='%.1f' text-anchor='end'>%.*f</text>",
                                      kLeft, kWidth - kRight, Y(tick), Y(tick), kLeft - 6, Y(tick) + 4, digits, tick));
    }
    return svg + TimeAxis();
  }

  std::string Line(const LossSeries& one, int hue) const {
    std::string path;
    for (const LossSeries::Point& point : one.points) {
      absl::StrAppend(&path, path.empty() ? "M" : "L", absl::StrFormat("%.1f %.1f", X(point.unix_ms), Y(point.loss)));
    }
    if (one.points.size() == 1) path += "h2";
    return absl::StrFormat("<path d='%s' fill='none' stroke='var(--hue-%d)' stroke-width='%s'><title>%s</title></path>",
                           path, hue, one.emphasized ? "3" : "1.5", HtmlText(one.name));
  }

  std::string Label(const LossSeries& one, int hue, double y) const {
    return absl::StrFormat("<text x='%.1f' y='%.1f' style='fill:var(--hue-%d)'>%s %.3f</text>", kWidth - kRight + 8,
                           y + 4, hue, HtmlText(one.name), one.points.back().loss);
  }

 private:
  std::string TimeAxis() const {
    const double span_s = (time_.high - time_.low) / 1e3;
    const bool hours = span_s > 3 * 3600, minutes = span_s > 180;
    const double unit_s = hours ? 3600 : minutes ? 60 : 1;
    const char* const name = hours ? "h" : minutes ? "min" : "s";
    const double step = NiceStep(span_s / unit_s, 6);
    std::string svg;
    for (double tick = 0; tick <= span_s / unit_s; tick += step) {
      absl::StrAppend(&svg, absl::StrFormat("<text x='%.1f' y='%.1f' text-anchor='middle'>%g %s</text>",
                                            X(time_.low + tick * unit_s * 1e3), kHeight - 8, tick, name));
    }
    return svg;
  }

  Range time_, loss_;
};

}  // namespace

std::string HtmlText(std::string_view text) {
  std::string out;
  for (const char c : core::Printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string LossChartSvg(const std::vector<LossSeries>& series) {
  Range time, loss;
  std::vector<const LossSeries*> drawn;
  for (const LossSeries& one : series) {
    if (one.points.empty()) continue;
    drawn.push_back(&one);
    for (const LossSeries::Point& point : one.points) {
      time.Take(point.unix_ms);
      loss.Take(point.loss);
    }
  }
  if (drawn.empty()) return "";
  const Chart chart(time, loss);
  std::string svg = absl::StrFormat("<svg viewBox='0 0 %g %g' role='img' aria-label='loss over time'>%s", kWidth,
                                    kHeight, chart.Axes());
  // Labels are in the order of the curves' ends and never overlap: each moves down as far as necessary, and then all
  // move up by any excess below the drawing.
  std::ranges::stable_sort(drawn, std::ranges::greater{},
                           [](const LossSeries* one) { return one->points.back().loss; });
  const size_t labels = std::min(drawn.size(), kMostLabels);
  std::vector<double> y(labels);
  for (size_t i = 0; i < labels; ++i) {
    const double end = chart.Y(drawn[i]->points.back().loss);
    y[i] = i == 0 ? end : std::max(end, y[i - 1] + kLabelHeight);
  }
  double floor = kHeight - kBottom;
  for (size_t i = labels; i-- > 0; floor = y[i] - kLabelHeight) y[i] = std::min(y[i], floor);
  int hue = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const int color = drawn[i]->emphasized ? 0 : 1 + hue++ % kHues;
    absl::StrAppend(&svg, chart.Line(*drawn[i], color));
    if (i < labels) absl::StrAppend(&svg, chart.Label(*drawn[i], color, y[i]));
  }
  return svg + "</svg>";
}

}  // namespace causeway::ctl
