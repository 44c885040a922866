// A plan for people and for scripts. Sizes are decimal: MB is 10⁶ bytes, Mbit 10⁶ bits.
#pragma once

#include <string>
#include <vector>

#include "plan/round_plan.h"

namespace causeway::ctl {

std::string RoundText(const plan::RoundPlan& plan);
std::string RoundJson(const plan::RoundPlan& plan);  // one line; what is unlimited or out of reach is null

std::string SweepText(const std::vector<plan::SweepRow>& rows, const plan::RoundSetting& setting);
std::string SweepJson(const std::vector<plan::SweepRow>& rows);  // a line for each row

}  // namespace causeway::ctl
