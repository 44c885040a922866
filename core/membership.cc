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

}  // namespace causeway::core
