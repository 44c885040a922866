// The speeds of a run's sites, estimated from their reports, and the consequences in quorum mode: how long a round may
// wait for further sites once it has a quorum, and how far apart rounds are (Decoupled DiLoCo,
// arXiv 2604.21428; docs/membership.md).
//
//   admissions of a round   first ──── time to quorum ────► quorum ── grace ──► closed
//   steps of a site         send ──────────── τ · step time ─────────────────► update applied, if synchronous
//
// All estimates are exponential averages in milliseconds; they are lost with the process and come back within seconds.
// Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/ids.h"
#include "core/run_config.h"
#include "core/schedule.h"

namespace causeway::server {

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

}  // namespace causeway::server
