// Whether a lease ends only after the coordinator has run for as long without a word of the site: time in which it
// stood still for more than a quarter of the lease does not count.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/machine.h"

namespace causeway::sim {

class Leases {
 public:
  explicit Leases(Clock::Duration lease) : lease_(lease) {}

  // The coordinator was handed its progress, which says that the site itself had heard something `at` that time.
  void Heard(const std::string& site, Clock::TimePoint at, Clock::TimePoint came);
  // It is to stand still from now on: in place of a stall before, which is over then.
  void StoodStill(Clock::TimePoint from, Clock::TimePoint to);
  void Died(Clock::TimePoint at);
  // The journal has from that time that the lease ended. It says what is wrong; "": nothing.
  std::string Ended(const std::string& site, Clock::TimePoint at) const;

 private:
  struct Word {
    Clock::TimePoint came;
    Clock::TimePoint heard;  // the latest of all that came by then
  };

  const Clock::Duration lease_;
  std::map<std::string, std::deque<Word>> heard_;  // the newest last
  std::vector<std::pair<Clock::TimePoint, Clock::TimePoint>> stalls_;
};

}  // namespace causeway::sim
