// Why the run waits, as the coordinator has said, and whether the site has waited for it long enough that its log
// should say so aloud: scripts often show warnings alone. Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "core/clock.h"

namespace causeway::worker {

class WaitNotice {
 public:
  static constexpr std::chrono::seconds kLong{5};

  void Heard(std::string reason, core::Clock::TimePoint now) {
    reason_ = std::move(reason);
    due_ = now + kLong;
    ++heard_;
  }

  // How many reasons were heard: a wait that begins before a reason is heard has to end when it is.
  int64_t heard() const { return heard_; }

  // The site goes on.
  void Over() { reason_.clear(); }

  // How long a site may wait before the next Take, at most `left`.
  std::chrono::nanoseconds Until(core::Clock::TimePoint now, std::chrono::nanoseconds left) const {
    if (reason_.empty()) return left;
    return std::clamp<std::chrono::nanoseconds>(due_ - now, std::chrono::nanoseconds(0), left);
  }

  // The reason, once, if it has lasted; otherwise empty.
  std::string Take(core::Clock::TimePoint now) {
    return !reason_.empty() && now >= due_ ? std::exchange(reason_, "") : std::string();
  }

 private:
  std::string reason_;
  core::Clock::TimePoint due_;
  int64_t heard_ = 0;
};

}  // namespace causeway::worker
