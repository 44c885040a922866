// The rules of a site alone, by scripts (tests/core/script.h): events in, actions and what has changed out. Work without a
// decision (a copy is made, an anchor is decoded, θ is moved) is done at once; the coordinator's answers are the script's.
//
//   site mode=quorum delay=auto eval=2 data=own sites=ap,eu      a new site "eu": two fragments, H = 4, τ = 1: fragment 1
//                                                                is sent at 4, 8, 12, …, fragment 0 at 6, 10, 14, …
//   enter step=4 version=1                    joins a run of its own at that place: join, welcome, anchors and entry
//   5000 tick                                 at 5,000 ms
//   step through=8 tokens=10                  steps up to that one; `train`: contributions are admitted and merged
//   admit fragment=1                          its last upload; update fragment=1 merged=0: the answer for its next update
//   moves off                                 θ is moved when the script says `moved fragment=1`; so `takes off`
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/core/script.h"
#include "worker/site/site_rules.h"

namespace causeway::worker {
namespace {

using core::ScriptLine;

std::string Field(const char* name, int64_t value) { return absl::StrCat(" ", name, "=", value); }

const char* TurnName(SiteRules::Turn turn) {
  constexpr const char* kNames[] = {"waits", "goes on", "joins", "has failed", "is done"};
  return kNames[static_cast<int>(turn)];
}

absl::Status StatusOf(const ScriptLine& line) {
  const std::string code = line.Word("code");
  for (int i = 0; i <= 16; ++i) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(i)) == code) {
      return absl::Status(static_cast<absl::StatusCode>(i), line.text);
    }
  }
  return absl::OkStatus();
}

class SiteScript {
 public:
  std::string Play(const std::string& script) {
    return core::PlayScript(script, [this](const ScriptLine& line) {
      Do(line);
      return std::exchange(now_.said, "");
    });
  }

 private:
  void Do(const ScriptLine& line) {
    int64_t ms = 0;
    const size_t at = absl::SimpleAtoi(line.words.at(0), &ms) ? 1 : 0;
    if (at == 1) now_.us = 1000 * ms;
    const std::string& verb = line.words.at(at);
    const auto fragment = static_cast<core::FragmentId>(line.Number("fragment"));
    if (verb == "site") {
      Make(line);
    } else if (verb == "moves" || verb == "takes") {
      (verb == "moves" ? now_.moves : now_.takes) = line.words.at(at + 1) == "on";
    } else if (verb == "mismatch") {
      now_.mismatch = line.text;
    } else if (verb == "restore") {
      rules_->Restore(FactsOf(line));
    } else if (verb == "enter") {
      const int64_t version = line.Number("version");
      Handle(event::Joining{});
      Welcome(ScriptLine());
      GiveAnchors(version, std::nullopt, ScriptLine());
      GiveEntry(line.Number("step"), {version, version}, {version, version});
    } else if (verb == "join") {
      Handle(event::Joining{});
    } else if (verb == "welcome") {
      Welcome(line);
    } else if (verb == "anchor") {
      GiveAnchors(line.Number("version"),
                  line.Has("fragment") ? std::optional(fragment) : std::optional<core::FragmentId>(), line);
    } else if (verb == "began") {
      Handle(event::FetchBegan{now_.anchors.at(static_cast<size_t>(fragment))});
    } else if (verb == "entry") {
      GiveEntry(line.Number("step"), line.Numbers("versions"), line.Numbers("first"));
    } else if (verb == "step") {
      const core::Step first = line.Number("again", rules_->state().step + 1);
      for (core::Step t = first; t <= line.Number("through", first); ++t) {
        now_.us += 1000 * line.Number("takes_ms");
        Handle(event::Stepped{.step = t, .tokens = line.Number("tokens", 10)});
      }
    } else if (verb == "train") {
      while (rules_->failure().ok() && rules_->state().step < line.Number("through")) {
        Handle(event::Stepped{.step = rules_->state().step + 1, .tokens = 10});
        while (!now_.uploads.empty()) {
          const action::Upload upload = now_.uploads.front();
          now_.uploads.pop_front();
          Handle(event::VerdictGiven{upload.tag, absl::OkStatus()});
          GiveUpdate(upload.tag.fragment, upload.base, line);
        }
      }
    } else if (verb == "admit" || verb == "verdict") {
      const action::Upload upload = now_.last_uploads.at(static_cast<size_t>(fragment));
      Handle(event::VerdictGiven{Other(upload.tag, line), StatusOf(line)});
      now_.uploads.clear();
    } else if (verb == "update") {
      GiveUpdate(fragment, line.Has("merged") ? std::optional(line.Number("merged")) : std::nullopt, line);
    } else if (verb == "moved") {
      Handle(event::Moved{fragment});
    } else if (verb == "taken") {
      Handle(event::UpdateTaken{fragment, line.text});
    } else if (verb == "asked_for_seed") {
      Handle(event::SeedRequested{});
    } else if (verb == "hold") {
      Handle(event::Held{line.words.at(at + 1) == "on"});
    } else if (verb == "stop") {
      Handle(event::StopRequested{});
    } else if (verb == "failed") {
      Handle(event::Failed{absl::InternalError(line.text)});
    } else if (verb == "done") {
      Handle(event::TrainingDone{});
    } else if (verb == "tick") {
      Handle(event::Ticked{});
    } else {
      Ask(verb, fragment, line);
    }
    SayWhatChanged();
  }

  void Make(const ScriptLine& line) {
    core::RunConfig config;
    config.run_id = "test";
    config.sync = {.mode = line.Word("mode") == "quorum" ? core::SyncMode::kQuorum : core::SyncMode::kSynchronous,
                   .sync_every = 4,
                   .num_fragments = 2,
                   .fragment_sync_delay = line.Word("delay") == "auto" ? core::kAutoDelay : 1,
                   .fragment_update_alpha = 0};
    config.eval.every_rounds = line.Number("eval", config.eval.every_rounds);
    if (line.Word("data") == "own") config.data.mode = core::DataMode::kOwn;
    rules_.emplace(config, "eu");
    const std::string said = std::move(now_.said);
    now_ = {.sites = line.Has("sites") ? line.List("sites") : std::vector<core::SiteId>{"eu", "us"}, .said = said};
    if (line.Has("no_initial")) rules_->HasNoInitialValues(absl::FailedPreconditionError(line.text));
    if (line.Has("tokens")) {
      rules_->SetData({.training = core::DataFingerprint{.tokens = line.Number("tokens"), .digest = 8}});
    }
  }

  // unresolved=1: that fragment's contribution to its version has no verdict yet.
  static SiteFacts FactsOf(const ScriptLine& line) {
    const int64_t step = line.Number("step");
    SiteFacts facts{.step = step, .trained = {10 * step, step}, .sites = {"eu"}, .fragments = {}};
    for (const int64_t version : line.Numbers("versions")) {
      facts.fragments.push_back({.version = version, .applied = version, .first = 0});
      if (line.Number("unresolved", -1) == std::ssize(facts.fragments) - 1) {
        facts.fragments.back().sent = SentFacts{.base = version, .amount = {10 * step, step}, .weight = {40, 4}};
      }
    }
    return facts;
  }

  static Tag Other(Tag tag, const ScriptLine& line) {
    tag.stay -= line.Word("of") == "another_stay" ? 1 : 0;
    tag.ticket -= line.Word("of") == "another_ticket" ? 1 : 0;
    tag.fragment = line.Word("of") == "another_fragment" ? 7 : tag.fragment;
    return tag;
  }

  // ---- The coordinator ----

  void Welcome(const ScriptLine& line) {
    const std::vector<int64_t> admitted = line.Numbers("admitted");
    Handle(event::Welcomed{.resumed = line.Number("resumed") != 0,
                           .kept_transfers = line.Number("kept") != 0,
                           .same_lineage = !line.Has("lineage"),
                           .lineage = line.Word("lineage"),
                           .stay = ++now_.stay,
                           .num_fragments = 2,
                           .last_admitted = admitted.empty() ? std::vector<core::Version>{-1, -1} : admitted});
  }
  // Answers the question for one anchor, or for both.
  void GiveAnchors(core::Version version, std::optional<core::FragmentId> only, const ScriptLine& line) {
    for (const auto& [fragment, tag] : std::map(now_.anchors.begin(), now_.anchors.end())) {
      if (only.value_or(static_cast<core::FragmentId>(fragment)) == static_cast<core::FragmentId>(fragment)) {
        Handle(event::Fetched{.tag = Other(tag, line), .version = version});
      }
    }
  }
  void GiveEntry(core::Step step, std::vector<core::Version> versions, std::vector<core::Version> first) {
    if (first.empty()) first = versions;
    Handle(event::EntryGiven{{.step = step, .versions = versions, .first_versions = first, .sites = now_.sites}});
  }
  void GiveUpdate(core::FragmentId fragment, std::optional<core::Version> merged, const ScriptLine& line) {
    const auto fetch = now_.updates.find(fragment);
    if (fetch == now_.updates.end()) return;
    const bool before = line.Word("of") == "the_ask_before";
    const event::Fetched fetched{.tag = before ? now_.asked_before[fragment] : Other(fetch->second.tag, line),
                                 .status = StatusOf(line),
                                 .version = line.Number("version", fetch->second.base + 1),
                                 .merged = merged,
                                 .sites = now_.sites,
                                 .evaluates = line.Number("evaluates") != 0};
    if (line.Has("of")) absl::StrAppend(&now_.said, "-> ", rules_->Awaits(fetched) ? "awaited" : "not awaited", "\n");
    if (!line.Has("of") && !absl::IsCancelled(fetched.status)) now_.updates.erase(fetch);
    Handle(fetched);
  }

  void Handle(const SiteEvent& first) {
    std::deque<SiteEvent> events{first};
    for (; !events.empty(); events.pop_front()) {
      for (const SiteAction& action : rules_->Handle(events.front(), now_.us)) {
        const std::string text = std::visit([this](const auto& one) { return TextOf(one); }, action);
        if (!text.empty()) absl::StrAppend(&now_.said, "-> ", text, "\n");
        if (std::optional<SiteEvent> outcome = OutcomeOf(action)) events.push_back(*std::move(outcome));
      }
    }
  }

  // Notes questions, too. Empty: nothing that decides.
  std::string TextOf(const action::MoveTheta& action) {
    constexpr const char* kHow[] = {"mix", "step", "set", "anchor"};
    return absl::StrCat("move fragment=", action.fragment, " ", kHow[static_cast<int>(action.how)]);
  }
  std::string TextOf(const action::OfferInitial& action) {
    now_.anchors[static_cast<size_t>(action.tag.fragment)] = action.tag;
    return absl::StrCat("offer fragment=", action.tag.fragment);
  }
  std::string TextOf(const action::FetchAnchor& action) {
    now_.anchors[static_cast<size_t>(action.tag.fragment)] = action.tag;
    return absl::StrCat("anchor fragment=", action.tag.fragment, " at_least=", action.at_least);
  }
  std::string TextOf(const action::FetchUpdate& action) {
    now_.updates[action.tag.fragment] = action;
    now_.asked_before[action.tag.fragment] = std::exchange(now_.asked[action.tag.fragment], action.tag);
    return absl::StrCat("update fragment=", action.tag.fragment, " base=", action.base);
  }
  std::string TextOf(const action::Upload& action) {
    now_.uploads.push_back(action);
    now_.last_uploads[static_cast<size_t>(action.tag.fragment)] = action;
    return absl::StrCat("upload fragment=", action.tag.fragment, " base=", action.base, Field("stay", action.stay - 40),
                        Field("tokens", action.weight.tokens), Field("steps", action.weight.steps));
  }
  std::string TextOf(const action::Resolve& action) {
    return absl::StrCat("resolve fragment=", action.fragment, action.merged ? " merged" : " refused");
  }
  std::string TextOf(const action::TakeUpdate& action) {
    return absl::StrCat("take fragment=", action.fragment,
                        !action.resolve   ? ""
                        : *action.resolve ? " resolves=merged"
                                          : " resolves=refused");
  }
  std::string TextOf(const action::ForgetResidual& action) {
    return absl::StrCat("forget_residual fragment=", action.fragment);
  }
  std::string TextOf(const action::UploadInitial&) { return "upload_initial"; }
  std::string TextOf(const action::Evaluate&) { return "evaluate"; }
  std::string TextOf(const action::SendReady&) { return "ready"; }
  std::string TextOf(const action::Rejoin&) { return "rejoin"; }
  std::string TextOf(const action::Say& action) { return absl::StrCat("say : ", action.text); }
  std::string TextOf(const auto&) { return ""; }

  std::optional<SiteEvent> OutcomeOf(const SiteAction& action) const {
    return std::visit(
        [this](const auto& one) -> std::optional<SiteEvent> {
          using Action = std::remove_cvref_t<decltype(one)>;
          if constexpr (std::is_same_v<Action, action::ReadTheta>) return event::Copied{one.fragment};
          if constexpr (std::is_same_v<Action, action::Encode>) return event::Encoded{one.fragment};
          if constexpr (std::is_same_v<Action, action::OfferInitial>) return event::Offered{one.tag};
          if constexpr (std::is_same_v<Action, action::PlaceAnchor>) return event::AnchorPlaced{one.fragment};
          if constexpr (std::is_same_v<Action, action::TakeUpdate>) {
            if (now_.takes) return event::UpdateTaken{one.fragment, now_.mismatch};
          }
          if constexpr (std::is_same_v<Action, action::MoveTheta>) {
            if (now_.moves) return event::Moved{one.fragment};
          }
          return std::nullopt;
        },
        action);
  }

  // ---- Questions ----

  void Ask(const std::string& verb, core::FragmentId fragment, const ScriptLine&) {
    const SiteState& state = rules_->state();
    std::string answer;
    if (verb == "standing") {
      const transport::Standing standing = rules_->GetStanding();
      answer = absl::StrCat("versions=", absl::StrJoin(standing.versions, ","), standing.joining ? " joining" : "",
                            standing.from_checkpoint ? " from_checkpoint" : "",
                            standing.data.training ? Field("tokens", standing.data.training->tokens) : "");
    } else if (verb == "delay") {
      answer = state.delay.Choose().reason;
    } else if (verb == "rounds") {
      answer = absl::StrCat(rules_->CompletedRounds());
    } else if (verb == "trained") {
      answer = absl::StrCat("steps=", state.trained.steps, " tokens=", state.trained.tokens);
    } else if (verb == "saved") {
      answer = rules_->CanBeSaved() ? "can be saved" : "cannot be saved";
    } else {
      CHECK(verb == "facts");
      const FragmentRules& rules = state.fragments.at(static_cast<size_t>(fragment));
      answer = absl::StrCat("version=", rules.facts().version, " applied=", rules.facts().applied,
                            " resolved=", rules.facts().resolved, rules.anchored() ? " anchored" : "",
                            rules.keeps_local() ? " keeps_local" : "", " lineage=", rules_->Facts().lineage);
    }
    absl::StrAppend(&now_.said, "-> ", answer, "\n");
  }

  void SayWhatChanged() {
    const SiteState& state = rules_->state();
    Change("site", absl::StrCat(StageName(state.stay.stage), " at step ", state.step, " of stay ", state.stay.number,
                                ", ", TurnName(rules_->turn())));
    for (const FragmentRules& fragment : state.fragments) {
      Change(absl::StrCat("fragment ", fragment.id()),
             absl::StrCat(IncomingName(fragment.incoming()), ", ", OutgoingName(fragment.outgoing())));
    }
    const SiteCounts& counts = state.counts;
    Change("counts", absl::StrCat("entered ", counts.entered, ", sent ", counts.sent, ", merged ", counts.merged,
                                  ", skipped ", counts.skipped, ", stalled ", counts.stall_s, " s"));
    Change("failure", rules_->failure().ToString());
  }
  void Change(const std::string& what, const std::string& now) {
    if (std::exchange(now_.before[what], now) != now) absl::StrAppend(&now_.said, "=> ", what, " ", now, "\n");
  }

  struct Now {
    std::vector<core::SiteId> sites;
    std::map<size_t, Tag> anchors;  // questions for anchors, the last one of each fragment
    std::map<core::FragmentId, action::FetchUpdate> updates;
    std::map<core::FragmentId, Tag> asked, asked_before;  // for an update: last, and the time before
    std::map<size_t, action::Upload> last_uploads;
    std::deque<action::Upload> uploads;
    int64_t us = 0;
    int64_t stay = 40;
    bool moves = true, takes = true;
    std::string mismatch, said;
    std::map<std::string, std::string> before = {{"counts", "entered 0, sent 0, merged 0, skipped 0, stalled 0 s"},
                                                 {"failure", "OK"}};
  };
  std::optional<SiteRules> rules_;
  Now now_;
};

TEST(SiteScripts, HaveTheOutcomesThatTheirFilesExpect) {
  core::ExpectScripts(SITE_TESTDATA, [](const std::string& script) { return SiteScript().Play(script); });
}

TEST(FragmentRules, AnotherLineageVoidsAnAnchorWhereverItIs) {
  FragmentRules fragment(0);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
  fragment.AskForAnchor(1);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kAnchoring) << "the site asks again when it settles";
  fragment.Arrived({.version = 3});
  fragment.Place();
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kPlacing) << "it is being decoded";
  fragment.AnchorPlaced();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
  fragment.AskForAnchor(2);
  fragment.Arrived({.version = 3});
  fragment.Place();
  fragment.AnchorPlaced();
  EXPECT_TRUE(fragment.anchored());
  fragment.AskForUpdate(2);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
}

}  // namespace
}  // namespace causeway::worker
