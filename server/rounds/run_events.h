// The events of a run that concern its rules, and the outcome of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/run_config.h"

namespace causeway::server {

enum class RunState { kWaiting, kTraining, kPaused, kDone };
const char* RunStateName(RunState state);  // "waiting", …

enum class RoundPhase { kIdle, kOpen, kGrace };  // no site has contributed; some have; quorum reached
const char* RoundPhaseName(RoundPhase phase);    // "idle", …

// Request the initial parameters from this site.
struct RequestSeed {
  core::SiteId site;
};
// Notify this site of its place in the schedule.
struct Enter {
  core::SiteId site;
  core::Entry entry;
};
// Merge these contributions: the decision is made, and `base` + 1 is the fragment's version from now on.
struct CloseRound {
  struct Contributor {
    core::SiteId site;
    core::Version base = 0;  // its contribution's base, up to max_staleness behind the round's
    double weight = 0;       // not normalised, above 0
    float factor = 1;        // its values are scaled by this
  };
  core::FragmentId fragment = 0;
  core::Version base = 0;
  std::vector<Contributor> contributors;  // in bytewise order of site
  std::vector<core::SiteId> sites;        // the sites that share the data from here on
  std::string reason;                     // "all 3 active sites have contributed", …
  int64_t run_tokens = 0;                 // merged into the fragment so far, with these contributions
  // If set, nothing is merged, and the round restores the parameters of that version.
  std::optional<core::Version> rolled_back_to;
};
// Discard this site's incomplete uploads; its name is free.
struct Dropped {
  core::SiteId site;
  core::Ended ended = core::Ended::kDropped;
  std::string reason;
};
// The site's name and record are given up: the run has reached its limit of sites, and this one has been gone for
// longest.
struct Forgotten {
  core::SiteId site;
};
using Action = std::variant<RequestSeed, Enter, CloseRound, Dropped, Forgotten>;
using Actions = std::vector<Action>;

// ---- Sites ----

// A site asks to join, or to continue its session after its control stream broke or its process died.
struct JoinRequest {
  core::SiteId site;
  core::SessionId session;
  // Versions of the anchors that the site has; empty for a site that has not entered yet.
  std::vector<core::Version> held;
  // The site continues from a checkpoint and repeats steps that its session took before. In synchronous mode the
  // session simply continues; in quorum mode decisions that depended on time cannot be repeated, so the site enters
  // anew.
  bool from_checkpoint = false;
  int64_t stay = 0;     // for a shard beyond the first: the stay to which shard 0 has welcomed the site
  std::string process;  // names the site's process; empty: the site does not say
};
struct SiteReady {  // the site holds the anchors
  core::SiteId site;
  core::SessionId session;
};
// A site's report: renews its lease and gives its step rate.
struct SiteReport {
  core::SiteId site;
  core::SessionId session;
  core::Step step = 0;
  int64_t tokens = 0;
  bool completing = false;  // the site sends nothing more and waits for its open rounds, which need not wait for it
  // How long ago it last heard from the coordinator: a site that can no longer be reached takes part in no round even
  // though its reports arrive, so its lease counts from that time.
  int64_t unheard_ms = 0;
  std::string standing_still;  // why its training stands still: its lease runs on as if it had not reported
};
struct SiteDisconnected {
  core::SiteId site;
  core::SessionId session;
};
struct SiteLeaves {
  core::SiteId site;
  core::SessionId session;
  bool finished = false;  // the site says that it has done all steps of the run; believed if that may be
  std::string reason;
};

// ---- Contributions and initial parameters ----

// RunRules::CheckContribution has accepted it; it is complete and valid, and irrevocable from now on.
struct ContributionAdmitted {
  core::SiteId site;
  core::FragmentId fragment = 0;
  core::Admitted contribution;
  int64_t transfer_ms = 0;  // how long its chunks took
  int64_t parameters = 0;   // number of the fragment's parameters
};
// A contribution's values are refused: the open round no longer expects it.
struct ContributionRefused {
  core::SiteId site;
  core::FragmentId fragment = 0;
  core::Admitted contribution;
  std::string why;
  bool too_long = true;  // several in a row put the site in quarantine; false: its counts are wrong
};
struct SeedComplete {};   // the initial parameters of the shard's own fragments
struct ModelReplaced {};  // the initial parameters are void; no site has trained yet

// ---- Shards ----

// The report of a shard beyond the first to shard 0, which alone can decide on it.
struct ShardReport {
  bool seeded = false;                  // the initial parameters of its fragments are there, of `generation`
  std::vector<core::Version> versions;  // decided rounds of its own fragments; the others are 0
  // A site that has to join anew, in that stay: no other site is left to contribute to an open round of this shard.
  core::SiteId stranded;
  int64_t stranded_stay = 0;
  std::optional<uint64_t> generation;  // the model's generation, which the rules do not know

  friend bool operator==(const ShardReport&, const ShardReport&) = default;
};
struct ShardReported {
  int shard = 0;
  ShardReport report;
};
struct MembershipChanged {  // shard 0's word to a shard beyond the first
  core::Membership membership;
};

// ---- Operators: FAILED_PRECONDITION if there is nothing to do ----

struct PauseRun {};  // no round closes, and sites hold
// Undoes PauseRun, StopRun, HoldRun, and that the run is finished; draining sites still leave, and may join again.
// Rounds that it lets close do so at the next Tick.
struct ResumeRun {};
// All active sites drain (the owner notifies them), joiners are refused, and the run is done when all have left. Ends a
// pause: sites leave when their open rounds have closed.
struct StopRun {};
// The site leaves when its open rounds have closed; a lost site is no longer missed.
struct DrainSite {
  core::SiteId site;
  std::string reason;
};
struct ReleaseSite {  // ends quarantine: the site joins anew, from the anchor, without a history of lengths
  core::SiteId site;  // empty: all that are in quarantine
};
// Each open round ends unmerged and restores the parameters of `version`; all sites join anew, from them.
struct RollBackRun {
  core::Version version = 0;
  std::vector<int64_t> run_tokens = {};  // merged into each fragment until then; empty: unknown
};
// Settings of rounds change, from these base versions of each fragment on (core/run_settings.h).
struct SettingsChanged {
  std::vector<core::Version> versions;
  core::MembershipConfig membership;
  core::ValuesConfig values;
  std::function<int64_t(const core::SiteId&)> max_tokens_per_step;
  core::Step steps = 0;
  int64_t run_tokens = 0;
  bool goes_on = false;  // steps are left to do: a run that was finished no longer is
};
// This process has a reason to hold the run, until an operator resumes it: no round closes, and sites hold. Resuming
// settles every later hold of the kind as well, and a stopped run is not held up. Holds are not kept over a restart.
enum class Hold {
  kDoubt,  // the state may not be the run's latest; after a restart the site that raised the doubt raises it again
};
struct HoldRun {
  Hold hold = Hold::kDoubt;
  std::string why;
};

// The state may lack its end: no round closes before the sites that were in the run have joined, or shown that they hold
// more. Some seconds, at most: a site may be gone.
struct AwaitSites {};

// ---- Time ----

struct Tick {};  // ends leases and graces; a few dozen times a second
// The process did not run from then until now, and heard no site: leases continue from where they were.
struct StoodStill {
  int64_t from_ms = 0;
};

using RunEvent = std::variant<JoinRequest, SiteReady, SiteReport, SiteDisconnected, SiteLeaves, ContributionAdmitted,
                              ContributionRefused, SeedComplete, ModelReplaced, ShardReported, MembershipChanged,
                              PauseRun, ResumeRun, StopRun, DrainSite, ReleaseSite, RollBackRun, SettingsChanged,
                              HoldRun, AwaitSites, Tick, StoodStill>;

struct JoinDecision {
  bool accepted = false;
  bool resumed = false;        // the session is still in the run
  std::string reason;          // why the join was refused
  bool rival = false;          // refused: another process of the site is there, with the same session
  int64_t retry_after_ms = 0;  // for a refusal that ends by itself; 0: it is final
  // Accepted: for each fragment, the base version of the site's last admitted contribution, merged or not, in any stay;
  // −1 = none.
  std::vector<core::Version> last_admitted;
  bool forgotten = false;  // accepted: it had a place, but its name was given up since: its state is void
};

struct Outcome {
  absl::Status status = absl::OkStatus();  // not OK: an operator's event failed, and nothing has changed
  Actions actions;
  JoinDecision join;  // the answer to a JoinRequest
};

}  // namespace causeway::server
