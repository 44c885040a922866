// Losses over time as a drawing for an HTML page: SVG, without scripts or fonts of its own.
//
//     5.3 ┤╲
//         │ ╲__ ______ eu            the y axis: nats per token; the x axis: minutes since the first point
//     1.6 ┤    ‾─────── held out     the last series is drawn thicker where it is `emphasized`
//         └┬────┬────┬─
#pragma once

#include <string>
#include <vector>

namespace causeway::ctl {

struct LossSeries {
  std::string name;
  struct Point {
    double unix_ms = 0;
    double loss = 0;
  };
  std::vector<Point> points;  // points in the order of their times
  bool emphasized = false;
};

// Empty where no series has a point. Names are escaped. Colors are the page's variables --hue-0 (emphasized) to
// --hue-7.
std::string LossChartSvg(const std::vector<LossSeries>& series);

// Text for HTML: & < > " ' as entities.
std::string HtmlText(std::string_view text);

}  // namespace causeway::ctl
