#include "tests/bench/bench_run/quality_site.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::bench {
namespace {

// Guessing costs ln 256 = 5.5 nats a byte. A run that is so much worse does not come back.
constexpr double kHopelessLoss = 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Site>> Site::Make(const QualityOptions& options, const core::SiteId& name,
                                                 server::RunExchange* coordinator, std::unique_ptr<ProbedSite> probe,
                                                 core::Mutex* turn) {
  const core::RunConfig& config = options.config;
  ASSIGN_OR_RETURN(auto trainer, worker::MakeTrainer(config, name, {.data_path = options.data_path}));
  std::unique_ptr<Site> site(new Site(config, coordinator, std::move(trainer), std::move(probe), turn));
  site->link_ =
      std::make_unique<LocalLink>(coordinator, config.run_id, name, site->probe_.get(), options.link_phase_rounds);
  site->sync_ =
      std::make_unique<worker::Site>(config, name, site->manifest(), &site->trainer_->store(), site->link_.get());
  return site;
}

Site::Site(const core::RunConfig& config, server::RunExchange* coordinator, std::unique_ptr<worker::Trainer> trainer,
           std::unique_ptr<ProbedSite> probe, core::Mutex* turn)
    : config_(config),
      schedule_(config.sync.Schedule()),
      coordinator_(coordinator),
      trainer_(std::move(trainer)),
      probe_(std::move(probe)),
      turn_(turn) {
  for (size_t i = 0; i < manifest().size(); ++i) tensors_.push_back(trainer_->tensor(static_cast<int>(i)));
}

void Site::Start(std::function<void()> failed) {
  thread_ = std::thread([this, failed = std::move(failed)] {
    status_ = Train();
    if (!status_.ok()) failed();
  });
}

absl::Status Site::Train() {
  ASSIGN_OR_RETURN(core::Step step, sync_->Join());
  while (step < config_.steps) {
    if (sync_->sites() != sites_) {
      sites_ = sync_->sites();
      trainer_->SetSites(sites_);
    }
    RETURN_IF_ERROR(TakeStep(step + 1));
    ASSIGN_OR_RETURN(step, sync_->AfterStep(step + 1));
    CHECK(sync_->stays() == 1);  // nothing here drops a site
  }
  return sync_->CompleteRounds();
}

absl::Status Site::TakeStep(core::Step step) {
  core::MutexLock lock(*turn_);
  ASSIGN_OR_RETURN(const worker::StepResult result, trainer_->Step(step));
  if (result.loss > kHopelessLoss) {
    return absl::DataLossError(absl::StrCat("the loss of a site is ", result.loss, " at step ", step));
  }
  losses_.push_back(result.loss);
  sync_->ReportWith([&](worker::SiteReport& whole) { whole.Trained({.step = step, .loss = result.loss}); });
  for (core::FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
    const core::Version base = schedule_.SendsAt(p, step);
    if (base < 0) continue;
    RETURN_IF_ERROR(probe_->BeforeSend(sync_->map(), p, base, step, tensors_, *coordinator_));
  }
  return absl::OkStatus();
}

}  // namespace causeway::bench
