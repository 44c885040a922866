// The states of a run and of its rounds, with their names for those who watch the run.
#pragma once

namespace causeway::server {

enum class RunState { kWaiting, kTraining, kPaused, kDone };
const char* RunStateName(RunState state);  // "waiting", …

enum class RoundPhase { kIdle, kOpen, kGrace };  // no site has contributed; some have; quorum reached
const char* RoundPhaseName(RoundPhase phase);    // "idle", …

}  // namespace causeway::server
