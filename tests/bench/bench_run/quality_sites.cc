// RunSites: a coordinator, its sites and the evaluation of what they come to.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/mutex.h"
#include "formats/run_yaml.h"
#include "tests/bench/bench_run/codec_probe.h"
#include "tests/bench/bench_run/local_link.h"
#include "tests/bench/bench_run/loss_curve.h"
#include "tests/bench/bench_run/quality.h"
#include "tests/formats/temporary_folder.h"
#include "worker/parallel/trainer.h"
#include "worker/site/site.h"

namespace causeway::bench {

// One site of a run in this process: trainer, sync, link and the thread that drives them as the worker does.
//
// The owner's thread calls everything; Train runs on the site's own. Order of calls: Start, Join, Leave.

class Site {
 public:
  // `turn` is held by the one site that computes. It and the coordinator outlive the site's Leave.
  static absl::StatusOr<std::unique_ptr<Site>> Make(const QualityOptions& options, const core::SiteId& name,
                                                    server::RunExchange* coordinator, std::unique_ptr<ProbedSite> probe,
                                                    core::Mutex* turn);

  // Trains to the last step; `failed` is called on the site's thread if that does not succeed.
  void Start(std::function<void()> failed);
  void Join() { thread_.join(); }
  void Leave() { sync_->Leave(status_.ok(), "the run has ended"); }  // no call reaches the coordinator after it

  worker::Site& sync() { return *sync_; }
  ProbedSite& probe() { return *probe_; }
  const LocalLink& link() const { return *link_; }
  const std::vector<std::span<float>>& tensors() const { return tensors_; }
  const core::Manifest& manifest() const { return trainer_->manifest(); }
  const absl::Status& status() const { return status_; }         // after Join
  const std::vector<double>& losses() const { return losses_; }  // of each step, after Join

 private:
  Site(const core::RunConfig& config, server::RunExchange* coordinator, std::unique_ptr<worker::Trainer> trainer,
       std::unique_ptr<ProbedSite> probe, core::Mutex* turn);

  absl::Status Train();
  absl::Status TakeStep(core::Step step);

  const core::RunConfig config_;
  const core::FragmentSchedule schedule_;
  server::RunExchange* const coordinator_;
  const std::unique_ptr<worker::Trainer> trainer_;
  const std::unique_ptr<ProbedSite> probe_;
  core::Mutex* const turn_;
  std::vector<std::span<float>> tensors_;  // θ, in manifest order
  std::unique_ptr<LocalLink> link_;
  std::unique_ptr<worker::Site> sync_;
  std::vector<core::SiteId> sites_;
  std::vector<double> losses_;
  absl::Status status_;
  std::thread thread_;
};

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

namespace {

using Sites = std::vector<std::unique_ptr<Site>>;

// The rounds that every fragment makes.
core::Version RoundsOf(const core::RunConfig& config) {
  const core::FragmentSchedule schedule = config.sync.Schedule();
  core::Version rounds = config.steps;
  for (core::FragmentId p = 0; p < schedule.num_fragments(); ++p) {
    rounds = std::min(rounds, schedule.FirstBaseAfter(p, config.steps));
  }
  return rounds;
}

// `count` of the bases 0 … rounds − 1, evenly spaced; the last one among them.
std::set<core::Version> SpreadBases(core::Version rounds, int64_t count) {
  std::set<core::Version> bases;
  for (int64_t i = 1; i <= count; ++i) bases.insert(std::max<core::Version>(0, i * rounds / count - 1));
  return bases;
}

// The anchors of the rounds that will be evaluated. The site hands them over on its task thread; a copy is of whole
// rounds as long as no update of the next one can have come before the last of this one is applied, which takes
// fragment_sync_delay < sync_every / num_fragments.
class AnchorKeeper {
 public:
  explicit AnchorKeeper(std::set<core::Version> rounds) : rounds_(std::move(rounds)) {}

  void Keep(worker::AnchorCopy copy) {
    const core::Version round = std::ranges::min(copy.versions);
    core::MutexLock lock(mutex_);
    if (rounds_.contains(round)) copies_[round] = std::move(copy);
  }
  std::map<core::Version, worker::AnchorCopy> Take() {
    core::MutexLock lock(mutex_);
    return std::move(copies_);
  }

 private:
  const std::set<core::Version> rounds_;
  core::Mutex mutex_;
  std::map<core::Version, worker::AnchorCopy> copies_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<Sites> MakeSites(const QualityOptions& options, core::Version rounds, server::RunExchange* coordinator,
                                core::Mutex* turn) {
  Sites sites;
  const auto sums = std::make_shared<RoundSums>();
  for (const core::SiteId& name : SiteNames(options.config.membership.min_sites)) {
    auto probe = std::make_unique<ProbedSite>(name, sums, /*compares_updates=*/sites.empty());
    if (sites.empty() && !options.record_dir.empty()) {
      probe->Record(options.record_dir, SpreadBases(rounds, options.record_rounds));
    }
    ASSIGN_OR_RETURN(auto site, Site::Make(options, name, coordinator, std::move(probe), turn));
    sites.push_back(std::move(site));
  }
  return sites;
}

// All sites at once, until all have ended. DATA_LOSS: diverged.
absl::Status Train(const Sites& sites) {
  for (const auto& site : sites) {
    site->Start([&sites] {
      for (const auto& other : sites) other->sync().RequestStop();  // or they would wait for ever
    });
  }
  for (const auto& site : sites) site->Join();
  for (const auto& site : sites) site->Leave();
  for (const auto& site : sites) {
    if (!site->status().ok() && !absl::IsCancelled(site->status())) return site->status();
  }
  return absl::OkStatus();
}

double TrainLossAtEnd(const Sites& sites) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& site : sites) {
    const std::vector<double>& losses = site->losses();
    for (size_t i = losses.size() - losses.size() / 10; i < losses.size(); ++i, ++count) sum += losses[i];
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

void TakeFigures(const Sites& sites, const server::RunExchange& coordinator, QualityResult& result) {
  result.parameters = core::NumParameters(sites.front()->manifest());
  result.train_loss_end = TrainLossAtEnd(sites);
  result.up_bytes = sites.front()->link().up_bytes();
  result.down_bytes = sites.front()->link().down_bytes();
  result.up = sites.front()->probe().up();
  result.down = sites.front()->probe().down();
  result.residual_norm = sites.front()->link().last_progress().residual_norm;
  const server::StatusSnapshot status = coordinator.Status();
  result.rounds = std::ranges::min_element(status.fragments, {}, [](const server::FragmentStatus& fragment) {
                    return fragment.committed.version;
                  })->committed.version;
  // ρ₁ and A of the last 16 rounds: the mean over the fragments.
  const auto mean = [&status](std::optional<double> server::OuterGradientFigures::*figure) {
    double sum = 0;
    for (const server::FragmentStatus& fragment : status.fragments) {
      sum += (fragment.gradient.value_or(server::OuterGradientFigures()).*figure).value_or(std::nan(""));
    }
    return sum / static_cast<double>(status.fragments.size());
  };
  result.correlation = mean(&server::OuterGradientFigures::correlation);
  result.amplification = mean(&server::OuterGradientFigures::predicted_amplification);
  for (const server::FragmentStatus& fragment : status.fragments) {
    result.digests.push_back(core::DigestText(fragment.committed.digest));
  }
}

}  // namespace

std::vector<core::SiteId> SiteNames(int count) {
  std::vector<core::SiteId> names;
  const std::vector<core::SiteId> first = {"eu", "us", "asia"};
  for (int i = 0; i < count; ++i) {
    names.push_back(i < static_cast<int>(first.size()) ? first[i] : absl::StrCat("site", i + 1));
  }
  std::ranges::sort(names);  // the first one by name is who the site lets evaluate
  return names;
}

absl::StatusOr<QualityResult> RunSites(const QualityOptions& given) {
  QualityOptions options = given;
  options.config.eval.every_rounds = 1;
  options.config.checkpoint.every_rounds = 0;
  const core::RunConfig& config = options.config;
  ASSIGN_OR_RETURN(const auto curve, LossCurve::Make(options, RoundsOf(config)));
  AnchorKeeper keeper(curve->points());

  const TemporaryFolder folder;
  ASSIGN_OR_RETURN(const auto journal, server::Journal::Open({.directory = folder.path(), .failed = nullptr}));
  Sites sites;  // outlive the coordinator, which wakes their links
  core::Mutex turn;
  ASSIGN_OR_RETURN(const auto coordinator,
                   server::RunExchange::Create({.config = config,
                                                .run_config = formats::SerializeRunConfig(config),
                                                .config_json = formats::RunConfigJson(config)},
                                               journal.get(), server::StoredRun{}));
  ASSIGN_OR_RETURN(sites, MakeSites(options, curve->rounds(), coordinator.get(), &turn));
  sites.front()->sync().SetEvaluate([&](worker::AnchorCopy copy) { keeper.Keep(std::move(copy)); });

  QualityResult result;
  curve->TakeStart({sites.front()->tensors().begin(), sites.front()->tensors().end()}, result);
  const absl::Status trained = Train(sites);
  if (!trained.ok() && !absl::IsDataLoss(trained)) return trained;
  RETURN_IF_ERROR(coordinator->Finish());  // sites hear of the last round before its figures are noted
  TakeFigures(sites, *coordinator, result);
  if (!trained.ok()) {
    result.diverged = true;
    result.reason = std::string(trained.message());
    return result;
  }
  const auto copies = keeper.Take();
  CHECK(copies.size() == curve->points().size());
  for (const auto& [round, copy] : copies) curve->Take(round, {copy.tensors.begin(), copy.tensors.end()}, result);
  return result;
}

}  // namespace causeway::bench
