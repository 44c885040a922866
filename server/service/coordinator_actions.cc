// The part of Coordinator that carries out the rules' decisions: collects rows and effects, and publishes them.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "server/service/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {

void Coordinator::Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment,
                       const std::string& text) {
  entry_.events.push_back(
      {.kind = kind, .site = site, .fragment = fragment, .text = core::Clipped(text, core::kMaxEventTextBytes)});
}

void Coordinator::Then(std::function<void()> effect) { effects_.push_back(std::move(effect)); }

void Coordinator::Publish() {
  NoteReasons();
  NoteMembership();
  NoteReport();
  const bool rows = state_changed_ || entry_.eval_loss || entry_.model || entry_.data || !entry_.admitted.empty() ||
                    !entry_.decided.empty() || !entry_.events.empty();
  if (!rows && effects_.empty()) return;
  if (state_changed_) entry_.state = rounds_->state();
  entry_.durable = [effects = std::move(effects_)] {
    for (const auto& effect : effects) effect();
  };
  journal_->Commit(std::move(entry_));
  entry_ = {};
  effects_ = {};
  state_changed_ = false;
}

void Coordinator::SendTo(const core::SiteId& site, const v1::CoordinatorMessage& message) {
  if (const auto& peer = members_[site].peer; peer != nullptr) Then([peer, message] { peer->Send(message); });
}

void Coordinator::Perform(const Actions& actions) {
  // Rounds come first: they take the contributions left by sites that are gone.
  for (const Action& action : actions) {
    if (const auto* close = std::get_if<CloseRound>(&action)) Perform(*close);
  }
  for (const Action& action : actions) {
    if (std::holds_alternative<CloseRound>(action)) continue;
    std::visit([this](const auto& chosen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Perform(chosen); }, action);
  }
}

void Coordinator::Perform(const RequestSeed& action) {
  if (!model_.known()) return;
  if (!model_.stays()) {  // else another shard lacks its part
    // Parts sent by another seeder so far are void.
    const bool another = model_.ExpectSeedFrom(action.site, rounds_->state().sites.at(action.site).session);
    if (another || seeds_.empty()) seeds_.assign(model_.map().num_fragments(), nullptr);
    if (another) NoteModel();
  }
  spdlog::info("site {}: the initial parameters are requested from it", action.site);
  v1::CoordinatorMessage message;
  message.mutable_seed_request();
  SendTo(action.site, message);
}

void Coordinator::Perform(const Enter& action) {
  const std::string where =
      rounds_->follows() ? "where shard 0 has put it" : absl::StrCat("after step ", action.entry.step);
  spdlog::info("site {}: enters {}", action.site, where);
  state_changed_ = true;
  Note("enter", action.site, -1, where);
  v1::CoordinatorMessage message;
  transport::ToProto(action.entry, message.mutable_entry());
  SendTo(action.site, message);
}

std::optional<RoundCodecs> Coordinator::DecideCodecs(core::FragmentId fragment) {
  const std::optional<RoundCodecs> codecs = codecs_.Decide(fragment, rounds_->ActiveSites());
  for (const std::string& change : codecs_.TakeChanges()) {
    spdlog::info("codec {}", change);
    Note("codec", "", -1, change);
  }
  return codecs;
}

void Coordinator::Perform(const CloseRound& action) {
  RoundRecord round{.fragment = action.fragment,
                    .base = action.base,
                    .outer = options_.config.outer,
                    .sites = action.sites,
                    .reason = action.reason,
                    .codecs = DecideCodecs(action.fragment),
                    .rolled_back_to = action.rolled_back_to};
  std::vector<double> weights;
  for (const CloseRound::Contributor& contributor : action.contributors) weights.push_back(contributor.weight);
  const std::vector<float> normalized = NormalizedWeights(weights);
  LogDecided(action);
  auto& open = open_[action.fragment];
  MergeJob job;
  for (size_t i = 0; i < action.contributors.size(); ++i) {
    const CloseRound::Contributor& contributor = action.contributors[i];
    round.contributors.push_back({contributor.site, contributor.base, normalized[i] * contributor.clip});
    job.contributions.push_back(open.at(contributor.site).contribution);
    open.erase(contributor.site);
    members_[contributor.site].merged_weight += normalized[i];
  }
  if (action.rolled_back_to) open.clear();
  ++rounds_closed_;
  // Without its numbers, a reason changes only when something other than the time does.
  std::string reason = action.reason;
  std::erase_if(reason, [](char c) { return absl::ascii_isdigit(c); });
  std::string& noted = noted_round_reasons_[action.fragment];
  if (noted != reason) spdlog::info("fragment {}: rounds close as {}", action.fragment, action.reason);
  noted = std::move(reason);
  Note("round", "", action.fragment,
       absl::StrCat("version ", action.base + 1, ": ", action.reason, ": ",
                    absl::StrJoin(round.contributors, ", ", [](std::string* out, const RoundRecord::Contributor& c) {
                      absl::StrAppend(out, c.site, " (base ", c.base, ", weight ", c.weight, ")");
                    })));
  state_changed_ = true;
  job.round = round;
  entry_.decided.push_back(std::move(round));
  Then([this, job = std::make_shared<MergeJob>(std::move(job))] { parameters_->Merge(std::move(*job)); });
}

void Coordinator::Perform(const Dropped& action) {
  spdlog::info("site {}: is out of the run: {}", action.site, action.reason);
  state_changed_ = true;
  Note("drop", action.site, -1, action.reason);
  ForgetArriving(action.site);
  Member& member = members_[action.site];
  core::Progress progress = *member.progress;
  progress.in_flight.clear();
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  member.silent_ms.reset();
  if (member.peer != nullptr) Then([peer = member.peer] { peer->Close(); });
  member.peer.reset();
}

void Coordinator::Perform(const Forgotten& action) {
  spdlog::warn("site {}: its name is given up: the run has {} sites, and it has been gone for the longest time",
               action.site, core::kMaxSites);
  state_changed_ = true;
  Note("forget", action.site, -1, "if it comes back, it starts from the anchor");
  if (data_.Forget(action.site)) entry_.data = data_.known();
  members_.erase(action.site);
  LogForgotten(action.site);
}

void Coordinator::ForgetArriving(const core::SiteId& site) {
  for (size_t p = 0; p < open_.size(); ++p) {
    if (rounds_->state().contributions[p].contains(site)) continue;
    open_[p].erase(site);
    LogForgotten(static_cast<core::FragmentId>(p), site);
  }
}

void Coordinator::NoteReasons() {
  if (const bool held = rounds_->held(); held != noted_held_) {
    noted_held_ = held;
    v1::CoordinatorMessage message;
    message.mutable_hold()->set_held(held);
    for (const auto& [site, member] : members_) SendTo(site, message);
  }
  const std::string reason = rounds_->Reason();
  if (reason == noted_reason_) return;
  noted_reason_ = reason;
  if (reason.empty()) return;
  spdlog::info("{}: {}", RunStateName(rounds_->run_state()), reason);
  Note("run", "", -1, absl::StrCat(RunStateName(rounds_->run_state()), ": ", reason));
  for (const auto& [site, member] : members_) SendTo(site, transport::NoticeOf(reason));
}

}  // namespace causeway::server
