#include "core/membership.h"

namespace causeway::core {

const char* SiteStateName(SiteState state) {
  switch (state) {
    case SiteState::kJoining: return "joining";
    case SiteState::kTraining: return "training";
    case SiteState::kDraining: return "draining";
    case SiteState::kGone: return "gone";
  }
  return "unknown";
}

const char* EndedName(Ended ended) {
  switch (ended) {
    case Ended::kLeft: return "left";
    case Ended::kFinished: return "finished";
    case Ended::kExpired: return "expired";
    case Ended::kDrained: return "drained";
    case Ended::kDropped: return "dropped";
  }
  return "unknown";
}

}  // namespace causeway::core
