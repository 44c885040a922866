// A coordinator that says what a test tells it to say, and remembers what it was asked.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "transport/channel.h"
#include "transport/messages.h"

namespace causeway::transport {

class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  static constexpr auto kHang = std::chrono::seconds(10);

  static core::Manifest ManifestForTest() { return {{"a", {300}, core::TensorKind::kMatrix, 0}}; }

  FakeCoordinator() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    EndControl();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // What the next Join is answered with.
  void Welcome(int64_t stay, std::optional<uint64_t> generation, bool resumed = false) {
    const std::lock_guard lock(mutex_);
    welcome_.Clear();
    welcome_.set_epoch(1);
    welcome_.set_lineage("l");
    welcome_.set_stay(stay);
    welcome_.set_resumed(resumed);
    if (generation) welcome_.set_generation(*generation);
    const auto map = *core::BuildFragmentMap(ManifestForTest(), 1, core::FragmentAssignment::kStrided);
    ToProto(map.manifest(), welcome_.mutable_manifest());
    ToProto(map, welcome_.mutable_fragments());
  }
  void EndControl() {
    const std::lock_guard lock(mutex_);
    if (control_ != nullptr) control_->TryCancel();
  }

  // The next downloads end with these, then they wait until they are cancelled.
  void FailDownloads(std::deque<grpc::Status> statuses) {
    const std::lock_guard lock(mutex_);
    failures_ = std::move(statuses);
  }

  std::vector<v1::DownloadRequest> AwaitDownloads(size_t count) { return Await(downloads_, count); }
  std::vector<v1::UploadHeader> AwaitUploads(size_t count) { return Await(uploads_, count); }

  int port = 0;

 private:
  template <typename T>
  std::vector<T> Await(const std::vector<T>& requests, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kHang, [&] { return requests.size() >= count; });
    return requests;
  }
  void WaitForCancel(grpc::ServerContext* context) {
    std::unique_lock lock(mutex_);
    while (!context->IsCancelled() && !ending_) changed_.wait_for(lock, std::chrono::milliseconds(10));
  }

  grpc::Status Control(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::SiteMessage>* stream) override {
    v1::SiteMessage message;
    stream->Read(&message);
    v1::CoordinatorMessage answer;
    {
      const std::lock_guard lock(mutex_);
      *answer.mutable_welcome() = welcome_;
      control_ = context;
    }
    stream->Write(answer);
    while (stream->Read(&message) && !message.has_leave()) continue;
    const std::lock_guard lock(mutex_);
    control_ = nullptr;
    return grpc::Status::OK;
  }
  grpc::Status Download(grpc::ServerContext* context, const v1::DownloadRequest* request,
                        grpc::ServerWriter<v1::DownloadMessage>*) override {
    {
      const std::lock_guard lock(mutex_);
      downloads_.push_back(*request);
      changed_.notify_all();
      if (!failures_.empty()) {
        const grpc::Status status = failures_.front();
        failures_.pop_front();
        return status;
      }
    }
    WaitForCancel(context);
    return grpc::Status::CANCELLED;
  }
  grpc::Status Upload(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::UploadReply, v1::UploadMessage>* stream) override {
    v1::UploadMessage message;
    stream->Read(&message);
    {
      const std::lock_guard lock(mutex_);
      uploads_.push_back(message.header());
      changed_.notify_all();
    }
    WaitForCancel(context);
    return grpc::Status::CANCELLED;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  grpc::ServerContext* control_ = nullptr;  // of the stream that is open
  v1::Welcome welcome_;
  std::deque<grpc::Status> failures_;
  std::vector<v1::DownloadRequest> downloads_;
  std::vector<v1::UploadHeader> uploads_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace causeway::transport
