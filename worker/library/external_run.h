// A program's view of a run before it joins: the coordinator's answer to its introduction.
//
//   options as JSON ─► Open ─► Await … ─► config, addresses
//
// The request runs on a thread of its own, so that the program's waits can time out. One owner thread; config and json
// are constant once Await has succeeded.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "core/run_config.h"
#include "core/thread.h"
#include "transport/sharded_link.h"

namespace causeway::worker {

class ExternalRun {
 public:
  // INVALID_ARGUMENT for invalid options; nothing is started then.
  static absl::StatusOr<std::unique_ptr<ExternalRun>> Open(const std::string& options);
  ~ExternalRun();

  // DEADLINE_EXCEEDED: call again. INVALID_ARGUMENT: a config that this version does not understand. Other statuses are
  // those of SessionLink::Describe.
  absl::Status Await(std::chrono::nanoseconds timeout);

  const core::SiteId& site() const { return shards_.front().site; }
  const core::RunConfig& config() const { return *config_; }
  const std::string& json() const { return json_; }
  double rank_timeout_s() const { return rank_timeout_s_; }
  std::unique_ptr<transport::SessionLink> NewLink() const { return transport::MakeLink(shards_); }
  const std::vector<transport::LinkOptions>& shards() const { return shards_; }

 private:
  ExternalRun(std::vector<transport::LinkOptions> shards, double rank_timeout_s)
      : shards_(std::move(shards)), rank_timeout_s_(rank_timeout_s) {}

  absl::Status Ask();

  std::vector<transport::LinkOptions> shards_;  // owned like config_; names the run once it is known
  const double rank_timeout_s_;
  std::optional<core::RunConfig> config_;  // owned by the thread until `answer_` is set
  std::string json_;
  core::Mutex mutex_;
  core::Condition changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> answer_ ABSL_GUARDED_BY(mutex_);
  core::Thread thread_;
};

}  // namespace causeway::worker
