// The reasons of the rules, in the words of the log, the status page and the tests. Reasons are logged when they
// change, so none contains a running clock.
#pragma once

#include <string>

#include "server/rounds/round_rules.h"
#include "server/rounds/run_facts.h"
#include "server/rounds/run_state.h"

namespace causeway::server {

RunState StateOf(const RunFacts& facts);
// Why the run waits, is paused, stopped or done; empty while it trains. `held`: Holds::Reason; `waits`: why it has not
// started.
std::string RunReason(const RunFacts& facts, const std::string& held, const std::string& waits);

// Why the open round waits: "1 of 2 for a quorum; waiting for asia, us"; empty before any contribution.
std::string RoundReason(const RunFacts& facts, const RoundRules& rounds, core::FragmentId fragment,
                        const std::string& held);
std::string WhyItCloses(const RunFacts& facts, const RoundRules& rounds, core::FragmentId fragment);

}  // namespace causeway::server
