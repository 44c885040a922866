// The coordinator's gRPC interface.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

// The files that loaders need beside the weights of a model that sites bring, on the coordinator's disk: the list of
// the first site that had some, and the contents, which any site with the same file supplies.
//
//   a site's list, and a file that is missing ─► Keep ─► state_dir/files.json, state_dir/files/NAME.zst
//
// Contents that are gone, or were never sent, count as missing, which sites that have them learn. Thread-safe.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& state_dir);

  // The run's list, which is the request's where there was none, and what is missing of it. INVALID_ARGUMENT for a name
  // that no such file has, too many bytes, or contents that are not those of the list.
  absl::StatusOr<v1::KeptFiles> Keep(const v1::KeepFileRequest& request);

  v1::KeptFiles List() const;
  absl::StatusOr<std::string> Read(const std::string& name) const;  // the compressed contents, or NOT_FOUND

 private:
  std::string PathOf(const std::string& name) const;
  void LookForMissing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Begin(const v1::KeepFileRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const v1::KeepFileRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string state_dir_;
  mutable core::Mutex mutex_;
  v1::KeptFiles kept_ ABSL_GUARDED_BY(mutex_);
};

// The record of commands: who sent each, from where, the command, and its result. A record is an event of kind
// "command" in the journal, durable before the answer leaves; refused commands from a known name are recorded as well.
struct CommandRecord {
  std::string name, role;  // empty: not identified
  std::string address;
  std::string command;    // its name in causewayctl
  std::string arguments;  // "site=a"; empty: none
  std::string result;     // "done", or the reason for failure

  std::string Text() const;       // a sentence for people
  std::string EventText() const;  // JSON, as stored in the journal
  static std::optional<CommandRecord> FromEventText(const std::string& text);
  v1::CommandRecord ToProto() const;
};

// Answers every method of causeway.v1.Coordinator (reactors.h); without `files`, all but those about model files.
// `coordinator`, `gate`, `files` and everything that `status_json` refers to outlive the server.
std::unique_ptr<CallService> NewGrpcService(RunExchange* exchange, std::function<std::string()> status_json,
                                            Gate* gate = Gate::Open(), ModelFiles* files = nullptr);

}  // namespace causeway::server
