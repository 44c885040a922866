#include "worker/site/site.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using Turn = SiteRules::Turn;

constexpr auto kDrainTimeout = std::chrono::seconds(10);

template <typename... Calls>
struct Overloaded : Calls... {
  using Calls::operator()...;
};

}  // namespace

Site::Site(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
           replica::ParameterStore* store, transport::CoordinatorLink* link, const core::Clock& clock)
    : config_(config),
      manifest_(manifest),
      store_(store),
      link_(link),
      clock_(clock),
      rules_(config, site),
      report_(&clock),
      transfers_(config_, site, link, clock, this) {}

Site::~Site() { Leave(/*finished=*/false, "the program ends"); }

// ---- Events and actions ----

void Site::Run(const Effects& effects) {
  for (const auto& effect : effects) effect();
}

void Site::Dispatch(const SiteEvent& event) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(event, effects);
  }
  Run(effects);
}

void Site::Handle(const SiteEvent& event, Effects& effects) {
  for (const SiteAction& action : rules_.Handle(event, clock_.NowUs())) Perform(action, effects);
  changed_.notify_all();
}

void Site::Perform(const SiteAction& action, Effects& effects) {
  const auto by_step_thread = [this](std::function<void()> act) { step_actions_.push_back(std::move(act)); };
  std::visit(
      Overloaded{
          [&](const action::ReadTheta& read) { by_step_thread([this, read] { movers_->ReadTheta(read.fragment); }); },
          [&](const action::MoveTheta& move) {
            by_step_thread([this, move] {
              movers_->MoveTheta(move);
              Dispatch(event::Moved{move.fragment});
            });
          },
          [&](const action::OfferInitial& offer) {
            by_step_thread([this, tag = offer.tag] {
              const uint64_t digest = movers_->OfferInitial(tag.fragment);
              transfers_.FetchAnchor({.tag = tag}, map_->fragment(tag.fragment), digest);
              Dispatch(event::Offered{tag});
            });
          },
          [&](const action::UploadInitial&) { by_step_thread([this] { UploadInitial(); }); },
          [&](const action::Encode& encode) { movers_->Encode(encode.fragment); },
          [&](const action::Resolve& resolve) {
            sent_[resolve.fragment].reset();
            movers_->Resolve(resolve);
          },
          [&](const action::ForgetResidual& forget) {
            sent_[forget.fragment].reset();
            movers_->ForgetResidual(forget.fragment);
          },
          [&](const action::PlaceAnchor& place) {
            movers_->PlaceAnchor(place, std::exchange(arrived_[place.fragment], nullptr));
          },
          [&](const action::TakeUpdate& take) {
            movers_->TakeUpdate(take, std::exchange(arrived_[take.fragment], nullptr));
          },
          [&](const action::Evaluate&) {
            if (evaluate_ != nullptr && config_.eval.every_rounds > 0) movers_->PostAnchorCopy(evaluate_);
          },
          [&](const action::Upload& upload) {
            effects.push_back(
                [this, upload, chunks = sent_[upload.tag.fragment]] { transfers_.Upload(upload, chunks); });
          },
          [&](const action::FetchAnchor& fetch) {
            effects.push_back([this, fetch] {
              transfers_.FetchAnchor(fetch, map_->fragment(fetch.tag.fragment), /*held_digest=*/0);
            });
          },
          [&](const action::FetchUpdate& fetch) {
            effects.push_back([this, fetch] { transfers_.FetchUpdate(fetch, map_->fragment(fetch.tag.fragment)); });
          },
          [&](const action::SendReady&) { effects.push_back([this] { link_->SendReady(); }); },
          [&](const action::Rejoin&) { effects.push_back([this] { link_->Rejoin(); }); },
          [&](const action::Say& say) { spdlog::info("{}", say.text); }},
      action);
}

void Site::OnEncoded(FragmentId p, Chunks chunks) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    sent_[p] = std::move(chunks);
    Handle(event::Encoded{p}, effects);
  }
  Run(effects);
}

void Site::OnAnchorPlaced(FragmentId p, const core::AnchorDigest& anchor) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    report_.Holds(p, anchor);
    Handle(event::AnchorPlaced{p}, effects);
  }
  Run(effects);
}

void Site::OnUpdateTaken(FragmentId p, const core::AnchorDigest& anchor, const std::string& mismatch) {
  const double residual_norm = movers_->ResidualNorm();
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    report_.Holds(p, anchor);
    report_.HasResidual(residual_norm);
    Handle(event::UpdateTaken{p, mismatch}, effects);
    if (!rules_.state().fragments[p].facts().sent) sent_[p].reset();
  }
  Run(effects);
}

void Site::OnFetched(const event::Fetched& fetched, std::shared_ptr<const Payload> payload) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    if (!rules_.Awaits(fetched)) return;
    if (fetched.status.ok()) arrived_[fetched.tag.fragment] = std::move(payload);
    Handle(fetched, effects);
  }
  Run(effects);
}

void Site::OnVerdict(const event::VerdictGiven& given) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(given, effects);
    const FragmentId p = given.tag.fragment;
    if (rules_.state().fragments[p].outgoing() == Outgoing::kAdmitted) sent_[p].reset();
  }
  Run(effects);
}

// ---- What the coordinator says ----

transport::Standing Site::GetStanding() {
  core::MutexLock lock(mutex_);
  return rules_.GetStanding();
}

void Site::OnWelcome(const transport::Welcome& welcome) {
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    if (map_ == nullptr) {
      map_ = std::make_unique<core::FragmentMap>(welcome.map);
      movers_ = std::make_unique<Movers>(*map_, config_, store_, this);
      arrived_.resize(map_->num_fragments());
      sent_.resize(map_->num_fragments());
    }
    absl::Status status =
        welcome.map == *map_ ? RestoreArrays() : absl::InternalError("the coordinator changed its fragment map");
    if (!status.ok()) return Handle(event::Failed{std::move(status)}, effects);
    Handle(event::Welcomed{.resumed = welcome.resumed,
                           .kept_transfers = welcome.kept_transfers,
                           .same_lineage = welcome.same_lineage,
                           .num_fragments = map_->num_fragments(),
                           .last_admitted = welcome.last_admitted},
           effects);
  }
  Run(effects);
}

void Site::OnNotice(const std::string& reason) { spdlog::info("the run waits: {}", reason); }

void Site::OnDrain(const std::string& reason) {
  spdlog::info("asked to leave: {}", reason);
  RequestStop();
}

// ---- Joining and stepping ----

absl::StatusOr<Turn> Site::AwaitTurn(Deadline deadline, std::initializer_list<Turn> awaited) {
  while (true) {
    Effects actions;
    {
      core::MutexLock lock(mutex_);
      const auto is_over = [&] {
        return rules_.turn() == Turn::kFailed || std::ranges::find(awaited, rules_.turn()) != awaited.end();
      };
      const auto left = deadline - clock_.Now();
      const bool there = lock.WaitFor(changed_, left, [&] { return !step_actions_.empty() || is_over(); });
      if (!there) return absl::DeadlineExceededError("the site still waits; call again to wait on");
      actions.swap(step_actions_);
      if (actions.empty()) {
        if (rules_.turn() == Turn::kFailed) return rules_.failure();
        return rules_.turn();
      }
    }
    Run(actions);
  }
}

absl::StatusOr<core::Step> Site::Join(Timeout timeout) { return JoinBy(clock_.Now() + timeout); }

absl::StatusOr<core::Step> Site::JoinBy(Deadline deadline) {
  if (!heart_.started()) {
    link_->Start(manifest_, this);
    heart_.Start(config_.membership.lease_ms, [this] {
      Dispatch(event::Ticked{});
      SendProgress();
    });
  }
  joining_ = true;
  Dispatch(event::Joining{});
  RETURN_IF_ERROR(AwaitTurn(deadline, {Turn::kGoOn}).status());
  joining_ = false;
  movers_->FreeSpareMemory();
  core::MutexLock lock(mutex_);
  return rules_.state().step;
}

absl::StatusOr<core::Step> Site::AfterStep(core::Step t, Timeout timeout) {
  const Deadline deadline = clock_.Now() + timeout;
  if (joining_) return JoinBy(deadline);  // where the call before timed out
  Effects effects;
  {
    core::MutexLock lock(mutex_);
    Handle(event::Stepped{.step = t, .tokens = report_.TakeTokens()}, effects);
  }
  Run(effects);
  ASSIGN_OR_RETURN(const Turn turn, AwaitTurn(deadline, {Turn::kGoOn, Turn::kJoin}));
  if (turn == Turn::kGoOn) return t;
  spdlog::warn("the coordinator had dropped this site; it joins anew");
  return JoinBy(deadline);
}

absl::Status Site::CompleteRounds(Timeout timeout) {
  Dispatch(event::Completing{});
  SendProgress();  // at once: rounds need not wait for us any more
  ASSIGN_OR_RETURN(const Turn turn, AwaitTurn(clock_.Now() + timeout, {Turn::kDone, Turn::kJoin}));
  if (turn == Turn::kJoin) return absl::AbortedError("dropped from the run");
  FinishTasks();
  return absl::OkStatus();
}

void Site::UploadInitial() {
  for (FragmentId p = 0; p < map_->num_fragments(); ++p) {
    absl::StatusOr<Chunks> chunks = movers_->EncodeInitial(p);
    if (!chunks.ok()) return OnMoverFailed(absl::DataLossError(chunks.status().message()));
    transfers_.UploadInitial(p, *std::move(chunks));
  }
}

// ---- Checkpoints ----

void Site::Restore(SiteCheckpoint checkpoint) {
  core::MutexLock lock(mutex_);
  rules_.Restore(checkpoint.facts);
  restored_ = std::move(checkpoint);
}

absl::Status Site::RestoreArrays() {
  if (!restored_) return absl::OkStatus();
  SiteCheckpoint checkpoint = *std::exchange(restored_, std::nullopt);
  const absl::Status status = movers_->Restore(checkpoint);
  if (!status.ok()) return absl::InternalError(absl::StrCat("the checkpoint does not fit the run: ", status.message()));
  sent_ = std::move(checkpoint.chunks);
  return absl::OkStatus();
}

bool Site::Checkpoint(const std::function<void(const SiteCheckpoint&)>& save) {
  {
    core::MutexLock lock(mutex_);
    if (!rules_.CanBeSaved()) return false;
  }
  movers_->Finish();
  movers_->Post([&] {
    SiteCheckpoint checkpoint;
    {
      core::MutexLock lock(mutex_);
      checkpoint.facts = rules_.Facts();
      checkpoint.chunks = sent_;
    }
    checkpoint.arrays = movers_->Arrays();
    save(checkpoint);
  });
  movers_->Finish();
  return true;
}

core::Version Site::CompletedRounds() const {
  core::MutexLock lock(mutex_);
  return rules_.CompletedRounds();
}

// ---- Staying and leaving ----

std::vector<core::SiteId> Site::sites() const {
  core::MutexLock lock(mutex_);
  return rules_.state().sites;
}

int64_t Site::stays() const {
  core::MutexLock lock(mutex_);
  return rules_.state().counts.entered;
}

void Site::RequestStop() {
  stop_requested_ = true;
  Dispatch(event::StopRequested{});
}

void Site::FinishTasks() {
  Movers* movers = nullptr;  // they may be made at this moment
  {
    core::MutexLock lock(mutex_);
    movers = movers_.get();
  }
  if (movers != nullptr) movers->Finish();
}

void Site::Report(const TrainingReport& report) {
  core::MutexLock lock(mutex_);
  report_.Trained(report);
}

void Site::ReportEval(double loss, std::vector<core::Version> versions) {
  core::MutexLock lock(mutex_);
  report_.Evaluated(loss, std::move(versions));
}

core::Progress Site::GetProgress() {
  core::MutexLock lock(mutex_);
  return report_.Make(rules_, link_->Measured());
}

void Site::SendProgress() {
  const core::Progress progress = GetProgress();
  if (!link_->SendProgress(progress)) return;
  core::MutexLock lock(mutex_);
  report_.HeardEvaluation(progress);
}

absl::Status Site::DrainUploads() {
  FinishTasks();
  core::MutexLock lock(mutex_);
  const auto drained = [this] {
    const SiteState& state = rules_.state();
    return !state.entered() || !state.failure.ok() ||
           std::ranges::none_of(state.fragments, [](const FragmentRules& fragment) {
             return fragment.facts().sent && !fragment.facts().sent->admitted;
           });
  };
  const bool in_time = lock.WaitFor(changed_, kDrainTimeout, drained);
  if (!rules_.state().failure.ok()) return rules_.state().failure;
  return in_time ? absl::OkStatus() : absl::DeadlineExceededError("contributions in flight were not taken in time");
}

void Site::Leave(bool finished, const std::string& reason) {
  if (!heart_.started()) return;
  heart_.Stop();
  FinishTasks();
  SendProgress();
  link_->Leave(finished, reason);
  FinishTasks();
}

}  // namespace causeway::worker
