// The rules' words about a run for those who watch it.
#pragma once

#include <string>

#include "core/ids.h"
#include "core/membership.h"

namespace causeway::server {

enum class RunState { kWaiting, kTraining, kPaused, kDone };
const char* RunStateName(RunState state);  // "waiting", …

enum class RoundPhase { kIdle, kOpen, kGrace };  // no site has contributed; some have; quorum reached
const char* RoundPhaseName(RoundPhase phase);    // "idle", …

// A contribution that is far longer than those of recent rounds, and is merged nevertheless.
struct Outlier {
  core::SiteId site;
  core::FragmentId fragment = 0;
  core::Version base = 0;                    // of its round
  std::string text;                          // "norm 8.6e+29 is 2e+30 times the median of 16 rounds"
  core::Version rounds = core::kNormRounds;  // that contributions of the usual length need to undo it
};

}  // namespace causeway::server
