#include "server/rounds/codec_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::server {

void SiteSpeeds::Heard(const core::SiteId& site, const core::Progress& progress) {
  Site& speed = sites_[site];
  const core::Progress& last = speed.last;
  // A site that has entered anew, or repeats steps, is measured from the start.
  if (last.step > 0 && progress.step > last.step && progress.compute_s > last.compute_s) {
    speed.seconds.Add(progress.compute_s - last.compute_s);
    speed.steps.Add(static_cast<double>(progress.step - last.step));
  }
  speed.last = progress;
}

SiteSpeeds::Slowest SiteSpeeds::SlowestLink(const std::vector<core::SiteId>& sites, Leg leg) const {
  Slowest slowest;
  for (const core::SiteId& site : sites) {
    const auto found = sites_.find(site);
    const core::LinkProgress link = found == sites_.end() ? core::LinkProgress{} : found->second.last.link;
    const double rate = leg == Leg::kUp ? std::max(link.up_bytes_per_s, link.up_least_bytes_per_s)
                                        : std::max(link.down_bytes_per_s, link.down_least_bytes_per_s);
    if (slowest.site.empty() || rate < slowest.bytes_per_s) slowest = {site, rate};
  }
  return slowest;
}

double SiteSpeeds::StepS(const std::vector<core::SiteId>& sites) const {
  double longest = 0;
  for (const core::SiteId& site : sites) {
    const auto found = sites_.find(site);
    if (found == sites_.end() || !found->second.steps.value()) continue;
    longest = std::max(longest, *found->second.seconds.value() / *found->second.steps.value());
  }
  return longest;
}

CodecChoice::CodecChoice(std::vector<CodecOption> options) : options_(std::move(options)), index_(options_.size() - 1) {
  CHECK(!options_.empty());
  reason_ = absl::StrCat(core::CodecName(codec()), ": no round has been decided yet");
}

bool CodecChoice::Choose(const LegConditions& now) {
  const size_t before = index_;
  const size_t cheapest = options_.size() - 1;
  if (now.slowest.bytes_per_s <= 0 || now.round_s <= 0) {
    index_ = cheapest;
  } else if (Seconds(index_, now) > kMostShare * now.round_s) {
    while (index_ < cheapest && Seconds(index_, now) > kMostShare * now.round_s) ++index_;
  } else {
    size_t better = 0;
    while (better < index_ && Seconds(better, now) > kShareToImprove * now.round_s) ++better;
    index_ = better;
  }
  reason_ = ReasonFor(now);
  return index_ != before;
}

std::string CodecChoice::ReasonFor(const LegConditions& now) const {
  const std::string name = core::CodecName(codec());
  if (now.slowest.site.empty()) return absl::StrCat(name, ": no site is active");
  if (now.slowest.bytes_per_s <= 0) {
    return absl::StrCat(name, ", the cheapest: the link of ", now.slowest.site, " is not measured yet");
  }
  if (now.round_s <= 0) return absl::StrCat(name, ", the cheapest: the time of a step is not measured yet");
  std::string reason = absl::StrFormat("%s: %.3g MB a round need %.3g s of %.3g s on the slowest link (%s, %.3g MB/s)",
                                       name, options_[index_].round_bytes / 1e6, Seconds(index_, now), now.round_s,
                                       now.slowest.site, now.slowest.bytes_per_s / 1e6);
  if (index_ == 0) return reason;
  absl::StrAppendFormat(&reason, "; %s would need %.3g s, and is taken up to %.3g s",
                        core::CodecName(options_[index_ - 1].codec), Seconds(index_ - 1, now),
                        kShareToImprove * now.round_s);
  return reason;
}

}  // namespace causeway::server
