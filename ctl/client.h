// The calls that causewayctl makes, each with a deadline and an error that says where it failed. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/fragment_map.h"
#include "transport/channel.h"

namespace causeway::ctl {

// Marks a status that the coordinator sent, as opposed to one made on this machine.
inline constexpr char kSaidByCoordinator[] = "causeway.coordinator";

class Client {
 public:
  Client(const transport::Address& coordinator, const transport::ChannelOptions& options);

  absl::StatusOr<std::string> StatusJson();
  absl::StatusOr<v1::RunDescription> Describe();
  absl::Status ChangeRun(v1::ChangeRunRequest::Change change);
  // Calls `use`, oldest first, for each event with an id above `*after_id`, which becomes the last event's id; if
  // `kind` is given, for events of that kind alone.
  absl::Status ForEachEvent(const std::string& kind, int64_t* after_id,
                            const std::function<void(const v1::HistoryEvent&)>& use);
  absl::StatusOr<v1::ChangeSettingsResponse> ChangeSettings(const v1::ChangeSettingsRequest& request);
  absl::Status Drain(const std::string& site);
  absl::Status Release(const std::string& site);
  absl::StatusOr<std::string> Promote(bool leader_is_stopped);  // to a standby; returns what it says
  absl::Status ForgetStandby(const std::string& address);
  // Returns the version that each fragment has then.
  absl::StatusOr<std::vector<core::Version>> RollBack(core::Version version);

  // A fragment's anchor in padded layout, and its version.
  struct Anchor {
    std::vector<float> values;
    core::Version version = 0;
  };
  absl::StatusOr<Anchor> DownloadAnchor(const core::Fragment& fragment, core::Version at_least);
  // The contents of a file of the run's model.
  absl::StatusOr<std::string> DownloadFile(const v1::ModelFile& file);

  // The standbys that did not have the last command when it was answered.
  const std::vector<std::string>& not_copied_to() const { return not_copied_to_; }

 private:
  using Stub = v1::Coordinator::Stub;
  template <typename Request, typename Response>
  using Unary = grpc::Status (Stub::*)(grpc::ClientContext* context, const Request& request, Response* response);
  enum class Deadline { kSoon, kNone };

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Unary<Request, Response> method, Request request, Deadline deadline = Deadline::kSoon);
  // The events with an id above `after_id` that fit an answer; none: there are no more.
  absl::StatusOr<v1::HistoryResponse> HistoryAfter(int64_t after_id, const std::string& kind);
  absl::Status Wrong(const grpc::Status& status) const;

  const transport::Address coordinator_;
  const transport::ChannelOptions options_;
  std::unique_ptr<Stub> stub_;
  std::vector<std::string> not_copied_to_;
};

}  // namespace causeway::ctl
