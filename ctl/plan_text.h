// A plan for people and for scripts. Sizes are decimal: MB is 10⁶ bytes, Mbit 10⁶ bits.
#pragma once

#include <string>
#include <vector>

#include "ctl/plan.h"

namespace causeway::ctl {

std::string PlanText(const Plan& plan);
std::string PlanJson(const Plan& plan);  // one line; what is unlimited or out of reach is null

std::string SweepText(const std::vector<SweepRow>& rows, const PlanSetting& setting);
std::string SweepJson(const std::vector<SweepRow>& rows);  // a line for each row

}  // namespace causeway::ctl
