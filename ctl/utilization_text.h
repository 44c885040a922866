// Table 4 of arXiv 2501.18512 as plan/utilization_model.h computes it, for people and for scripts.
#pragma once

#include <string>

namespace causeway::ctl {

std::string Table4Text();  // Gbit/s as the paper prints them; "more" beyond its grid
std::string Table4Json();  // a line for each row; null beyond the grid

}  // namespace causeway::ctl
