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
#include "core/run_config.h"
#include "core/schedule.h"

namespace causeway::server {

// The speeds of a run's sites, estimated from their reports, and the consequences in quorum mode: how long a round may
// wait for further sites once it has a quorum, and how far apart rounds are (Decoupled DiLoCo,
// arXiv 2604.21428; docs/membership.md).
//
//   admissions of a round   first ──── time to quorum ────► quorum ── grace ──► closed
//   steps of a site         send ──────────── τ · step time ─────────────────► update applied, if synchronous
//
// All estimates are exponential averages in milliseconds; they are lost with the process and come back within seconds.
// Pure; one owner at a time.
// γ: the share of the slack that the grace takes. The rest is for the merge and the update's way to the sites.
inline constexpr double kGraceShare = 0.8;

// Share of the sites' own pace that rounds keep as their distance. Below 1: an overestimate of the step time would make
// each round a little later than the sites are ready for it, until they skip a send. But close to 1: while a site is
// missing, nothing else holds a round back, and a site sends only once in an interval, so that no larger share of the
// sites can contribute to each round.
inline constexpr double kDistanceShare = 0.95;

// Weight of the newest observation. Ten of them are enough to follow a change, and a single outlier does not matter.
inline constexpr double kNewestWeight = 0.1;

class Average {
 public:
  void Add(double value) { value_ = value_ ? *value_ + kNewestWeight * (value - *value_) : value; }
  std::optional<double> value() const { return value_; }
  double value_or(double otherwise) const { return value_.value_or(otherwise); }

 private:
  std::optional<double> value_;
};

class Pace {
 public:
  // The site has done `step` steps, with `tokens`. A report that comes more than `longest_gap_ms` after the previous
  // one says nothing: a site that was cut off may have stood still.
  void Heard(const core::SiteId& site, core::Step step, int64_t now_ms, int64_t longest_gap_ms, int64_t tokens = 0);
  void Interrupted(const core::SiteId& site) { sites_[site].last.reset(); }  // the next report does not follow the last
  void InterruptedAll();
  void Forget(const core::SiteId& site) { sites_.erase(site); }

  // The largest of each rate among all sites but `site`; 0: unknown.
  struct Rates {
    double steps = 0, tokens = 0;  // per millisecond
    double tokens_of_a_step = 0;
  };
  Rates FastestBut(const core::SiteId& site) const;

  void Transferred(int64_t transfer_ms) { transfer_.Add(static_cast<double>(transfer_ms)); }
  void ReachedQuorum(int64_t after_ms) { to_quorum_.Add(static_cast<double>(after_ms)); }

  // Milliseconds of an inner step: the median over the sites (the lower of two); none before a site has stepped.
  std::optional<double> StepMs() const;

  // min(cap, γ · max(0, τ · step time − time to quorum − transfer time)); the cap alone while the step time is unknown.
  int64_t GraceMs(int64_t cap_ms, int64_t delay) const;

  // The minimum distance between two rounds of one fragment; the minimum between any two rounds is a P-th of it. 0
  // while the step time is unknown.
  double DistanceMs(int64_t sync_every) const { return kDistanceShare * sync_every * StepMs().value_or(0); }

 private:
  struct Report {
    core::Step step = 0;
    int64_t tokens = 0;
    int64_t stepped_ms = 0;  // when `step` was first reported
    int64_t heard_ms = 0;
  };
  // Time and steps are averaged separately: the mean of their quotients would be too large where a step takes about as
  // long as a report interval.
  struct Site {
    std::optional<Report> last;
    Average ms;
    Average steps;
    Average tokens;
  };
  std::map<core::SiteId, Site> sites_;
  Average transfer_;
  Average to_quorum_;
};

// The weight of a contribution, above 0, by the formulas of core::WeightRule. Needs tokens and steps above 0 unless
// uniform.
double ContributionWeight(core::WeightRule rule, int64_t tokens, int64_t steps);

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
