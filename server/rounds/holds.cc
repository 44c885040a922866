#include "server/rounds/holds.h"

namespace causeway::server {

void Holds::Raise(Hold hold, const std::string& why) {
  if (!settled_.contains(hold)) why_[hold] = why;
  Update();
}

void Holds::Settle() {
  for (const auto& [hold, why] : why_) settled_.insert(hold);
  Void();
}

void Holds::Void() {
  why_.clear();
  Update();
}

void Holds::Pause(bool paused) {
  facts_.state.paused = paused;
  Update();
}

std::string Holds::Reason() const {
  if (raised()) return why_.begin()->second;
  return facts_.state.paused ? "paused by an operator" : "";
}

}  // namespace causeway::server
