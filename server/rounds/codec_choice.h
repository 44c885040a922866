// Which codec a leg takes, where run.yaml says `auto`: the best of those allowed whose payload fits the round on the
// slowest active link.
//
//   sites' reports ─► SiteSpeeds: bytes/s of each link, seconds of a step ─► LegConditions ─┐
//   what a site moves in a round, by codec ─────────────────────────────────────────────────┴─► codec, and why
//
//   share = (bytes / rate) / (H · step)         over kMostShare: a cheaper one at once
//                                               up to kShareToImprove: a better one
//
// Rates are measured while other transfers go on, so they hold what sites share with each other; the rest of a round is
// for the other leg's half of the path, the merge and unsteady links. A better codec needs more room than the one there
// is, so that a rate between the two thresholds changes nothing. Rates are averages already, made by the sites.
//
// Pure; one owner at a time. The decision is the caller's to keep: a replay reads it and asks nobody.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/ids.h"
#include "core/membership.h"
#include "server/rounds/pace.h"

namespace causeway::server {

// Of a round's seconds, what a codec's transfer may take, and below what a better one is taken.
inline constexpr double kMostShare = 0.8;
inline constexpr double kShareToImprove = 0.65;

// How fast sites are, by what they report.
class SiteSpeeds {
 public:
  void Heard(const core::SiteId& site, const core::Progress& progress);

  struct Slowest {
    core::SiteId site;       // empty: there is none
    double bytes_per_s = 0;  // 0: not measured
  };
  enum class Leg { kUp, kDown };
  // Of these sites. One that is not measured counts as slowest. Where the transfers of a cheap codec are too short to
  // tell the rate, what they reach at least counts, or the codec could never become better again.
  Slowest SlowestLink(const std::vector<core::SiteId>& sites, Leg leg) const;
  // Of an inner step, without what the site has waited: everyone waits for the slowest. 0: nobody has stepped.
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
  int64_t round_bytes = 0;  // of one site and one leg: all fragments once
};

class CodecChoice {
 public:
  // Best first, one at least; begins with the cheapest.
  explicit CodecChoice(std::vector<CodecOption> options);

  // True if the codec is another one than before.
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
