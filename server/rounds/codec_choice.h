// Chooses the codec of a leg where run.yaml says `auto`: the best allowed codec whose payload fits into the round on
// the slowest active link.
//
//   sites' reports ─► SiteSpeeds: bytes/s of each link, seconds of a step ─► LegConditions ─┐
//   a site's bytes per round, by codec ─────────────────────────────────────────────────┴─► codec, and why
//
//   share = (bytes / rate) / (H · step)         over kMostShare: a cheaper one at once
//                                               up to kShareToImprove: a better one
//
// Rates are measured while other transfers are in progress, so they include the effect of sharing a path; the rest of a
// round is for the other leg's half of the path, the merge and unsteady links. Moving to a better codec needs more room
// than keeping the current one, so that a rate between the two thresholds changes nothing. The sites have already
// averaged the rates.
//
// Pure; one owner at a time. The caller stores the decision: a replay reads it and does not choose again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/progress.h"
#include "server/rounds/heard.h"

namespace causeway::server {

// The largest share of a round that a codec's transfer may take, and the share below which a better codec is chosen.
inline constexpr double kMostShare = 0.8;
inline constexpr double kShareToImprove = 0.65;

// The speeds of the sites, from their reports.
class SiteSpeeds {
 public:
  void Heard(const core::SiteId& site, const core::Progress& progress);

  struct Slowest {
    core::SiteId site;       // empty: there is none
    double bytes_per_s = 0;  // 0: not measured
  };
  enum class Leg { kUp, kDown };
  // The slowest link of these sites. A site without a measurement counts as slowest. Where the transfers of a cheap
  // codec are too short to tell the rate, the rate that they reach at least counts; otherwise the codec could never
  // become better again.
  Slowest SlowestLink(const std::vector<core::SiteId>& sites, Leg leg) const;
  // The seconds of an inner step, excluding the site's waits: all sites wait for the slowest. 0: no site has stepped.
  double StepS(const std::vector<core::SiteId>& sites) const;

 private:
  // Time and steps are averaged apart, as in Pace.
  struct Site {
    core::Progress last;
    Average seconds;
    Average steps;
  };
  std::map<core::SiteId, Site> sites_;
};

struct LegConditions {
  SiteSpeeds::Slowest slowest;
  double round_s = 0;  // H · step; 0: unknown
};

struct CodecOption {
  core::CodecId codec = core::CodecId::kFloat32;
  int64_t round_bytes = 0;  // bytes of one site on one leg: each fragment once
};

class CodecChoice {
 public:
  // Options are ordered best first, at least one; the initial choice is the cheapest.
  explicit CodecChoice(std::vector<CodecOption> options);

  // Returns true if the codec changes.
  bool Choose(const LegConditions& now);

  core::CodecId codec() const { return options_[index_].codec; }
  // "rotated_lm2: 3.9 MB a round need 0.31 s of 3.2 s on the slowest link (asia, 12.6 MB/s); rotated_lm4 would …"
  const std::string& reason() const { return reason_; }

 private:
  double Seconds(size_t index, const LegConditions& now) const {
    return static_cast<double>(options_[index].round_bytes) / now.slowest.bytes_per_s;
  }
  std::string ReasonFor(const LegConditions& now) const;

  const std::vector<CodecOption> options_;
  size_t index_;
  std::string reason_;
};

}  // namespace causeway::server
