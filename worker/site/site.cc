#include "worker/site/site.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

constexpr double kFirstStep = 10;  // times the timeout

}  // namespace

void StepWatch::SetTimeout(double timeout_s) {
  core::MutexLock lock(mutex_);
  timeout_s_ = timeout_s;
}

void StepWatch::Enter() {
  core::MutexLock lock(mutex_);
  inside_ = true;
}

void StepWatch::Return(bool stepped) {
  core::MutexLock lock(mutex_);
  inside_ = false;
  first_ = !stepped;
  since_ = clock_.Now();
}

void StepWatch::Waits(const std::string& what) {
  core::MutexLock lock(mutex_);
  waits_ = what;
  since_ = clock_.Now();
}

void StepWatch::HasRanks(const core::RankProgress& ranks) {
  core::MutexLock lock(mutex_);
  ranks_ = ranks;
}

std::string StepWatch::WhyStill() const {
  if (!ranks_.standing_still.empty()) return ranks_.standing_still;
  if (inside_ || !waits_.empty()) return "";
  const double limit_s = timeout_s_ * (first_ ? kFirstStep : 1);
  const double still_s = clock_.SecondsSince(since_);
  if (still_s <= limit_s) return "";
  return absl::StrFormat("no inner step for %.0f s, and no known wait (--rank_timeout_s)", still_s);
}

StepWatch::Say StepWatch::Look(core::RankProgress& ranks) {
  core::MutexLock lock(mutex_);
  ranks = ranks_;
  ranks.standing_still = WhyStill();
  if (ranks.standing_still.empty()) {
    silent_ = false;
    return Say::kGoesOn;
  }
  if (silent_) return Say::kNothing;
  silent_ = true;
  return Say::kStandsStill;
}

void Heartbeat::Start(std::function<int64_t()> lease_ms, std::function<void()> beat) {
  thread_ = core::Thread([this, lease_ms = std::move(lease_ms), beat = std::move(beat)] {
    while (true) {
      const auto interval = std::chrono::milliseconds(std::clamp<int64_t>(lease_ms() / 4, 20, 1000));
      {
        core::MutexLock lock(mutex_);
        if (lock.WaitFor(changed_, interval, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; }))
          return;
      }
      core::Guarded(beat);
    }
  });
}

void Heartbeat::Stop() {
  if (!thread_.joinable()) return;
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}
namespace {

using Turn = SiteRules::Turn;

constexpr double kStepTimeoutSeconds = 600;

}  // namespace

Site::Site(const core::RunConfig& config, core::SiteId site, const core::Manifest& manifest,
           replica::ParameterStore* store, transport::CoordinatorLink* link, const core::Clock& clock)
    : settings_(config),
      manifest_(manifest),
      link_(link),
      clock_(clock),
      exchange_(&settings_, site, store, link, clock),
      watch_(kStepTimeoutSeconds, clock) {}

Site::~Site() { Leave(/*finished=*/false, "the program ends"); }

// ---- Joining and stepping ----

absl::StatusOr<core::Step> Site::Join(Timeout timeout) {
  const InSite inside(watch_, /*steps=*/false);
  const Deadline deadline = clock_.Now() + timeout;
  if (!heart_.started()) {
    link_->Start(manifest_, &exchange_);
    heart_.Start([this] { return settings_.newest().membership.lease_ms; },
                 [this] {
                   exchange_.Tell(event::Ticked{});
                   SendProgress();
                 });
  }
  joining_ = true;
  for (Turn turn = Turn::kJoin; turn != Turn::kGoOn;) {  // dropped again before its first step: once more
    exchange_.Tell(event::Joining{});
    ASSIGN_OR_RETURN(turn, exchange_.AwaitTurn(deadline, {Turn::kGoOn, Turn::kJoin}));
  }
  joining_ = false;
  exchange_.movers()->FreeSpareMemory();
  return exchange_.Ask([](const SiteRules& rules) { return rules.state().step; });
}

absl::StatusOr<core::Step> Site::AfterStep(core::Step t, Timeout timeout) {
  const InSite inside(watch_, /*steps=*/true);
  const Deadline deadline = clock_.Now() + timeout;
  if (joining_) return Join(timeout);  // if the previous call timed out
  exchange_.TellStepped(t);
  ASSIGN_OR_RETURN(const Turn turn, exchange_.AwaitTurn(deadline, {Turn::kGoOn, Turn::kJoin}));
  if (turn == Turn::kGoOn) return t;
  spdlog::warn("the coordinator had dropped this site; it joins anew");
  return Join(deadline - clock_.Now());
}

absl::Status Site::CompleteRounds(Timeout timeout) {
  const InSite inside(watch_, /*steps=*/true);
  exchange_.Tell(event::TrainingDone{});
  SendProgress();  // at once: rounds need not wait for us any more
  ASSIGN_OR_RETURN(const Turn turn, exchange_.AwaitTurn(clock_.Now() + timeout, {Turn::kDone, Turn::kJoin}));
  if (turn == Turn::kJoin) return absl::AbortedError("dropped from the run");
  FinishTasks();
  return absl::OkStatus();
}

// ---- Staying and leaving ----

std::vector<core::SiteId> Site::sites() const {
  return exchange_.Ask([](const SiteRules& rules) { return rules.state().sites; });
}

int64_t Site::stays() const {
  return exchange_.Ask([](const SiteRules& rules) { return rules.state().counts.entered; });
}

core::Version Site::CompletedRounds() const {
  return exchange_.Ask([](const SiteRules& rules) { return rules.CompletedRounds(); });
}

void Site::RequestStop() { exchange_.Tell(event::StopRequested{}); }

bool Site::stop_requested() const {
  return exchange_.Ask([](const SiteRules& rules) { return rules.state().stopping; });
}

void Site::FinishTasks() {
  if (Movers* movers = exchange_.movers(); movers != nullptr) movers->Finish();
}

void Site::SendProgress() {
  core::Progress progress = GetProgress();
  const StepWatch::Say say = watch_.Look(progress.ranks);
  if (say == StepWatch::Say::kNothing) return;
  if (say == StepWatch::Say::kStandsStill) {
    spdlog::error("training stands still: {}; the coordinator drops this site when its lease has ended",
                  progress.ranks.standing_still);
  }
  if (!link_->SendProgress(progress)) return;
  exchange_.Report([&](SiteReport& whole) { whole.HeardEvaluation(progress); });
}

absl::Status Site::DrainUploads(Timeout timeout) {
  FinishTasks();
  const bool in_time = exchange_.Await(timeout, [](const SiteRules& rules) {
    const SiteState& state = rules.state();
    return !state.entered() || !state.failure.ok() ||
           std::ranges::none_of(state.fragments, [](const FragmentRules& fragment) {
             return fragment.facts().sent && !fragment.facts().sent->admitted;
           });
  });
  RETURN_IF_ERROR(exchange_.Ask([](const SiteRules& rules) { return rules.state().failure; }));
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
