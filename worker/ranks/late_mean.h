// The mean of recent durations: the newest counts a tenth, the one before it a tenth of the rest, and so on.
#pragma once

namespace causeway::worker {

// `mean` is 0 before the first.
inline void AddToLateMean(double newest_s, double& mean_s) {
  constexpr double kNewestShare = 0.1;
  mean_s = mean_s == 0 ? newest_s : mean_s + kNewestShare * (newest_s - mean_s);
}

}  // namespace causeway::worker
