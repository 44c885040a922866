// The gain of a faster part: the operations of a real run, simulated again with some resources faster.
//
//   operations of a step, in order on each lane ─► each takes as long as the slowest of the resources that it uses
//   ─► the step with resource r at s_r · f ─► which resource binds along the critical path, and what binds next
//
// An operation's measured time stays the scale: with every factor 1 the simulation gives the run's own time. With
// factors, an operation lasts measured · max_r (a_r ÷ (s_r f_r)) ÷ max_r (a_r ÷ s_r), for its amounts a_r and the
// resources' speeds s_r; one that uses no known resource keeps its duration. So overlap, and a bottleneck that moves to
// the next resource, are modeled, which a law of two numbers misses (arXiv 2408.03308: 25 times the clock, twice the
// speed). Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::plan {

struct WorkOperation {
  std::string name;
  int lane = 0;  // operations of a lane run one after the other, in order
  double seconds = 0;
  double gap_s = 0;                    // time between the lane's previous operation and this one
  std::map<std::string, double> uses;  // amounts, by resource
};

struct Work {
  std::map<std::string, double> speeds;  // by resource: amount per second
  std::vector<std::vector<WorkOperation>> steps;

  double seconds_per_step = 0;  // the measured mean
};

using Factors = std::map<std::string, double>;  // by resource that is faster; the others have factor 1

struct WhatIf {
  double seconds_per_step = 0;
  // The critical path of all steps, by the resource that binds; "fixed": no known resource binds. They sum to 1.
  std::map<std::string, double> shares;

  std::string Binds() const;  // the resource with the largest share
};

// INVALID_ARGUMENT: a factor of an unknown resource, or not above 0.
absl::StatusOr<WhatIf> Simulate(const Work& work, const Factors& factors);

// Each resource alone at `factor`, the largest saving first.
struct Gain {
  std::string resource;
  double speedup = 1;      // how many times faster the step is
  std::string then_binds;  // the resource that binds with this gain
};
std::vector<Gain> GainsOfEach(const Work& work, double factor);

// A run's trace: Chrome's trace events, whose `args` have "step", and "uses" by resource; one event named "resources"
// has their speeds. A link is as fast as a tenth of its operations were; what others took longer is waiting for other
// ranks, which compute: an operation of its own, of "cpu". INVALID_ARGUMENT names the line.
absl::StatusOr<Work> ReadWork(const std::string& text, const std::string& name);

// Times against a speed, fitted as T = A + C ÷ speed through two of them; arithmetic of the fit, and no simulation.
struct Sample {
  double speed = 0, speedup = 0;  // the speed-up is over the first sample
};
struct SampleFit {
  double fixed = 0, scaled = 0;   // A and C, where T = 1 at the first sample's speed
  std::vector<double> predicted;  // speed-up at each sample
};
// Through the first sample and the `through`-th. INVALID_ARGUMENT: fewer than two, or speeds that do not rise.
absl::StatusOr<SampleFit> FitSamples(const std::vector<Sample>& samples, size_t through);

}  // namespace causeway::plan
