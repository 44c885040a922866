// When rounds close: contributions, quorum, grace, distance.
//
//   round of fragment p, base v   open ─ quorum ─► grace ─► decided: v + 1, next round open
//
// Synchronous mode: a round needs every active site whose first version it has reached. Quorum mode (arXiv 2604.21428):
// a round needs min_quorum sites, then waits a grace for the others, and rounds keep a distance; a contribution whose
// base is up to max_staleness versions old joins the round that is open. In both modes an admitted contribution is
// merged exactly once, even if its site leaves before the round closes; rounds of several fragments are open at once;
// and below min_quorum active sites no round closes except those that sites wait for in order to leave, and a run's
// last.
//
// One owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/rounds/heard.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

class RoundRules {
 public:
  RoundRules(RunFacts& facts, Pace& pace);  // graces start anew

  // Whether the open round takes this contribution, as far as its site's place and its base decide it.
  absl::Status Check(const core::SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                     core::Version base) const;
  void Admit(const ContributionAdmitted& event);
  // For each fragment, the base version of the site's last admitted contribution, merged or not; −1: none.
  std::vector<core::Version> LastAdmitted(const core::SiteId& site) const;

  // Due: the fragment whose round is to close next: the one that reached its quorum first, since the others may have to
  // keep a distance from it. Contributors: that round's, without weights. Close: records that it has closed.
  std::optional<core::FragmentId> Due();
  CloseRound Contributors(core::FragmentId fragment) const;
  void Close(const CloseRound& close);
  absl::Status RollBack(const RollBackRun& event, Actions& actions);

  // In synchronous mode, the fragment of an open round that no site is left to fill: a joiner does not contribute to
  // rounds that were due before it entered. Nothing was admitted to it; it could never close.
  std::optional<core::FragmentId> Stranded() const;

  // In synchronous mode, the sites for which a round that others have contributed to waits longer than StandsMs.
  void AddAwaited(std::vector<core::Outlier>& outliers) const;
  int64_t StandsMs() const;  // three usual rounds, but 10 s at least; 30 s before one has closed

  RoundPhase Phase(core::FragmentId fragment) const;
  std::vector<core::SiteId> MissingFrom(core::FragmentId fragment) const;  // sites that the open round waits for
  bool AnyMissingFrom(core::FragmentId fragment) const;
  int Quorum(core::FragmentId fragment) const;  // how many contributions the open round needs (quorum mode)
  bool EnoughActive(core::FragmentId fragment) const;
  bool HasQuorum(core::FragmentId fragment) const;
  bool InGrace(core::FragmentId fragment) const;
  bool FarEnough(core::FragmentId fragment) const;
  int64_t grace_ms(core::FragmentId fragment) const { return open_[fragment].grace_ms; }

 private:
  // Times of the monotonic clock, known to this process alone.
  struct OpenRound {
    std::optional<int64_t> first_ms;   // first admission; none if the wait since then says nothing about the sites
    std::optional<int64_t> quorum_ms;  // the quorum was reached, and the grace began
    int64_t grace_ms = 0;
  };

  absl::Status CheckRepeat(const core::SiteId& site, core::FragmentId fragment, core::Version base) const;
  bool Misses(core::FragmentId fragment, const core::SiteId& site, const core::SiteRecord& record) const;
  bool MayClose(core::FragmentId fragment) const;
  void NoteQuorum(core::FragmentId fragment);
  void Next(core::FragmentId fragment);  // opens the fragment's next round

  RunFacts& facts_;
  Pace& pace_;
  Average round_ms_;                               // between two rounds of one fragment
  std::vector<OpenRound> open_;                    // by fragment
  std::vector<std::optional<int64_t>> closed_ms_;  // when the last round of each fragment closed
  std::optional<int64_t> last_closed_ms_;          // when the last round of any fragment closed
};

}  // namespace causeway::server
