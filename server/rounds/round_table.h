// The rules of a run: which sites are in, when a round closes, what a joiner waits for. A pure function of (state,
// event, now): no gRPC, no mutex, no clock, no file, so that a week of churn runs in milliseconds in a test.
//
//   Join ─► joining ─ Ready ─► training ─ Leave or lease ended ─► gone
//                                 │
//   round of fragment p, base v   open ─ quorum ─► grace ─► decided: v + 1, next round open
//
// Synchronous mode: a round needs every active site whose first version it has reached. Quorum mode (arXiv 2604.21428):
// a round needs min_quorum sites, then waits a grace for the others, and rounds keep a distance; a contribution whose
// base is up to max_staleness versions old joins the round that is open. In both modes an admitted contribution is
// merged exactly once, even if its site leaves before the round closes; rounds of several fragments are open at once;
// and below min_quorum active sites no round closes except those that sites wait for in order to leave, and a run's
// last.
//
// A run may have several coordinators, each with fragments of its own (core/shard.h). Shard 0 decides which sites are
// in; the others follow it, and close the rounds of their fragments by the same rules (round_table_shards.cc):
//
//   shard 0   Join, Ready, Leave, leases ─► membership() ─► Follow   shard i
//             HeardOfShard ◄── seeded, versions, stranded site ── report()
//
// Each decision carries its reason: the same words in the log, in /status and in tests. Times are milliseconds of the
// caller's monotonic clock. core::RoundState holds everything that a restart must find again; time estimates are not in
// it, and start anew. One owner at a time. Source: docs/architecture.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/membership.h"
#include "core/round_config.h"
#include "core/schedule.h"
#include "core/shard.h"
#include "core/sync_config.h"
#include "server/rounds/gone_names.h"
#include "server/rounds/pace.h"
#include "server/rounds/round_settings.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_state.h"
#include "server/rounds/value_gate.h"

namespace causeway::server {

// The part of a site's report that concerns the rules.
struct SiteBeat {
  core::Step step = 0;
  bool completing = false;  // it sends nothing more and waits for its open rounds, which then need not wait for it
  // How long ago it last heard from the coordinator: a site that can no longer be reached takes part in no round even
  // though its reports arrive, so its lease counts from that time.
  int64_t unheard_ms = 0;
  std::string standing_still;  // why its training stands still: its lease runs on as if it had not reported
};

struct TableJoin : JoinDecision {
  Actions actions;
};

class RoundTable {
 public:
  // A new run, or one that continues from a saved state: all leases start anew at `now_ms`. `seeder`: the site from
  // which the initial parameters were requested; the request is repeated when it is back.
  RoundTable(const RoundSettings& rules, core::RoundState state, int64_t now_ms, core::SiteId seeder = "");

  // A site asks to join, or to continue its session after its control stream broke or its process died.
  TableJoin Join(const JoinRequest& request, int64_t now_ms);

  // A site's report: renews its lease and gives its step rate.
  Actions Heard(const core::SiteId& site, const core::SessionId& session, const SiteBeat& beat, int64_t now_ms);
  void Disconnected(const core::SiteId& site, const core::SessionId& session, int64_t now_ms);
  Actions Leave(const core::SiteId& site, const core::SessionId& session, bool finished, const std::string& reason,
                int64_t now_ms);
  // The site leaves when its open rounds have closed; a lost site is no longer missed. FAILED_PRECONDITION if it is
  // neither training nor lost.
  absl::Status StartDraining(const core::SiteId& site, const std::string& reason);

  Actions Seeded();          // the initial parameters of the shard's own fragments are complete
  void BeginAnotherModel();  // they are void; no site has trained yet
  Actions Ready(const core::SiteId& site, const core::SessionId& session);

  // To be called after CheckContribution has accepted the contribution, and before Admit: why its length is refused
  // (server/rounds/value_gate.h), for `parameters` values; nothing if it is accepted.
  std::optional<std::string> WhyTooLong(const core::SiteId& site, core::FragmentId fragment,
                                        const core::Admitted& contribution, int64_t parameters) const;
  // Records the refusal: the open round no longer expects it, and several in a row put the site in quarantine.
  Actions RefuseValues(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                       const std::string& why, int64_t now_ms);

  // Whether this contribution may be accepted: OK; ALREADY_EXISTS if it was admitted or merged (the answer to a repeat,
  // even after its session ended); FAILED_PRECONDITION, with the reason, if it is refused; INVALID_ARGUMENT if only its
  // tokens and steps are wrong: then call RefuseValues.
  absl::Status CheckContribution(const core::SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                                 const core::Admitted& contribution) const;

  // Admits a contribution that CheckContribution accepted and that is complete and valid: irrevocable from now on.
  // `transfer_ms` is how long its chunks took.
  Actions Admit(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                int64_t transfer_ms, int64_t now_ms, int64_t parameters = 0);

  // ---- Shards ----
  core::Membership membership() const;                                 // shard 0: followed by the others
  Actions HeardOfShard(int shard, const ShardReport& report);          // shard 0
  Actions Follow(const core::Membership& membership, int64_t now_ms);  // a shard beyond the first
  ShardReport report() const;                                          // the same
  bool follows() const { return !rules_.shard.leads(); }

  // ---- Operators ----
  // FAILED_PRECONDITION if there is nothing to do. Rounds that a Resume lets close do so at the next Tick.
  absl::Status Pause();   // no round closes, and sites hold
  absl::Status Resume();  // undoes Pause, Stop and Doubt; draining sites still leave, and may join again
  // The state may not be the run's latest: no round closes and sites hold until an operator resumes the run. That
  // settles every later doubt as well, and a stopped run is not held up. Not kept over a restart, after which the site
  // that raised the doubt raises it again.
  void Doubt(const std::string& why);
  bool doubted() const { return !doubt_.empty(); }
  // All active sites drain (the owner notifies them), joiners are refused, and the run is done when all have left. Ends
  // a pause: sites leave when their open rounds have closed.
  absl::Status Stop();
  // Lets a site out of quarantine: it joins anew, from the anchor. FAILED_PRECONDITION if it is not in quarantine.
  absl::Status Release(const core::SiteId& site, Actions& actions, int64_t now_ms);
  // Each open round ends unmerged and restores the parameters of `version`; all sites join anew, from them.
  absl::Status RollBack(core::Version version, Actions& actions, int64_t now_ms);
  bool held() const { return state_.paused || !doubt_.empty(); }  // sites should hold before their next step

  Actions Tick(int64_t now_ms);  // ends leases and graces; a few dozen times a second
  // The process did not run between the two times, and heard no site: leases continue from where they were.
  void StoodStill(int64_t from_ms, int64_t to_ms);

  const core::RoundState& state() const { return state_; }
  RunState run_state() const;
  std::vector<core::SiteId> ActiveSites() const;  // in bytewise order
  // For each fragment, the base version of the site's last admitted contribution, merged or not; −1: none.
  std::vector<core::Version> LastAdmitted(const core::SiteId& site) const;
  bool MayHaveForgotten(const core::SiteId& site) const { return GoneNames::MayHaveForgotten(state_, site); }
  bool AnySiteIn() const;                        // including joining ones
  bool IsReady(const core::SiteId& site) const;  // it holds the anchors and has no place yet
  std::string Reason() const;                    // why the run waits, is paused, stopped or done; empty while it trains
  RoundPhase Phase(core::FragmentId fragment) const;
  // The reason why the open round waits: "1 of 2 for a quorum; waiting for asia, us"; empty before any contribution.
  std::string RoundReason(core::FragmentId fragment) const;
  // Contributions of recent rounds that were merged although they were long: there is no gate, or one that scales.
  const std::vector<Outlier>& outliers() const { return outliers_; }

 private:
  struct Link {
    bool connected = false;
    int64_t deadline_ms = 0;
    bool completing = false;
    bool cut_off = false;       // it reports, but has not heard from us for long
    core::Step entry_step = 0;  // the one sent to it; reports of earlier steps predate its arrival
    std::string standing_still;
  };
  // An open round's facts besides its contributions. Times are those of this process.
  struct OpenRound {
    std::optional<int64_t> first_ms;   // first admission; none if the wait since then says nothing about the sites
    std::optional<int64_t> quorum_ms;  // the quorum was reached, and the grace began
    int64_t grace_ms = 0;
    std::map<core::SiteId, std::string> refused;  // the refused contributions' sites, and why
  };

  bool synchronous() const { return rules_.sync.mode == core::SyncMode::kSynchronous; }
  int num_fragments() const { return schedule_.num_fragments(); }
  void SetNow(int64_t now_ms);
  int64_t RanSince(int64_t since_ms) const;  // excluding the time in which the process stood still

  // round_table.cc: the sites in the run.
  bool InSession(const core::SiteId& site, const core::SessionId& session) const;
  int NumActive() const;
  bool AnyJoining() const;
  bool IsCompleting(const core::SiteId& site) const;
  void Refuse(const core::SiteId& site, TableJoin& decision) const;  // unless the site may join anew
  void Accept(const core::SiteId& site, TableJoin& decision);
  Actions StartIfEnough();
  Enter EnterNow(const core::SiteId& site);
  static bool VoidAtJoin(const core::SiteRecord& record, const JoinRequest& request);
  void AskForSeed(const core::SiteId& joined, Actions& actions);
  void MarkGone(const core::SiteId& site, const std::string& reason, Actions& actions);
  void Drop(const core::SiteId& site, const std::string& reason, Actions& actions);
  void DropStranded(Actions& actions);
  std::optional<core::FragmentId> StrandedFragment() const;
  core::SiteId Stranded() const;  // the site in question
  Actions EnterReady();

  // round_table_shards.cc
  bool Owns(core::FragmentId fragment) const { return rules_.shard.Owns(fragment); }
  bool HeardOfAllShards() const;
  std::string MissingShards() const;
  Actions UpdateSeeded();
  TableJoin JoinFollowed(const JoinRequest& request);
  Enter FollowEntry(const core::SiteId& site) const;
  void ForgetUnknown(const core::Membership& membership, Actions& actions);
  void AskSeederOfFollowed(Actions& actions) const;

  // round_table_rounds.cc: when rounds close.
  absl::Status CheckRepeat(const core::SiteId& site, core::FragmentId fragment, core::Version base) const;
  std::vector<core::SiteId> MissingFrom(core::FragmentId fragment) const;  // those that the open round waits for
  bool AnyMissingFrom(core::FragmentId fragment) const;
  bool Misses(core::FragmentId fragment, const core::SiteId& site, const core::SiteRecord& record) const;
  bool Ending(core::FragmentId fragment) const;
  int Quorum(core::FragmentId fragment) const;
  bool EnoughActive(core::FragmentId fragment) const;
  bool HasQuorum(core::FragmentId fragment) const;
  bool InGrace(core::FragmentId fragment) const;
  bool FarEnough(core::FragmentId fragment) const;
  bool MayClose(core::FragmentId fragment) const;
  void NoteQuorum(core::FragmentId fragment);
  void CloseRounds(Actions& actions);
  CloseRound Close(core::FragmentId fragment);
  std::string WhyItCloses(core::FragmentId fragment) const;

  // round_table_values.cc: which contributions are accepted.
  static bool Counts(const core::SiteRecord& record) { return core::IsActive(record.state) && !record.quarantined; }
  absl::Status CheckCounts(const core::SiteId& site, const core::Admitted& contribution) const;
  int64_t CountedSteps(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution) const;
  absl::Status CheckQuarantine(const core::SiteId& site, core::FragmentId fragment) const;
  NormBound BoundFor(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                     int64_t parameters) const;
  void NoteOutlier(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution,
                   int64_t parameters);
  void Weigh(core::FragmentId fragment, CloseRound& close);

  // round_table_reasons.cc
  bool BelowQuorum() const;
  std::string QuorumReason() const;

  RoundSettings rules_;
  core::FragmentSchedule schedule_;
  core::RoundState state_;
  std::map<core::SiteId, Link> links_;  // of the sites that are not gone
  GoneNames gone_;
  std::vector<core::SiteId> ready_;   // those waiting for the start
  core::SiteId seeder_;               // the initial parameters were requested from it
  std::string doubt_;                 // empty: none
  bool doubt_settled_ = false;        // an operator has resumed the run despite one
  bool seeded_here_ = false;          // the shard's own fragments have them
  std::vector<bool> heard_of_shard_;  // shard 0: since its start; counts itself
  std::vector<bool> seeded_shard_;    // shard 0: from their last reports

  int64_t now_ms_;                                      // of the latest event
  std::vector<std::pair<int64_t, int64_t>> stalls_ms_;  // from, to: those within about the last lease
  Pace pace_;
  std::vector<OpenRound> open_;                    // of each fragment
  std::vector<std::optional<int64_t>> closed_ms_;  // when the last round of each fragment closed
  std::optional<int64_t> last_closed_ms_;          // of all of them
  std::vector<Outlier> outliers_;                  // whose rounds are not over
};

}  // namespace causeway::server
