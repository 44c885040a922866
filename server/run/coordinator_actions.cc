// The part of Coordinator that carries out the rules' decisions: collects rows and effects, and publishes them.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "server/run/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {

void Coordinator::Publish() {
  RunParts parts = Parts();
  notices_.Note(parts);
  if (lead_) lead_->Note(*rounds_, model_.fact(), outbox_);
  if (follower_) follower_->Note(*rounds_, model_.fact(), outbox_);
  outbox_.Publish(rounds_->state(), *journal_);
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
  if (!model_.fact().known()) return;
  if (!model_.fact().stays()) {  // else another shard lacks its part
    // Parts sent by another seeder so far are void.
    const bool another = model_.fact().ExpectSeedFrom(action.site, rounds_->state().sites.at(action.site).session);
    if (another || !seeding_.expects()) seeding_.Expect(model_.fact().map().num_fragments());
    if (another) model_.Store(outbox_);
  }
  spdlog::info("site {}: the initial parameters are requested from it", action.site);
  v1::CoordinatorMessage message;
  message.mutable_seed_request();
  members_.Send(action.site, message, outbox_);
}

void Coordinator::Perform(const Enter& action) {
  const std::string where = follower_ ? "where shard 0 has put it" : absl::StrCat("after step ", action.entry.step);
  spdlog::info("site {}: enters {}", action.site, where);
  outbox_.StateChanged();
  outbox_.Note("enter", action.site, -1, where);
  v1::CoordinatorMessage message;
  transport::ToProto(action.entry, message.mutable_entry());
  members_.Send(action.site, message, outbox_);
}

void Coordinator::Perform(const CloseRound& action) {
  RunParts parts = Parts();
  decisions_.Carry(action, parts);
}

void Coordinator::Perform(const Dropped& action) {
  spdlog::info("site {}: is out of the run: {}", action.site, action.reason);
  outbox_.StateChanged();
  outbox_.Note("drop", action.site, -1, action.reason);
  open_.Forget(action.site, rounds_->state());
  members_.Drop(action.site, outbox_);
}

void Coordinator::Perform(const Forgotten& action) {
  spdlog::warn("site {}: its name is given up: the run has {} sites, and it has been gone for the longest time",
               action.site, core::kMaxSites);
  outbox_.StateChanged();
  outbox_.Note("forget", action.site, -1, "if it comes back, it starts from the anchor");
  admission_.ForgetData(action.site, outbox_);
  members_.Erase(action.site);
  figures_.Forget(action.site);
}

}  // namespace causeway::server
