// One site of a run in this process: trainer, sync, link and the thread that drives them as the worker does.
//
// The owner's thread calls everything; Train runs on the site's own. Order of calls: Start, Join, Leave.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "tests/bench/bench_run/codec_probe.h"
#include "tests/bench/bench_run/local_link.h"
#include "tests/bench/bench_run/quality.h"
#include "worker/parallel/trainer.h"
#include "worker/site/site.h"

namespace causeway::bench {

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

}  // namespace causeway::bench
