// The operators' commands. Each returns when its effect is durable; if it fails, nothing has changed. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "server/run/run_options.h"
#include "server/store/journal.h"

namespace causeway::server {

class RunExchange;

v1::CoordinatorMessage DrainMessage();  // the message to a site that an operator wants to leave

class Operators {
 public:
  // The arguments outlive this object.
  Operators(RunExchange& run, const RunOptions& options, Journal& journal)
      : run_(run), options_(options), journal_(journal) {}

  // FAILED_PRECONDITION: this is not shard 0 (names its address), or there is nothing to do.
  absl::Status Drain(const core::SiteId& site);
  absl::Status ChangeRun(v1::ChangeRunRequest::Change change);
  absl::Status Release(const core::SiteId& site);  // ends the site's quarantine; empty: all sites
  // The parameters of a kept version become the newest, and all sites join anew, from them. Returns the resulting
  // version of each fragment. FAILED_PRECONDITION: the version is not kept; the message lists those that are.
  absl::StatusOr<std::vector<core::Version>> RollBack(core::Version version);

  // Changes the run's settings from `at_step` on; 0: from the earliest step that no site can have passed
  // (core/run_settings.h). Returns the change, and after it those to come, on top of it. INVALID_ARGUMENT,
  // FAILED_PRECONDITION: a value that is not accepted; a key that cannot change, with the reason.
  absl::StatusOr<std::vector<core::SettingsRevision>> ChangeSettings(const v1::ChangeSettingsRequest& request);

  absl::Status RecordCommand(const std::string& text);  // a command and its result (commands.h)

 private:
  absl::Status CheckLeads(const std::string& what) const;

  RunExchange& run_;
  const RunOptions& options_;
  Journal& journal_;
};

}  // namespace causeway::server
