// The rules of a site alone: events in, actions out. Work without a decision (a copy is made, an anchor is decoded, θ
// is moved) is done at once; what the coordinator answers is in the test's hands.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <type_traits>
#include <vector>

#include "worker/site/site_rules.h"

namespace causeway::worker {

// Two fragments, H = 4, τ = 1: fragment 1 is sent at 4, 8, 12, …, fragment 0 at 6, 10, 14, ….
class SiteRulesTest : public ::testing::Test {
 protected:
  explicit SiteRulesTest(core::SyncMode mode = core::SyncMode::kSynchronous) {
    config_.run_id = "test";
    config_.sync = {
        .mode = mode, .sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 1, .fragment_update_alpha = 0};
    Make();
  }

  void Make() { rules_.emplace(config_, "eu"); }

  void Handle(SiteEvent event) {
    std::deque<SiteEvent> events{std::move(event)};
    for (; !events.empty(); events.pop_front()) {
      for (SiteAction& action : rules_->Handle(events.front(), now_us_)) {
        if (const std::optional<SiteEvent> outcome = OutcomeOf(action)) events.push_back(*outcome);
        actions_.push_back(std::move(action));
      }
    }
  }

  // ---- The actions since the last question ----

  template <typename Action>
  std::vector<Action> Take() {
    std::vector<Action> taken;
    std::erase_if(actions_, [&](const SiteAction& action) {
      const auto* const one = std::get_if<Action>(&action);
      if (one != nullptr) taken.push_back(*one);
      return one != nullptr;
    });
    return taken;
  }
  template <typename Action>
  Action TakeOne() {
    const std::vector<Action> taken = Take<Action>();
    EXPECT_EQ(taken.size(), 1u);
    return taken.empty() ? Action() : taken.front();
  }

  // ---- The coordinator ----

  void Welcome(bool resumed = false, bool kept_transfers = false) {
    Handle(event::Welcomed{.resumed = resumed,
                           .kept_transfers = kept_transfers,
                           .stay = ++stay_,
                           .num_fragments = 2,
                           .last_admitted = {-1, -1}});
  }
  // Answers the questions for an anchor with this version.
  void GiveAnchors(core::Version version) {
    std::vector<Tag> tags;
    for (const auto& offer : Take<action::OfferInitial>()) tags.push_back(offer.tag);
    for (const auto& fetch : Take<action::FetchAnchor>()) tags.push_back(fetch.tag);
    for (const Tag& tag : tags) Handle(event::Fetched{.tag = tag, .version = version});
  }
  void GiveEntry(core::Step step, core::Version version) {
    Handle(event::EntryGiven{
        {.step = step, .versions = {version, version}, .first_versions = {version, version}, .sites = sites_}});
  }
  // As the only one of a run that has begun at `version`.
  void Enter(core::Step step = 0, core::Version version = 0) {
    Handle(event::Joining{});
    Welcome();
    GiveAnchors(version);
    GiveEntry(step, version);
    EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  }
  // Answers the question for a fragment's next update; it has the site's contribution or has not.
  void GiveUpdate(core::FragmentId fragment, std::optional<core::Version> merged, bool evaluates = false) {
    std::vector<action::FetchUpdate> others;
    for (const auto& fetch : Take<action::FetchUpdate>()) {
      if (fetch.tag.fragment != fragment) {
        others.push_back(fetch);
        continue;
      }
      Handle(event::Fetched{
          .tag = fetch.tag, .version = fetch.base + 1, .merged = merged, .sites = sites_, .evaluates = evaluates});
    }
    for (auto& fetch : others) actions_.push_back(std::move(fetch));
  }
  void Admit(const action::Upload& upload) { Handle(event::VerdictGiven{upload.tag, absl::OkStatus()}); }

  // ---- The step thread ----

  SiteRules::Turn Step(core::Step step, int64_t tokens = 10) {
    Handle(event::Stepped{.step = step, .tokens = tokens});
    return rules_->turn();
  }

  core::RunConfig config_;
  std::optional<SiteRules> rules_;
  std::vector<core::SiteId> sites_ = {"eu", "us"};
  SiteActions actions_;
  int64_t now_us_ = 1'000'000;
  int64_t stay_ = 40;     // as the last Welcome said
  bool moves_ = true;     // θ is moved at once; otherwise when the test says so
  bool takes_ = true;     // so are updates
  std::string mismatch_;  // of the digests, when an update is taken

 private:
  std::optional<SiteEvent> OutcomeOf(const SiteAction& action) const {
    return std::visit(
        [this](const auto& one) -> std::optional<SiteEvent> {
          using Action = std::remove_cvref_t<decltype(one)>;
          if constexpr (std::is_same_v<Action, action::ReadTheta>) return event::Copied{one.fragment};
          if constexpr (std::is_same_v<Action, action::Encode>) return event::Encoded{one.fragment};
          if constexpr (std::is_same_v<Action, action::OfferInitial>) return event::Offered{one.tag};
          if constexpr (std::is_same_v<Action, action::PlaceAnchor>) return event::AnchorPlaced{one.fragment};
          if constexpr (std::is_same_v<Action, action::TakeUpdate>) {
            if (takes_) return event::UpdateTaken{one.fragment, mismatch_};
          }
          if constexpr (std::is_same_v<Action, action::MoveTheta>) {
            if (moves_) return event::Moved{one.fragment};
          }
          return std::nullopt;
        },
        action);
  }
};

}  // namespace causeway::worker
