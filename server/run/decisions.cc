#include "server/run/decisions.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace causeway::server {

using core::SiteId;
using core::SiteRecord;

namespace {

// γ of a round: the product over the legs that have no feedback, where the run wants it.
float GainOf(const core::RunConfig& config, const std::optional<RoundCodecs>& codecs) {
  if (!config.codec_gain) return 1;
  const float up = config.codec.feedback_up > 0 ? 1 : core::CodecGain(codecs ? codecs->up : config.codec.up);
  const float down = config.codec.feedback_down > 0 ? 1 : core::CodecGain(codecs ? codecs->down : config.codec.down);
  return up * down;
}

}  // namespace

std::optional<RoundCodecs> Decisions::DecideCodecs(const CloseRound& round, RunParts& run) {
  const std::optional<RoundCodecs> codecs =
      codecs_.Decide(round.fragment, round.base, run.rules.ActiveSites(), std::ssize(round.contributors));
  for (const std::string& change : codecs_.TakeChanges()) {
    spdlog::info("codec {}", change);
    run.ready.Note("codec", change);
  }
  return codecs;
}

void Decisions::Carry(const CloseRound& action, RunParts& run) {
  RoundRecord round{.fragment = action.fragment,
                    .base = action.base,
                    .outer = settings_.AtVersion(action.fragment, action.base).outer,  // its gain follows
                    .sites = action.sites,
                    .reason = action.reason,
                    .codecs = DecideCodecs(action, run),
                    .run_tokens = action.run_tokens,
                    .revision = settings_.RevisionAt(action.fragment, action.base),
                    .rolled_back_to = action.rolled_back_to};
  round.outer.gain = GainOf(settings_.AtVersion(action.fragment, action.base), round.codecs);
  std::vector<double> weights;
  for (const CloseRound::Contributor& contributor : action.contributors) weights.push_back(contributor.weight);
  const std::vector<float> normalized = NormalizedWeights(weights);
  NoteMembers(action, run);
  MergeJob job;
  for (size_t i = 0; i < action.contributors.size(); ++i) {
    const CloseRound::Contributor& contributor = action.contributors[i];
    round.contributors.push_back({contributor.site, contributor.base, normalized[i], contributor.factor});
    job.contributions.push_back(uploads_.Take(action.fragment, contributor.site));
    run.members[contributor.site].merged_weight += normalized[i];
  }
  if (action.rolled_back_to) uploads_.Clear(action.fragment);
  ++closed_;
  // Without its numbers, a reason changes only when something other than the time does.
  std::string reason = action.reason;
  std::erase_if(reason, [](char c) { return absl::ascii_isdigit(c); });
  std::string& noted = noted_reasons_[action.fragment];
  if (noted != reason) spdlog::info("fragment {}: rounds close as {}", action.fragment, action.reason);
  noted = std::move(reason);
  run.ready.Note(
      "round", "", action.fragment,
      absl::StrCat("version ", action.base + 1, ": ", action.reason, ": ",
                   absl::StrJoin(round.contributors, ", ", [](std::string* out, const RoundRecord::Contributor& c) {
                     absl::StrAppend(out, c.site, " (base ", c.base, ", weight ", c.weight, ")");
                   })));
  run.ready.state_changed = true;
  job.round = round;
  run.ready.entry.decided.push_back(std::move(round));
  run.ready.effects.emplace_back(effect::Merge{model_.parameters(), std::move(job)});
}

std::string Decisions::WhyMissed(const CloseRound& action, const SiteId& site, const SiteRecord& record,
                                 const Member& member) const {
  const core::Version first = record.first_versions[action.fragment];
  if (first > action.base) return absl::StrCat("takes part from version ", first + 1, " on");
  if (member.silent_ms) return "its control stream was broken";
  if (member.progress->completing) return "it has done all its steps";
  const char* where = uploads_.Find(action.fragment, site) != nullptr ? "its contribution was on its way"
                                                                      : "it had not begun to send its contribution";
  return absl::StrCat(where, " when the round closed: ", action.reason);
}

void Decisions::NoteMembers(const CloseRound& action, RunParts& run) {
  const int64_t unix_ms = clock_.UnixMs();
  const core::Version version = action.base + 1;
  int64_t first_ms = clock_.NowMs();
  const int64_t now_ms = first_ms;
  for (const CloseRound::Contributor& contributor : action.contributors) {
    first_ms = std::min(first_ms, uploads_.Find(action.fragment, contributor.site)->begun_ms);
    Member& member = run.members[contributor.site];
    member.last_merged = {action.fragment, version, unix_ms};
    member.staleness = action.base - contributor.base;
  }
  for (const auto& [site, record] : run.rules.state().sites) {
    const bool contributed = std::ranges::count(action.contributors, site, &CloseRound::Contributor::site) > 0;
    Member* const member = run.members.Find(site);
    if (contributed || !core::IsActive(record.state) || member == nullptr) continue;
    member->missed = {action.fragment, version, WhyMissed(action, site, record, *member)};
  }
  figures_.Decided(action.fragment, version, action.reason, unix_ms, SecondsOf(now_ms - first_ms));
}

}  // namespace causeway::server
