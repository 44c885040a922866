// One attempt at each of the coordinator's streaming calls, as gRPC callback reactors. They know how a call goes, not
// what to do when it breaks: that is GrpcLink's.
//
// Each is started by its static Start, lives until the call is over, and calls `ended` exactly once, last. Callbacks
// run on gRPC's threads. Send and Cancel are thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/mutex.h"

namespace causeway::transport {

class ControlStream final : public grpc::ClientBidiReactor<v1::SiteMessage, v1::CoordinatorMessage> {
 public:
  using OnMessage = std::function<void(const v1::CoordinatorMessage&)>;
  using OnEnded = std::function<void(const grpc::Status&)>;

  static std::shared_ptr<ControlStream> Start(v1::Coordinator::Stub& stub, v1::Join join, OnMessage on_message,
                                              OnEnded on_ended);
  void Send(v1::SiteMessage message);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  OnMessage on_message_;
  OnEnded on_ended_;
  v1::CoordinatorMessage incoming_;
  core::Mutex mutex_;
  std::deque<v1::SiteMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ControlStream> self_;  // until OnDone
};

class UploadStream final : public grpc::ClientBidiReactor<v1::UploadMessage, v1::UploadReply> {
 public:
  using OnEnded = std::function<void(const grpc::Status&, const std::optional<v1::Verdict>&)>;

  static std::shared_ptr<UploadStream> Start(v1::Coordinator::Stub& stub, v1::UploadHeader header,
                                             std::shared_ptr<const std::vector<std::string>> chunks, OnEnded on_ended);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void OnReadyToWrite();
  void WriteNext();

  grpc::ClientContext context_;
  std::shared_ptr<const std::vector<std::string>> chunks_;
  OnEnded on_ended_;
  v1::UploadMessage outgoing_;
  v1::UploadReply incoming_;
  std::deque<int> missing_;              // chunks still to send
  std::atomic<int> ready_to_write_ = 0;  // of two: the header is written, the list of missing chunks is here
  std::optional<v1::Verdict> verdict_;
  std::shared_ptr<UploadStream> self_;
};

class DownloadStream final : public grpc::ClientReadReactor<v1::DownloadMessage> {
 public:
  using OnMessage = std::function<void(v1::DownloadMessage&)>;
  using OnEnded = std::function<void(const grpc::Status&)>;

  static std::shared_ptr<DownloadStream> Start(v1::Coordinator::Stub& stub, v1::DownloadRequest request,
                                               OnMessage on_message, OnEnded on_ended);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  v1::DownloadRequest request_;
  OnMessage on_message_;
  OnEnded on_ended_;
  v1::DownloadMessage incoming_;
  std::shared_ptr<DownloadStream> self_;
};

}  // namespace causeway::transport
