#include "worker/site/site_exchange.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "formats/run_yaml.h"
#include "worker/site/site_state.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using Turn = SiteRules::Turn;

template <typename... Calls>
struct Overloaded : Calls... {
  using Calls::operator()...;
};
template <typename... Calls>
Overloaded(Calls...) -> Overloaded<Calls...>;  // clang 14 needs it

// Adds to `settings` the revisions that they lack. In quorum mode a revision may come late, and holds from the step
// after the one that runs; in synchronous mode the coordinator has seen to it. INTERNAL: a revision cannot be read.
absl::Status Learn(const core::SettingsChain& told, const SiteState& state, core::RunSettings& settings) {
  const int fragments = state.schedule.num_fragments();
  settings.BeginAfter(told.before);
  for (const core::SettingsRevision& revision : told.revisions) {
    if (revision.number <= settings.revision()) continue;
    absl::StatusOr<core::RunConfig> config = formats::ParseRunConfig(revision.run_config);
    if (config.ok() && std::ssize(revision.versions) != fragments) {
      config = absl::InvalidArgumentError(
          absl::StrCat("expected ", fragments, " versions of fragments, got ", revision.versions.size()));
    }
    if (!config.ok()) {
      return absl::InternalError(absl::StrCat("revision ", revision.number,
                                              " of the run's settings: ", std::string(config.status().message())));
    }
    const core::Step from = state.synchronous() ? revision.step : std::max(revision.step, state.step + 2);
    spdlog::info("the run's settings change from step {} on: {}", from, absl::StrJoin(revision.changes, ", "));
    settings.Add(revision, *std::move(config), from);
  }
  return absl::OkStatus();
}

// Those of a checkpoint. If they cannot be read, the coordinator sends them anew.
void Recall(const core::SettingsChain& kept, const SiteState& state, core::RunSettings& settings) {
  const absl::Status read = Learn(kept, state, settings);
  if (read.ok()) return;
  spdlog::warn("the checkpoint: {}", std::string(read.message()));
  settings.Forget();
}

}  // namespace

SiteExchange::SiteExchange(core::RunSettings* settings, const core::SiteId& site, replica::ParameterStore* store,
                           transport::CoordinatorLink* link, const core::Clock& clock)
    : settings_(settings),
      store_(store),
      link_(link),
      clock_(clock),
      rules_(settings->first(), site),
      report_(settings->first(), site, &clock),
      transfers_(*settings, site, link, clock, this) {}

// ---- Events and actions ----

void SiteExchange::Run(const Effects& effects) {
  for (const auto& effect : effects) effect();
}

void SiteExchange::Tell(const SiteEvent& event) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(event, effects);
  }
  Run(effects);
}

void SiteExchange::Handle(const SiteEvent& event, Effects& effects) {
  for (const SiteAction& action : rules_.Handle(event, clock_.NowUs())) Perform(action, effects);
  changed_.NotifyAll();
}

void SiteExchange::Perform(const SiteAction& action, Effects& effects) {
  const auto by_step_thread = [this](std::function<void()> act) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    step_actions_.push_back(std::move(act));  // which AwaitTurn takes
  };
  const auto perform = Overloaded{
      [&](const action::ReadTheta& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        by_step_thread([this, read] { movers_->ReadTheta(read.fragment); });
      },
      [&](const action::MoveTheta& move) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        by_step_thread([this, move] {
          const absl::Status moved = movers_->MoveTheta(move);
          moved.ok() ? Tell(event::Moved{move.fragment}) : OnMoverFailed(moved);
        });
      },
      [&](const action::OfferInitial& offer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        by_step_thread([this, tag = offer.tag] {
          const absl::StatusOr<uint64_t> digest = movers_->OfferInitial(tag.fragment);
          if (!digest.ok()) return OnMoverFailed(digest.status());
          Tell(event::Offered{tag});  // first, so that the rules know of the request
          transfers_.FetchAnchor({.tag = tag}, map_->fragment(tag.fragment), *digest);
        });
      },
      [&](const action::UploadInitial&)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { by_step_thread([this] { UploadInitial(); }); },
      [&](const action::Encode& encode) { movers_->Encode(encode.fragment); },
      [&](const action::Resolve& resolve) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        kept_[resolve.fragment].sent.reset();
        movers_->Resolve(resolve);
      },
      [&](const action::ForgetResidual& forget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        kept_[forget.fragment].sent.reset();
        movers_->ForgetResidual(forget.fragment);
      },
      [&](const action::PlaceAnchor& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        movers_->PlaceAnchor(place, std::exchange(kept_[place.fragment].arrived, nullptr));
      },
      [&](const action::TakeUpdate& take) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const std::shared_ptr<const Payload> update = std::exchange(kept_[take.fragment].arrived, nullptr);
        report_.Takes(update->header, update->chunks);
        movers_->TakeUpdate(take, update);
      },
      [&](const action::Evaluate&) {
        if (evaluate_ != nullptr && settings_->first().eval.every_rounds > 0) movers_->PostAnchorCopy(evaluate_);
      },
      [&](const action::Upload& upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        effects.push_back(
            [this, upload, chunks = kept_[upload.tag.fragment].sent] { transfers_.Upload(upload, chunks); });
      },
      [&](const action::FetchAnchor& fetch) {
        effects.push_back(
            [this, fetch] { transfers_.FetchAnchor(fetch, map_->fragment(fetch.tag.fragment), /*held_digest=*/0); });
      },
      [&](const action::FetchUpdate& fetch) {
        effects.push_back([this, fetch] { transfers_.FetchUpdate(fetch, map_->fragment(fetch.tag.fragment)); });
      },
      [&](const action::SendReady&) { effects.push_back([this] { link_->SendReady(); }); },
      [&](const action::Rejoin&) { effects.push_back([this] { link_->Rejoin(); }); },
      [&](const action::Say& say) {
        spdlog::log(say.warns ? spdlog::level::warn : spdlog::level::info, "{}", say.text);
      }};
  std::visit(perform, action);
}

void SiteExchange::OnEncoded(FragmentId p, Chunks chunks, const std::string& where) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    report_.Sends(p, *chunks, where);
    kept_[p].sent = std::move(chunks);
    Handle(event::Encoded{p}, effects);
  }
  Run(effects);
}

void SiteExchange::OnAnchorPlaced(FragmentId p, const core::AnchorDigest& anchor) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    report_.Holds(p, anchor);
    Handle(event::AnchorPlaced{p}, effects);
  }
  Run(effects);
}

void SiteExchange::OnUpdateTaken(FragmentId p, const core::AnchorDigest& anchor, const std::string& mismatch) {
  const double residual_norm = movers_->ResidualNorm();
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    report_.Holds(p, anchor);
    report_.HasResidual(residual_norm);
    Handle(event::UpdateTaken{p, mismatch}, effects);
    if (!rules_.state().fragments[p].facts().sent) kept_[p].sent.reset();
  }
  Run(effects);
}

// The link may hold a lock here that the effects would take again.
void SiteExchange::OnBegan(const event::FetchBegan& began, const std::vector<core::SettingsRevision>& revisions) {
  Effects effects;
  core::MutexLock lock(mutex_);
  if (const absl::Status learned = Learn({.revisions = revisions}, rules_.state(), *settings_); !learned.ok()) {
    Handle(event::Failed{learned}, effects);
  }
  Handle(began, effects);
  if (!effects.empty()) movers_->Post([effects = std::move(effects)] { Run(effects); });
}

void SiteExchange::OnFetched(const event::Fetched& fetched, std::shared_ptr<const Payload> payload) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    if (!rules_.Awaits(fetched)) return;
    if (fetched.status.ok()) kept_[fetched.tag.fragment].arrived = std::move(payload);
    Handle(fetched, effects);
  }
  Run(effects);
}

void SiteExchange::OnVerdict(const event::VerdictGiven& given) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(given, effects);
    const FragmentId p = given.tag.fragment;
    if (rules_.state().fragments[p].outgoing() == Outgoing::kAdmitted) kept_[p].sent.reset();
  }
  Run(effects);
}

// ---- Messages from the coordinator ----

void SiteExchange::SetData(const core::SiteData& data) {
  core::MutexLock lock(mutex_);
  rules_.SetData(data);
}

transport::Standing SiteExchange::GetStanding() {
  core::MutexLock lock(mutex_);
  return rules_.GetStanding();
}

void SiteExchange::OnWelcome(const transport::Welcome& welcome) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    if (map_ == nullptr) {
      map_ = std::make_unique<core::FragmentMap>(welcome.map);
      movers_ = std::make_unique<Movers>(*map_, *settings_, store_, this);
      kept_.resize(map_->num_fragments());
    }
    const bool agrees = settings_->Agrees(welcome.settings, rules_.GetStanding().versions);
    if (!agrees) {
      spdlog::warn("this site has other settings of the run than the coordinator: it starts from the anchor");
      restored_.reset();
    }
    const bool goes_on = welcome.same_lineage && agrees;  // else the site's state is void
    if (!goes_on) settings_->Forget();
    absl::Status status = welcome.map == *map_ ? Learn(welcome.settings, rules_.state(), *settings_)
                                               : absl::InternalError("the coordinator changed its fragment map");
    if (status.ok()) status = RestoreArrays();
    if (!status.ok()) return Handle(event::Failed{std::move(status)}, effects);
    Handle(event::Welcomed{.resumed = welcome.resumed,
                           .kept_transfers = welcome.kept_transfers && goes_on,
                           .same_lineage = goes_on,
                           .lineage = welcome.lineage,
                           .stay = welcome.stay,
                           .num_fragments = map_->num_fragments(),
                           .last_admitted = welcome.last_admitted},
           effects);
    for (const FragmentRules& fragment : rules_.state().fragments) {  // requests of an earlier stay are void
      if (fragment.incoming() != Incoming::kArrived) kept_[fragment.id()].arrived.reset();
    }
  }
  Run(effects);
}

void SiteExchange::OnNotice(const std::string& reason) {
  spdlog::info("the run waits: {}", reason);
  core::MutexLock lock(mutex_);
  notice_.Heard(reason, clock_.Now());
  changed_.NotifyAll();
}

void SiteExchange::OnDrain(const std::string& reason) {
  spdlog::info("asked to leave: {}", reason);
  Tell(event::StopRequested{});
}

void SiteExchange::OnHoldingsWanted(std::function<void(const transport::HeldState&)> show) {
  std::optional<SiteCheckpoint> restored;  // shares the arrays, which take a while to digest
  Movers* movers = nullptr;
  std::vector<int64_t> run_tokens;
  {
    core::MutexLock lock(mutex_);
    restored = restored_;
    if (!restored && !rules_.GetStanding().versions.empty()) movers = movers_.get();
    for (const FragmentRules& fragment : rules_.state().fragments) run_tokens.push_back(fragment.facts().run_tokens);
  }
  transport::HeldState state{.fragments = {}, .settings = settings_->Chain()};
  if (movers == nullptr) {
    if (restored) state.fragments = HeldFragmentsOf(*restored);
    return show(state);
  }
  movers->PostHoldings([show = std::move(show), run_tokens, state](std::vector<core::HeldFragment> held) mutable {
    for (size_t p = 0; p < std::min(held.size(), run_tokens.size()); ++p) held[p].run_tokens = run_tokens[p];
    state.fragments = std::move(held);
    show(state);
  });
}

void SiteExchange::OnFragmentWanted(FragmentId p, std::function<void(transport::HeldValues)> send) {
  std::optional<SiteCheckpoint> restored;
  {
    core::MutexLock lock(mutex_);
    if (movers_ != nullptr) return movers_->PostHeld(p, std::move(send));
    restored = restored_;
  }
  const bool holds = restored && p >= 0 && p < std::ssize(restored->arrays);
  send(holds ? HeldValuesOf(restored->facts.fragments.at(p).version, restored->arrays[p]) : transport::HeldValues());
}

// ---- The step thread ----

void SiteExchange::TellStepped(core::Step step) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(event::Stepped{.step = step, .tokens = report_.TakeTokens()}, effects);
  }
  Run(effects);
}

absl::StatusOr<Turn> SiteExchange::AwaitTurn(Deadline deadline, std::initializer_list<Turn> awaited) {
  while (true) {
    Effects actions;
    {
      core::MutexLock lock(mutex_);
      const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return rules_.turn() == Turn::kFailed || std::ranges::find(awaited, rules_.turn()) != awaited.end();
      };
      const auto left = deadline - clock_.Now();
      const auto quiet = notice_.Until(clock_.Now(), left);
      const bool there =
          lock.WaitFor(changed_, quiet, [&, heard = notice_.heard()]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return !step_actions_.empty() || is_over() || notice_.heard() != heard;
          });
      if (!there) {
        if (const std::string why = notice_.Take(clock_.Now()); !why.empty()) spdlog::warn("still waiting: {}", why);
        if (quiet < left) continue;
        return absl::DeadlineExceededError("the site still waits; call again to wait on");
      }
      actions.swap(step_actions_);
      if (actions.empty()) {
        if (!is_over()) continue;  // a notice
        notice_.Over();
        if (rules_.turn() == Turn::kFailed) return rules_.failure();
        return rules_.turn();
      }
    }
    Run(actions);
  }
}

bool SiteExchange::Await(std::chrono::nanoseconds timeout, absl::FunctionRef<bool(const SiteRules&)> holds) {
  core::MutexLock lock(mutex_);
  return lock.WaitFor(changed_, timeout, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return holds(rules_); });
}

void SiteExchange::UploadInitial() {
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    absl::StatusOr<Chunks> chunks = movers_->EncodeInitial(p);
    if (!chunks.ok()) return OnMoverFailed(chunks.status());
    transfers_.UploadInitial(p, *std::move(chunks));
  }
}

// ---- Checkpoints and reports ----

void SiteExchange::Restore(SiteCheckpoint checkpoint) {
  core::MutexLock lock(mutex_);
  rules_.Restore(checkpoint.facts);
  Recall(checkpoint.settings, rules_.state(), *settings_);
  restored_ = std::move(checkpoint);
}

void SiteExchange::HasNoInitialValues(absl::Status why) {
  core::MutexLock lock(mutex_);
  rules_.HasNoInitialValues(std::move(why));
}

absl::Status SiteExchange::RestoreArrays() {
  if (!restored_) return absl::OkStatus();
  SiteCheckpoint checkpoint = *std::exchange(restored_, std::nullopt);
  const absl::Status status = movers_->Restore(checkpoint);
  if (!status.ok()) return absl::InternalError(absl::StrCat("the checkpoint does not fit the run: ", status.message()));
  for (size_t p = 0; p < std::min(kept_.size(), checkpoint.chunks.size()); ++p)
    kept_[p].sent = std::move(checkpoint.chunks[p]);
  return absl::OkStatus();
}

bool SiteExchange::Checkpoint(const std::function<void(const SiteCheckpoint&)>& save) {
  const auto can_be_saved = [](const SiteRules& rules) { return rules.CanBeSaved(); };
  if (!Ask(can_be_saved)) return false;
  movers_->Finish();
  bool saved = false;
  movers_->Post([&] {
    SiteCheckpoint checkpoint;
    {
      core::MutexLock lock(mutex_);
      saved = can_be_saved(rules_);
      checkpoint.facts = rules_.Facts();
      checkpoint.settings = settings_->Chain();
      for (const Kept& kept : kept_) checkpoint.chunks.push_back(kept.sent);
    }
    checkpoint.arrays = movers_->Arrays();
    if (saved) save(checkpoint);
  });
  movers_->Finish();
  return saved;
}

Movers* SiteExchange::movers() const {
  core::MutexLock lock(mutex_);
  return movers_.get();
}

void SiteExchange::Report(absl::FunctionRef<void(SiteReport&)> change) {
  core::MutexLock lock(mutex_);
  change(report_);
}

ExchangeTotals SiteExchange::GetTotals() const {
  core::MutexLock lock(mutex_);
  return report_.totals();
}

core::Progress SiteExchange::GetProgress() {
  const core::LinkProgress link = link_->Measured();  // takes the link's lock, which is not taken below this one
  core::MutexLock lock(mutex_);
  return report_.Make(rules_, link);
}

}  // namespace causeway::worker
