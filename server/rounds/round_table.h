// The rules of a run: who is in, when a round closes, what a joiner waits for. A pure function of (state, event, now):
// no gRPC, no mutex, no clock, no file, so that a week of churn runs in milliseconds in a test.
//
//   Join ─► joining ─ Ready ─► training ─ Leave or lease ended ─► gone
//                                 │
//   round of fragment p, base v   open ─ all training sites have contributed ─► decided: v + 1, next round open
//
// Synchronous mode (docs/architecture.md): a round needs every active site whose first version it has reached;
// a contribution once admitted is merged even if its site leaves before the round closes. Sites that wait for a round
// that nobody is left to fill join anew. Each decision carries its
// reason: the same words in the log, in /status and in tests. Times are milliseconds of the caller's monotonic clock.
// One owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/membership.h"
#include "core/schedule.h"

namespace causeway::server {

struct RoundRules {
  core::FragmentSchedule schedule;
  int min_sites = 1;
  int64_t lease_ms = 10000;
};

// ---- What the table asks its owner to do ----

// Ask this site for the initial parameters.
struct RequestSeed {
  core::SiteId site;
};
// Tell this site its place in the schedule.
struct Enter {
  core::SiteId site;
  core::Entry entry;
};
// Merge these contributions: the decision is made, and `base` + 1 is the fragment's version from now on.
struct CloseRound {
  core::FragmentId fragment = 0;
  core::Version base = 0;
  std::vector<core::SiteId> contributors;  // in bytewise order
  std::vector<double> weights;             // one for each, not normalised
  std::vector<core::SiteId> sites;         // that share the data from here on
};
// Forget what this site has sent but not completed; its name is free.
struct Dropped {
  core::SiteId site;
  std::string reason;
};
using Action = std::variant<RequestSeed, Enter, CloseRound, Dropped>;
using Actions = std::vector<Action>;

enum class RunState { kWaiting, kTraining, kPaused, kDone };
const char* RunStateName(RunState state);  // "waiting", …

struct JoinDecision {
  bool accepted = false;
  bool resumed = false;        // the session is still in the run
  std::string reason;          // of a refusal
  int64_t retry_after_ms = 0;  // of a refusal that ends by itself; 0 = final
  Actions actions;
};

class RoundTable {
 public:
  // A new run, or one that goes on from a saved state: all leases start anew at `now_ms`.
  RoundTable(const RoundRules& rules, core::RoundState state, int64_t now_ms);

  // A site asks to join, or to go on with its session after its control stream broke. `held` are the versions of the
  // anchors it has, empty for a site that has not entered yet.
  JoinDecision Join(const core::SiteId& site, const core::SessionId& session, const std::vector<core::Version>& held,
                    int64_t now_ms);

  void Heard(const core::SiteId& site, const core::SessionId& session, int64_t now_ms);  // renews the lease
  void Disconnected(const core::SiteId& site, const core::SessionId& session, int64_t now_ms);
  Actions Leave(const core::SiteId& site, const core::SessionId& session, bool finished, const std::string& reason);
  // FAILED_PRECONDITION if the site is not training.
  absl::Status StartDraining(const core::SiteId& site, const std::string& reason);

  Actions Seeded();  // the initial parameters are complete
  Actions Ready(const core::SiteId& site, const core::SessionId& session);

  // Whether this contribution may be taken: OK; ALREADY_EXISTS if it was admitted or merged (a repeat, to be told so);
  // FAILED_PRECONDITION, with the reason, if it is refused.
  absl::Status CheckContribution(const core::SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                                 core::Version base) const;

  // A contribution that CheckContribution took is complete and valid: irrevocable from now on.
  Actions Admit(const core::SiteId& site, core::FragmentId fragment, core::Version base);

  Actions Tick(int64_t now_ms);  // ends leases

  const core::RoundState& state() const { return state_; }
  RunState run_state() const;
  std::string Reason() const;                                // why the run is in that state; empty while it trains
  std::string RoundReason(core::FragmentId fragment) const;  // "waiting for asia, us"; empty when nobody contributed

 private:
  struct Link {
    bool connected = false;
    int64_t deadline_ms = 0;
  };

  bool InSession(const core::SiteId& site, const core::SessionId& session) const;
  std::vector<core::SiteId> ActiveSites() const;  // in bytewise order
  std::vector<core::SiteId> MissingFrom(core::FragmentId fragment) const;
  Actions StartIfEnough();
  Enter EnterNow(const core::SiteId& site);
  void AskForSeed(const core::SiteId& joined, Actions& actions);
  void CloseComplete(Actions& actions);
  void Drop(const core::SiteId& site, const std::string& reason, Actions& actions);
  void DropStranded(Actions& actions);

  RoundRules rules_;
  core::RoundState state_;
  std::map<core::SiteId, Link> links_;
  std::vector<core::SiteId> ready_;  // wait for the start
  core::SiteId seeder_;              // was asked for the initial parameters
};

}  // namespace causeway::server
