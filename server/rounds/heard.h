// How much the coordinator believes that sites have trained: the steps and tokens of their reports, as far as time has
// passed for them. A contribution counts no more than that, however much it says.
//
//   Enter, Report ─► believed: + min(reported, credit)     credit: 4 · the fastest other's pace · time, and a round
//   contribution  ─► min(its counts, believed − counted before for the fragment + credit since the last report)
//
// A site that has gone faster than its credit for a minute is believed. Where no other site has a pace, and after a
// restart until a site's next contribution, nothing is bounded. A round's steps are always believed.
// Pure; one owner at a time. Source: docs/decisions/0044-counts-as-they-were-heard.md; docs/security.md, section
// "Counts".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "core/membership.h"
#include "server/rounds/pace.h"

namespace causeway::server {

inline constexpr double kFasterThanOthers = 4;
inline constexpr int64_t kFastMs = 60'000;  // after which a pace beyond that is believed

class Heard {
 public:
  // `pace` outlives it.
  Heard(const Pace& pace, int num_fragments, int64_t sync_every)
      : pace_(pace), num_fragments_(num_fragments), sync_every_(static_cast<double>(sync_every)) {}

  void Enter(const core::SiteId& site, core::Step step, int64_t now_ms);  // steps count from here
  void Report(const core::SiteId& site, core::Step step, int64_t tokens, int64_t now_ms);
  void Forget(const core::SiteId& site) { sites_.erase(site); }

  // The contribution with the steps and tokens that are believed.
  core::Admitted Believed(const core::SiteId& site, core::FragmentId fragment, core::Admitted contribution,
                          int64_t now_ms) const;
  void Count(const core::SiteId& site, core::FragmentId fragment, const core::Admitted& contribution);

  // Whether a site that says so may have done these steps: within a factor of 4 of what is believed of its stay, since
  // a site that is faster than all others and soon done is not believed in time. True if nothing is known of it.
  bool MayHaveDone(const core::SiteId& site, core::Step steps) const;

 private:
  // The amount that is always believed, and the amount per millisecond.
  struct Bound {
    double of_a_round = 0, of_a_ms = 0;
  };
  // A site's training, counted in steps or in tokens.
  struct Trained {
    std::optional<double> reported;  // in the last report
    double believed = 0;             // since the site's first report
    double credit = 0;
    std::optional<int64_t> fast_since_ms;
    std::vector<std::optional<double>> counted;  // by fragment; none: unknown since the coordinator's start

    bool Trusted(int64_t now_ms) const { return fast_since_ms && now_ms - *fast_since_ms >= kFastMs; }
    void Report(int64_t says, const std::optional<Bound>& bound, int64_t heard_ms, int64_t now_ms);
    int64_t Believed(int64_t says, core::FragmentId fragment, const std::optional<Bound>& bound, int64_t heard_ms,
                     int64_t now_ms) const;
    void Count(int64_t amount, core::FragmentId fragment);
  };
  struct Site {
    core::Step entered = 0;
    int64_t heard_ms = 0;
    Trained steps, tokens;
  };
  struct Bounds {
    std::optional<Bound> steps, tokens;  // none: no other site has a pace
  };
  Bounds BoundsFor(const core::SiteId& site) const;

  const Pace& pace_;
  const int num_fragments_;
  const double sync_every_;
  std::map<core::SiteId, Site> sites_;  // sites in the run that have reported
};

}  // namespace causeway::server
