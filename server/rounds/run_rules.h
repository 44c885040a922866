// The rules of a run: which sites are in, when a round closes, what a joiner waits for. A function of (state, event,
// now): no gRPC, no mutex, no clock, no file, so that a week of churn runs in milliseconds in a test.
//
//   event, now ─► Handle ─► MemberRules   streams, leases, names
//                           LeadRules     shard 0: who joins, the start, the seeder │ one of
//                           ShardRules    another: follows shard 0                  │ the two
//                           RoundRules    quorum, grace, distance
//                           ValueRules    counts, norms, weights, quarantine
//                           Holds         why the run is held
//                  Outcome ◄─ Drop, CloseRounds (rule_parts.h): what touches several of them
//
// A run may have several coordinators, each with fragments of its own (core/ids.h). Each decision carries its reason:
// the same words in the log, in /status and in tests (reasons.h). Times are milliseconds of the caller's monotonic
// clock. core::RoundState holds everything that a restart must find again; time estimates are not in it, and start
// anew. One owner at a time. Source: docs/membership.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

struct RuleParts;

struct ChangePlace {
  core::Step step = 0;                  // the first step with the change
  std::vector<core::Version> versions;  // each fragment's first base version with the change
};

class RunRules {
 public:
  // A new run, or one that continues from a saved state: all leases start anew at `now_ms`. `seeder`: the site from
  // which the initial parameters were requested; the request is repeated when it is back.
  RunRules(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const core::SiteId& seeder = "");
  RunRules(RunRules&&) noexcept;
  RunRules& operator=(RunRules&&) noexcept;
  ~RunRules();

  Outcome Handle(const RunEvent& event, int64_t now_ms);

  // Whether this contribution may be accepted: OK; ALREADY_EXISTS if it was admitted or merged (the answer to a repeat,
  // even after its session ended); FAILED_PRECONDITION, with the reason, if it is refused; INVALID_ARGUMENT if only its
  // tokens and steps are wrong: a ContributionRefused follows.
  absl::Status CheckContribution(const core::SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                                 const core::Admitted& contribution) const;
  // The contribution as it counts: with as many steps and tokens as the coordinator believes (server/rounds/heard.h).
  core::Admitted Believed(const core::SiteId& site, core::FragmentId fragment,
                          const core::Admitted& contribution) const;
  // Why the length of a contribution that CheckContribution has accepted is refused (server/rounds/value_rules.h), for
  // `parameters` values; nullopt if it is accepted.
  std::optional<std::string> WhyTooLong(const core::SiteId& site, core::FragmentId fragment,
                                        const core::Admitted& contribution, int64_t parameters) const;

  const core::RoundState& state() const;
  RunState run_state() const;
  std::string Reason() const;  // why the run waits, is paused, stopped or done; empty while it trains
  bool held() const;           // sites should hold before their next step
  bool doubted() const;        // held for a reason of this process
  RoundPhase Phase(core::FragmentId fragment) const;
  // The reason why the open round waits: "1 of 2 for a quorum; waiting for asia, us"; empty before any contribution.
  std::string RoundReason(core::FragmentId fragment) const;
  // Contributions of recent rounds that were merged although they were long, and those for which a round stands.
  std::vector<core::Outlier> Outliers() const;

  std::vector<core::SiteId> ActiveSites() const;  // in bytewise order
  bool AnySiteIn() const;                         // including joining ones
  bool IsReady(const core::SiteId& site) const;   // the site holds the anchors and has no place yet
  // For each fragment, the base version of the site's last admitted contribution, merged or not; −1: none.
  std::vector<core::Version> LastAdmitted(const core::SiteId& site) const;
  bool MayHaveForgotten(const core::SiteId& site) const;

  // The place from which a change of the settings holds: at the earliest from a step that no site can have passed when
  // it hears of it in synchronous mode (two rounds of each fragment lie between), or once all steps are done from the
  // next one. FAILED_PRECONDITION: `at_step`, if it is given, is before that.
  absl::StatusOr<ChangePlace> PlaceOfChange(core::Step steps, std::optional<core::Step> at_step) const;

  // FAILED_PRECONDITION: by these settings, but not by the present ones, a site's last contribution would be refused
  // for what it counts.
  absl::Status CheckChange(const core::MembershipConfig& membership, const TokensPerStep& max_tokens_per_step) const;

  core::Membership membership() const;  // shard 0's, for the other shards
  ShardReport report() const;           // another shard's, for shard 0

 private:
  std::unique_ptr<RuleParts> parts_;
};

}  // namespace causeway::server
