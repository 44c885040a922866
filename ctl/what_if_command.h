// causewayctl plan what-if: the step of a traced run with some of its resources faster.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plan/what_if.h"

namespace causeway::ctl {

// "cpu=2,link node=10", in this order. INVALID_ARGUMENT names the flag and the part that is not a factor.
absl::StatusOr<std::vector<std::pair<std::string, double>>> ParseFactors(const std::string& text);

// The answer for people: each resource alone at `factor`, then `raised` one after the other.
absl::StatusOr<std::string> WhatIfText(const plan::Work& work, double factor,
                                       const std::vector<std::pair<std::string, double>>& raised);

// Reads the flags and prints the answer.
absl::Status RunWhatIfCommand(bool json);

}  // namespace causeway::ctl
