#include "server/rebuild/rebuild.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"
#include "core/text.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

using core::FragmentId;
using core::HeldVersion;
using core::SiteId;

constexpr int64_t kSilentMs = 60'000;

HeldVersion HeldOf(const core::FragmentState& state) {
  return {state.version, state.Digest(), core::DigestUnits(state.momentum, 0)};
}

std::optional<OwnHoldings> HoldingsOf(const std::optional<OwnState>& own) {
  if (!own) return std::nullopt;
  v1::Manifest manifest;
  transport::ToProto(own->model.run.manifest, &manifest);
  OwnHoldings holdings{.held = {own->lineage, manifest.SerializeAsString(), {}}, .sites = {}};
  holdings.held.settings = own->settings;
  for (const auto& [p, state] : own->fragments) holdings.held.fragments[p] = HeldOf(state);
  for (const auto& [site, record] : own->rounds.sites) {
    if (record.state != core::SiteState::kGone) holdings.sites.insert(site);
  }
  return holdings;
}

}  // namespace

absl::StatusOr<OwnState> ReadOwnState(const Journal& journal, const core::Shard& shard) {
  ASSIGN_OR_RETURN(StoredRun stored, journal.Load());
  OwnState own{.lineage = journal.identity().lineage,
               .rounds = std::move(stored.rounds),
               .model = std::move(stored.model),
               .fragments = {},
               .settings = std::move(stored.settings)};
  for (size_t p = 0; p < stored.fragments.size(); ++p) {
    const auto fragment = static_cast<FragmentId>(p);
    if (!shard.Owns(fragment)) continue;
    ASSIGN_OR_RETURN(own.fragments[fragment], journal.LoadSnapshot(fragment, stored.fragments[p].snapshot));
    own.fragments[fragment].run_tokens = stored.fragments[p].facts.run_tokens;
  }
  return own;
}

Rebuild::Rebuild(RebuildOptions options)
    : options_(std::move(options)),
      rules_(static_cast<int>(options_.config.sync.map_fragments()), options_.shard, options_.accept,
             HoldingsOf(options_.own)) {}

// ---- The streams ----

absl::Status Rebuild::Check(const v1::Holdings& holdings, Holdings& shown) const {
  const v1::Context& context = holdings.context();
  RETURN_IF_ERROR(transport::CheckCaller(context, options_.config.run_id));
  if (!core::IsValidName(context.site())) {
    return absl::InvalidArgumentError(absl::StrCat("expected the name of a site, got ", core::Quoted(context.site())));
  }
  ASSIGN_OR_RETURN(const core::Manifest manifest, transport::FromProto(holdings.manifest()));
  RETURN_IF_ERROR(core::BuildFragmentMap(manifest, options_.config.sync).status());
  shown.settings = {holdings.settings_before(), transport::FromProto(holdings.revisions())};
  core::RunSettings settings(options_.config);
  if (const absl::Status fits = AddSettings(shown.settings, settings); !fits.ok()) {
    spdlog::warn("site {}: its settings of the run are not taken: {}", context.site(), std::string(fits.message()));
    shown.settings = {};
  }
  shown.lineage = context.lineage();
  shown.model = holdings.manifest().SerializeAsString();
  for (const v1::HeldFragment& held : holdings.fragments()) {
    if (held.fragment() < 0 || held.fragment() >= options_.config.sync.map_fragments() || held.version() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("expected versions of fragments 0 to ",
                                                     options_.config.sync.map_fragments() - 1, ", got version ",
                                                     held.version(), " of fragment ", held.fragment()));
    }
    shown.fragments[held.fragment()] = {held.version(), held.anchor_digest(), held.momentum_digest()};
    shown.run_tokens[held.fragment()] = held.run_tokens();
    if (!held.has_before()) continue;
    const v1::HeldBefore& before = held.before();
    shown.before[held.fragment()] = {before.version(), before.anchor_digest(), before.momentum_digest()};
  }
  return absl::OkStatus();
}

absl::Status Rebuild::AddSettings(const core::SettingsChain& chain, core::RunSettings& settings) const {
  if (chain.revisions.empty()) return absl::OkStatus();
  if (options_.settings == nullptr) return absl::UnimplementedError("this coordinator cannot read them");
  if (!chain.IsChained()) return absl::InvalidArgumentError("their digests do not follow from each other");
  settings.BeginAfter(chain.before);
  for (const core::SettingsRevision& one : chain.revisions) {
    if (std::ssize(one.versions) != options_.config.sync.map_fragments()) {
      return absl::InvalidArgumentError(absl::StrCat("revision ", one.number, ": expected ",
                                                     options_.config.sync.map_fragments(), " versions, got ",
                                                     one.versions.size()));
    }
    const bool begins = settings.revision() == 0 && one.number > 1;
    ASSIGN_OR_RETURN(core::RunConfig config, options_.settings(begins ? nullptr : &settings.newest(), one.run_config));
    settings.Add(one, std::move(config));
  }
  return absl::OkStatus();
}

absl::Status Rebuild::BeginShow(const std::shared_ptr<ShowPeer>& peer, const v1::Holdings& holdings) {
  Holdings shown;
  RETURN_IF_ERROR(Check(holdings, shown));
  const SiteId& site = holdings.context().site();
  core::MutexLock lock(mutex_);
  if (rules_.Distrusts(site)) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " has sent other values than it showed"));
  }
  if (const auto earlier = peers_.find(site); earlier != peers_.end()) {
    earlier->second->End(absl::AbortedError("the site shows what it holds on a newer stream"));
    Forget(site);
  }
  if (peers_.size() >= static_cast<size_t>(core::kMaxSites)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(core::kMaxSites, " sites show what they hold, which is the limit"));
  }
  spdlog::info("site {} shows what it holds of lineage {}: {} fragments", site, shown.lineage, shown.fragments.size());
  peers_[site] = peer;
  sites_[site] = holdings.context().session();
  showing_[peer.get()] = {.site = site, .asked = std::nullopt};
  rules_.Show(site, std::move(shown), options_.clock->NowMs());
  return absl::OkStatus();
}

void Rebuild::EndShow(const ShowPeer* peer) {
  core::MutexLock lock(mutex_);
  if (const auto showing = showing_.find(peer); showing != showing_.end()) Forget(SiteId(showing->second.site));
}

void Rebuild::Forget(const SiteId& site) {
  const auto peer = peers_.find(site);
  if (peer == peers_.end()) return;
  showing_.erase(peer->second.get());
  peers_.erase(peer);
  rules_.Leave(site);
  std::erase_if(arriving_, [&](const auto& one) { return one.second.from == site && !one.second.whole; });
}

absl::Status Rebuild::TakePiece(const ShowPeer* peer, std::string_view piece) {
  core::MutexLock lock(mutex_);
  const auto found = showing_.find(peer);
  if (found == showing_.end() || !found->second.asked) {
    return absl::InvalidArgumentError("expected no piece of a fragment yet, got one that was not asked for");
  }
  Showing& showing = found->second;
  core::FragmentState& state = arriving_.at(*showing.asked).state;
  const auto values = static_cast<int64_t>(state.anchor.size());
  const auto count = static_cast<int64_t>(piece.size() / sizeof(float));
  if (piece.empty() || piece.size() % sizeof(float) != 0 || showing.taken + count > 2 * values) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", *showing.asked, ": expected whole float32 values, ",
                                                   2 * values, " in all, got a piece of ", piece.size(),
                                                   " bytes after ", showing.taken, " of them"));
  }
  const int64_t to_anchor = std::clamp<int64_t>(values - showing.taken, 0, count);
  std::memcpy(state.anchor.data() + showing.taken, piece.data(), to_anchor * sizeof(float));
  if (to_anchor < count) {
    std::memcpy(state.momentum.data() + (showing.taken + to_anchor - values), piece.data() + to_anchor * sizeof(float),
                (count - to_anchor) * sizeof(float));
  }
  showing.taken += count;
  showing.heard_ms = options_.clock->NowMs();
  return showing.taken < 2 * values ? absl::OkStatus() : FinishFragment(showing);
}

absl::Status Rebuild::FinishFragment(Showing& showing) {
  const FragmentId p = *std::exchange(showing.asked, std::nullopt);
  Arriving& arriving = arriving_.at(p);
  const HeldVersion& expected = arriving.held;
  const HeldVersion sent = HeldOf(arriving.state);
  if (sent == expected) {
    arriving.whole = true;
    spdlog::info("fragment {}: version {} is here, from site {}", p, expected.version, showing.site);
    AskForMissing();
    return absl::OkStatus();
  }
  const SiteId site = showing.site;
  const std::string lie = absl::StrCat(
      "what it sent of fragment ", p, " version ", expected.version, " has the digests ",
      core::DigestText(sent.anchor_digest), " and ", core::DigestText(sent.momentum_digest), ", it had shown ",
      core::DigestText(expected.anchor_digest), " and ", core::DigestText(expected.momentum_digest));
  spdlog::warn("site {} is refused: {}", site, lie);
  events_.push_back({.kind = "rebuild", .site = site, .fragment = p, .text = absl::StrCat("refused: ", lie)});
  Forget(site);
  rules_.Distrust(site);
  sites_.erase(site);
  ResetChoice();
  return absl::FailedPreconditionError(lie);
}

// A witness is lost. Whole fragments stay if the next choice is the same; partial ones are fetched again.
void Rebuild::ResetChoice() {
  choice_.reset();
  std::vector<SiteId> asked;
  for (const auto& [peer, showing] : showing_) {
    if (showing.asked) asked.push_back(showing.site);
  }
  for (const SiteId& site : asked) {
    peers_.at(site)->End(absl::AbortedError("the rebuild assigns fragments to sites anew: show the state again"));
    Forget(site);
  }
}

// ---- The owner ----

void Rebuild::Choose() {
  absl::StatusOr<RebuildChoice> chosen = rules_.Choose(options_.clock->NowMs());
  if (!chosen.ok()) {
    const std::string before = std::exchange(progress_, std::string(chosen.status().message()));
    if (progress_ != before) spdlog::info("{}", progress_);
    undecided_ = options_.own && rules_.IsSettled(options_.clock->NowMs());
    return;
  }
  v1::Manifest manifest;
  CHECK(manifest.ParseFromString(chosen->model));
  map_ = *core::BuildFragmentMap(*transport::FromProto(manifest), options_.config.sync);  // as checked by Check
  for (const std::string& sentence : chosen->dissent) spdlog::warn("{}", sentence);
  std::erase_if(arriving_, [&](const auto& one) { return one.second.held != chosen->fragments.at(one.first).held; });
  choice_ = *std::move(chosen);
  TakeOwn();
  AskForMissing();
}

void Rebuild::TakeOwn() {
  for (const auto& [p, chosen] : choice_->fragments) {
    if (!chosen.witnesses.empty()) continue;
    arriving_[p] = {.state = options_.own->fragments.at(p), .held = chosen.held, .whole = true, .from = ""};
  }
}

// Each witness sends one fragment at a time.
void Rebuild::AskForMissing() {
  size_t whole = 0;
  for (const auto& [p, chosen] : choice_->fragments) {
    whole += IsWhole(p);
    if (arriving_.contains(p)) continue;
    const FragmentId wanted = p;  // clang 14 captures no binding
    std::vector<SiteId> witnesses = chosen.witnesses;
    std::stable_partition(witnesses.begin(), witnesses.end(),
                          [this](const SiteId& site)
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !silent_.contains(site); });
    const auto free = std::ranges::find_if(witnesses, [&](const SiteId& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return IsWitness(site, wanted) && !showing_.at(peers_.at(site).get()).asked;
    });
    if (free == witnesses.end()) continue;
    Arriving& arriving = arriving_[p];
    arriving.from = *free;
    arriving.held = chosen.held;
    arriving.state.version = chosen.held.version;
    arriving.state.run_tokens = chosen.run_tokens;
    arriving.state.anchor.resize(map_.fragment(p).padded_values());
    arriving.state.momentum.resize(map_.fragment(p).padded_values());
    Showing& showing = showing_.at(peers_.at(*free).get());
    showing.asked = p;
    showing.taken = 0;
    showing.heard_ms = options_.clock->NowMs();
    peers_.at(*free)->Ask(p);
  }
  progress_ = absl::StrCat(whole, " of ", choice_->fragments.size(), " fragments are here");
}

bool Rebuild::IsWhole(FragmentId p) const {
  const auto arriving = arriving_.find(p);
  return arriving != arriving_.end() && arriving->second.whole;
}

// It may have shown something else since it was chosen.
bool Rebuild::IsWitness(const SiteId& site, FragmentId p) const {
  return peers_.contains(site) && rules_.Holds(site, p, choice_->fragments.at(p).held);
}

// A site that does not send what it was asked for also holds up the fragments of others.
void Rebuild::EndSilent() {
  std::vector<SiteId> silent;
  for (const auto& [peer, showing] : showing_) {
    if (showing.asked && options_.clock->NowMs() - showing.heard_ms >= kSilentMs) silent.push_back(showing.site);
  }
  for (const SiteId& site : silent) {
    spdlog::warn("site {} sends nothing of a fragment for {} s: others are asked first", site, kSilentMs / 1000);
    silent_.insert(site);
    peers_.at(site)->End(absl::AbortedError("the fragment that was asked for did not arrive"));
    Forget(site);
  }
}

void Rebuild::Tick() {
  core::MutexLock lock(mutex_);
  EndSilent();
  if (!choice_) return Choose();
  // A witness may have gone: others are asked, or a new choice is made.
  const bool all_have_one =
      std::ranges::all_of(choice_->fragments, [this](const auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return IsWhole(one.first) ||
               std::ranges::any_of(one.second.witnesses, [&](const SiteId& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                 return IsWitness(site, one.first);
               });
      });
  all_have_one ? AskForMissing() : ResetChoice();
}

std::string Rebuild::Progress() {
  core::MutexLock lock(mutex_);
  return progress_;
}

bool Rebuild::undecided() {
  core::MutexLock lock(mutex_);
  return undecided_ && !choice_;
}

bool Rebuild::complete() {
  core::MutexLock lock(mutex_);
  return choice_ && std::ranges::all_of(choice_->fragments, [this](const auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                                                mutex_) { return IsWhole(one.first); });
}

// Records the sites as gone, with everything before the present version counted as merged. So each joins anew, and
// repeats its contribution to that version.
core::RoundState Rebuild::RoundsOfTheSites() const {
  core::RoundState rounds = options_.own ? options_.own->rounds : core::RoundState();
  rounds.started = true;
  for (const auto& [site, session] : sites_) rounds.sites[site].session = session;
  for (auto& [site, record] : rounds.sites) {
    record.state = core::SiteState::kGone;
    record.reason = "the state was rebuilt from the sites'";
    record.first_versions.clear();
    record.stay = options_.clock->UnixMs();  // above all earlier ones of the site
    record.last_merged.resize(options_.config.sync.map_fragments(), -1);
    for (const auto& [p, chosen] : choice_->fragments) record.last_merged[p] = chosen.held.version - 1;
  }
  return rounds;
}

absl::Status Rebuild::Save(Journal& journal) {
  core::MutexLock lock(mutex_);
  core::RunSettings settings(options_.config);
  RETURN_IF_ERROR(AddSettings(choice_->settings, settings));
  for (auto& [p, arriving] : arriving_) {
    const bool stays = choice_->fragments.at(p).witnesses.empty();
    if (!stays && settings.AtVersion(p, arriving.held.version).codec.feedback_down > 0) {
      arriving.state.residual.resize(arriving.state.anchor.size());
    }
    RETURN_IF_ERROR(journal.SaveSnapshot(p, arriving.state, arriving.held.anchor_digest));
  }
  const RunRecord run = RunRecordOf(map_);
  JournalEntry entry;
  entry.state = RoundsOfTheSites();
  entry.model = options_.own ? options_.own->model : ModelRecord{.generation = 1, .run = run, .seeder = ""};
  entry.settings = choice_->settings;
  if (options_.own) {
    const int64_t known = options_.own->settings.revisions.empty() ? 0 : options_.own->settings.revisions.back().number;
    entry.settings.before = 0;
    std::erase_if(entry.settings.revisions, [known](const auto& one) { return one.number <= known; });
  }
  entry.events = events_;
  for (const core::SettingsRevision& one : entry.settings.revisions) {
    entry.events.push_back({.kind = "set",
                            .text = absl::StrCat("revision ", one.number, ", from step ", one.step,
                                                 ", as sites hold it: ", absl::StrJoin(one.changes, ", "))});
  }
  for (const std::string& sentence : choice_->dissent) {
    entry.events.push_back({.kind = "rebuild", .site = "", .fragment = -1, .text = sentence});
  }
  const std::string versions = absl::StrJoin(choice_->fragments, ", ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, one.second.held.version);
  });
  const auto before = [&](std::string* out, const auto& one) { absl::StrAppend(out, one.second.version); };
  const std::string lost = options_.own ? absl::StrCat("the end of the journal was lost: it held versions ",
                                                       absl::StrJoin(options_.own->fragments, ", ", before), "; ")
                                        : "";
  entry.events.push_back({.kind = options_.own ? "history_lost" : "rebuild",
                          .site = "",
                          .fragment = -1,
                          .text = absl::StrCat(lost, "the state was rebuilt from what the sites held of lineage ",
                                               choice_->lineage, ": versions ", versions)});
  progress_ = entry.events.back().text;
  spdlog::warn("{}", progress_);
  entry.continues = choice_->lineage;
  if (options_.own) {  // its run has begun
    journal.Commit(std::move(entry));
    journal.Flush();
    RETURN_IF_ERROR(journal.status());
  } else {
    RETURN_IF_ERROR(journal.Begin(run, std::move(entry)));
  }
  for (const auto& [site, peer] : peers_) peer->End(absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace causeway::server
