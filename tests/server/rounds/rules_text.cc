#include "tests/server/rounds/rules_text.h"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"

namespace causeway::server {

using core::SiteState;

namespace {

std::string Because(const std::string& reason) { return reason.empty() ? "" : absl::StrCat(" : ", reason); }

// " name=value", unless the value is what an absent field means.
std::string Field(const char* name, std::integral auto value, int64_t otherwise = 0) {
  return int64_t{value} == otherwise ? "" : absl::StrCat(" ", name, "=", int64_t{value});
}
std::string Field(const char* name, const std::string& value) {
  return value.empty() ? "" : absl::StrCat(" ", name, "=", value);
}
template <typename T>
std::string Field(const char* name, const std::vector<T>& values) {
  return values.empty() ? "" : absl::StrCat(" ", name, "=", absl::StrJoin(values, ","));
}
std::string Field(const char* name, double value) {
  return value == 0 ? "" : absl::StrCat(" ", name, "=", RealText(value));
}

// "training", or how one that is gone has ended: "expired".
template <typename Site>
std::string StateText(const Site& site) {
  const bool gone = site.state == SiteState::kGone;
  return gone ? core::EndedName(site.ended) : core::SiteStateName(site.state);
}
template <typename Site>
void ReadState(const std::string& text, Site& site) {
  const auto state = std::ranges::find(core::kSiteStates, text, core::SiteStateName);
  const auto ended = std::ranges::find(core::kEnds, text, core::EndedName);
  CHECK(state != core::kSiteStates.end() || ended != core::kEnds.end());
  site.state = state != core::kSiteStates.end() ? *state : SiteState::kGone;
  if (ended != core::kEnds.end()) site.ended = *ended;
}

std::string TextOf(const core::Admitted& admitted) {
  return absl::StrCat(" base=", admitted.base, Field("tokens", admitted.tokens), Field("steps", admitted.steps),
                      Field("norm", admitted.norm));
}

struct TextOfAction {
  std::string operator()(const RequestSeed& action) const { return absl::StrCat("seed ", action.site); }
  std::string operator()(const Enter& action) const {
    const core::Entry& entry = action.entry;
    return absl::StrCat("enter ", action.site, Field("step", entry.step), Field("stay", entry.stay),
                        Field("versions", entry.versions), Field("first", entry.first_versions),
                        Field("sites", entry.sites));
  }
  std::string operator()(const CloseRound& action) const {
    std::vector<std::string> from;
    for (const CloseRound::Contributor& one : action.contributors) {
      from.push_back(absl::StrCat(one.site, "@", one.base, "*", RealText(one.weight),
                                  one.factor == 1 ? "" : absl::StrCat("/", RealText(one.factor))));
    }
    return absl::StrCat("close fragment=", action.fragment, " base=", action.base,
                        action.rolled_back_to ? absl::StrCat(" restores=", *action.rolled_back_to) : "",
                        Field("from", from), Field("sites", action.sites), Because(action.reason));
  }
  std::string operator()(const Dropped& action) const {
    return absl::StrCat("drop ", action.site, " ended=", core::EndedName(action.ended), Because(action.reason));
  }
  std::string operator()(const Forgotten& action) const { return absl::StrCat("forget ", action.site); }
};

}  // namespace

std::string RealText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string TextOf(const Action& action) { return std::visit(TextOfAction(), action); }

std::string TextOf(const JoinDecision& decision) {
  if (!decision.accepted)
    return absl::StrCat("refused", Field("retry", decision.retry_after_ms), Because(decision.reason));
  return absl::StrCat("accepted", decision.resumed ? " resumed" : "", decision.forgotten ? " forgotten" : "",
                      Field("admitted", decision.last_admitted));
}

std::string TextOf(const absl::Status& status) {
  return status.ok() ? "ok" : absl::StrCat(absl::StatusCodeToString(status.code()), " : ", status.message());
}

std::string TextOf(const core::Membership& membership) {
  std::string text = absl::StrCat("membership", Field("started", membership.started),
                                  Field("finished", membership.finished), Field("paused", membership.paused),
                                  Field("stopped", membership.stopped), Field("seeder", membership.seeder), "\n");
  for (const auto& [site, member] : membership.sites) {
    absl::StrAppend(&text, "  member ", site, Field("session", member.session), Field("stay", member.stay),
                    Field("state", StateText(member)), Field("first", member.first_versions),
                    Field("releases", member.releases), Because(member.reason), "\n");
  }
  return text;
}

std::string TextOf(const core::RoundState& state) {
  std::string text = absl::StrCat(
      "state", Field("seeded", state.seeded), Field("started", state.started), Field("finished", state.finished),
      Field("paused", state.paused), Field("stopped", state.stopped), Field("versions", state.versions),
      Field("tokens",
            std::ranges::count(state.tokens, 0) == std::ssize(state.tokens) ? std::vector<int64_t>() : state.tokens),
      "\n");
  for (const auto& [site, record] : state.sites) {
    absl::StrAppend(&text, "  site ", site, Field("session", record.session), Field("stay", record.stay),
                    Field("state", StateText(record)), Field("first", record.first_versions),
                    Field("merged", record.last_merged), Field("refusals", record.refusals),
                    Field("quarantined", record.quarantined), Field("starts_anew", record.starts_anew),
                    Field("releases", record.releases), Because(record.reason), "\n");
  }
  for (size_t p = 0; p < state.contributions.size(); ++p) {
    for (const auto& [site, admitted] : state.contributions[p]) {
      absl::StrAppend(&text, "  contribution ", site, " fragment=", p, TextOf(admitted), "\n");
    }
  }
  for (const auto& [site, record] : state.sites) {
    for (size_t p = 0; p < record.merged.size(); ++p) {
      for (const core::Merged& one : record.merged[p]) {
        absl::StrAppend(&text, "  merged ", site, " fragment=", p, " version=", one.version, TextOf(one.admitted),
                        one.factor == 1 ? "" : Field("factor", double{one.factor}), "\n");
      }
    }
  }
  return text;
}

std::string TextOf(const ShardReport& report) {
  return absl::StrCat("report", Field("seeded", report.seeded), Field("versions", report.versions),
                      Field("stranded", report.stranded), Field("stay", report.stranded_stay));
}

std::string TextOf(const RoundSettings& settings) {
  const core::SyncConfig& sync = settings.sync;
  const core::MembershipConfig& membership = settings.membership;
  const int64_t most = settings.max_tokens_per_step == nullptr ? 0 : settings.max_tokens_per_step("");
  return absl::StrCat(
      "settings", sync.mode == core::SyncMode::kQuorum ? " mode=quorum" : "", " sync_every=", sync.sync_every,
      " fragments=", sync.num_fragments, Field("parts", sync.parts, 1), Field("delay", sync.fragment_sync_delay),
      Field("offsets", sync.fragment_offsets), Field("first_send", static_cast<int64_t>(sync.first_send)),
      Field("min_sites", membership.min_sites, 1), Field("min_quorum", membership.min_quorum, 1),
      Field("grace_ms", membership.grace_ms), " lease_ms=", membership.lease_ms,
      Field("max_staleness", membership.max_staleness, 1), Field("weights", static_cast<int64_t>(membership.weights)),
      Field("gate", settings.values.gate), Field("clip", settings.values.clip),
      Field("weight_cap", settings.values.weight_cap), Field("shard", settings.shard.index),
      Field("shards", settings.shard.count, 1), Field("max_tokens_per_step", most), Field("steps", settings.steps),
      Field("run_tokens", settings.run_tokens));
}

RoundSettings SettingsOf(const core::ScriptLine& line) {
  RoundSettings settings;
  core::SyncConfig& sync = settings.sync;
  if (line.Word("mode") == "quorum") sync.mode = core::SyncMode::kQuorum;
  sync.sync_every = line.Number("sync_every", 8);
  sync.num_fragments = static_cast<int>(line.Number("fragments", 1));
  sync.parts = static_cast<int>(line.Number("parts", 1));
  sync.fragment_sync_delay = line.Number("delay");
  sync.fragment_offsets = line.Numbers("offsets");
  sync.first_send = static_cast<core::FirstSend>(line.Number("first_send"));
  core::MembershipConfig& membership = settings.membership;
  membership.min_sites = static_cast<int>(line.Number("min_sites", 1));
  membership.min_quorum = static_cast<int>(line.Number("min_quorum", 1));
  membership.grace_ms = line.Number("grace_ms");
  membership.lease_ms = line.Number("lease_ms", 1000);
  membership.max_staleness = line.Number("max_staleness", 1);
  membership.weights = static_cast<core::WeightRule>(line.Number("weights"));
  settings.values = {
      .gate = line.Real("gate"), .clip = line.Number("clip") != 0, .weight_cap = line.Real("weight_cap")};
  settings.shard = {static_cast<int>(line.Number("shard")), static_cast<int>(line.Number("shards", 1))};
  settings.steps = line.Number("steps");
  settings.run_tokens = line.Number("run_tokens");
  if (const int64_t most = line.Number("max_tokens_per_step")) {
    settings.max_tokens_per_step = [most](const core::SiteId&) { return most; };
  }
  return settings;
}

core::Admitted AdmittedOf(const core::ScriptLine& line) {
  return {.base = line.Number("base"),
          .tokens = line.Number("tokens"),
          .steps = line.Number("steps"),
          .norm = line.Real("norm")};
}

void AddTo(const core::ScriptLine& line, core::Membership& membership) {
  if (line.words.at(0) == "membership") {
    membership = {.started = line.Number("started") != 0,
                  .finished = line.Number("finished") != 0,
                  .paused = line.Number("paused") != 0,
                  .stopped = line.Number("stopped") != 0,
                  .seeder = line.Word("seeder"),
                  .sites = {}};
    return;
  }
  CHECK(line.words.at(0) == "member");
  core::Member& member = membership.sites[line.words.at(1)];
  member = {.session = line.Word("session"),
            .stay = line.Number("stay"),
            .reason = line.text,
            .first_versions = line.Numbers("first"),
            .releases = line.Number("releases")};
  ReadState(line.Word("state"), member);
}

void AddTo(const core::ScriptLine& line, core::RoundState& state) {
  const std::string& kind = line.words.at(0);
  if (kind == "state") {
    state = {};
    state.seeded = line.Number("seeded") != 0;
    state.started = line.Number("started") != 0;
    state.finished = line.Number("finished") != 0;
    state.paused = line.Number("paused") != 0;
    state.stopped = line.Number("stopped") != 0;
    state.versions = line.Numbers("versions");
    state.tokens = line.Numbers("tokens");
    state.contributions.resize(state.versions.size());
  } else if (kind == "site") {
    core::SiteRecord& record = state.sites[line.words.at(1)];
    record.session = line.Word("session");
    record.stay = line.Number("stay");
    ReadState(line.Word("state"), record);
    record.reason = line.text;
    record.first_versions = line.Numbers("first");
    record.last_merged = line.Numbers("merged");
    record.refusals = static_cast<int>(line.Number("refusals"));
    record.quarantined = line.Number("quarantined") != 0;
    record.starts_anew = line.Number("starts_anew") != 0;
    record.releases = line.Number("releases");
  } else if (kind == "contribution") {
    state.contributions.at(line.Number("fragment"))[line.words.at(1)] = AdmittedOf(line);
  } else {
    CHECK(kind == "merged");
    core::SiteRecord& record = state.sites.at(line.words.at(1));
    record.merged.resize(state.versions.size());
    record.merged.at(line.Number("fragment"))
        .push_back({line.Number("version"), AdmittedOf(line), static_cast<float>(line.Real("factor", 1))});
  }
}

}  // namespace causeway::server
