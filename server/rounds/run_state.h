// The rules' words about a run for those who watch it.
#pragma once

namespace causeway::server {

enum class RunState { kWaiting, kTraining, kPaused, kDone };
const char* RunStateName(RunState state);  // "waiting", …

enum class RoundPhase { kIdle, kOpen, kGrace };  // no site has contributed; some have; quorum reached
const char* RoundPhaseName(RoundPhase phase);    // "idle", …

}  // namespace causeway::server
