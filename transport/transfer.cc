#include "transport/transfer.h"

#include <spdlog/spdlog.h>

#include "core/mutex.h"
#include "transport/client_streams.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

// A chunk that the coordinator finds damaged is sent again so often before the contribution is given up: one damaged by
// chance is right the next time, one that we damaged ourselves never is.
constexpr int kDamagedAttempts = 3;

bool IsDamaged(const grpc::Status& status) { return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT; }

// One broken attempt is nothing to speak of; a row of them is what somebody will look for in the log.
spdlog::level::level_enum LevelOf(int attempts) {
  constexpr int kQuietAttempts = 5;
  return attempts < kQuietAttempts ? spdlog::level::debug : spdlog::level::warn;
}

class UploadTransfer final : public Transfer {
 public:
  explicit UploadTransfer(UploadRequest request) : request_(std::move(request)) {}

  void Launch(v1::Coordinator::Stub& stub, const v1::Context& context, std::function<void(bool)> ended) override {
    v1::UploadHeader header;
    *header.mutable_context() = context;
    header.set_initial(request_.initial);
    header.set_fragment(request_.fragment);
    header.set_base_version(request_.base);
    header.set_tokens(request_.tokens);
    header.set_steps(request_.steps);
    auto stream = UploadStream::Start(
        stub, std::move(header), request_.chunks,
        [this, ended = std::move(ended)](const grpc::Status& status, const std::optional<v1::Verdict>& verdict) {
          ended(Ended(status, verdict));
        });
    core::MutexLock lock(mutex_);
    stream_ = stream;
  }

  void Cancel() override {
    core::MutexLock lock(mutex_);
    if (auto stream = stream_.lock()) stream->Cancel();
  }

  void Finish(const absl::Status& status) override { request_.done(status); }

 private:
  bool Ended(const grpc::Status& status, const std::optional<v1::Verdict>& verdict) {
    if (verdict) {
      Finish(verdict->admitted() ? absl::OkStatus() : absl::FailedPreconditionError(verdict->reason()));
      return true;
    }
    ++attempts_;
    spdlog::log(LevelOf(attempts_), "upload of fragment {} base {} broke: {}", request_.fragment, request_.base,
                status.error_message());
    if (!IsDamaged(status) || ++damaged_ < kDamagedAttempts) return false;
    Finish(absl::DataLossError(status.error_message()));
    return true;
  }

  const UploadRequest request_;
  int damaged_ = 0;
  core::Mutex mutex_;
  std::weak_ptr<UploadStream> stream_ ABSL_GUARDED_BY(mutex_);
};

class DownloadTransfer final : public Transfer {
 public:
  explicit DownloadTransfer(DownloadRequest request) : request_(std::move(request)) {}

  void Launch(v1::Coordinator::Stub& stub, const v1::Context& context, std::function<void(bool)> ended) override {
    v1::DownloadRequest request;
    *request.mutable_context() = context;
    request.set_fragment(request_.fragment);
    if (request_.kind == DownloadKind::kUpdate) {
      request.set_update_base(request_.version);
    } else {
      request.set_anchor_version(request_.version);
    }
    request.set_first_chunk(chunks_);
    request.set_held_version(version_);
    request.set_held_digest(request_.held_digest);
    auto stream = DownloadStream::Start(
        stub, std::move(request), [this](v1::DownloadMessage& message) { Take(message); },
        [this, ended = std::move(ended)](const grpc::Status& status) { ended(Ended(status)); });
    core::MutexLock lock(mutex_);
    stream_ = stream;
  }

  void Cancel() override {
    core::MutexLock lock(mutex_);
    if (auto stream = stream_.lock()) stream->Cancel();
  }

  void Finish(const absl::Status& status) override { request_.done(status, digest_); }

 private:
  void Take(v1::DownloadMessage& message) {
    attempts_ = 0;
    if (message.has_header()) {
      const DownloadHeader header = FromProto(message.header());
      if (chunks_ > 0 && header.version == version_) return;  // goes on where the last attempt broke
      version_ = header.version;
      chunks_ = 0;
      request_.on_header(header);
    } else if (message.has_chunk()) {
      ++chunks_;
      request_.on_chunk(std::move(*message.mutable_chunk()));
    } else if (message.has_end()) {
      complete_ = true;
      digest_ = message.end().digest();
    }
  }

  bool Ended(const grpc::Status& status) {
    if (complete_) {
      Finish(absl::OkStatus());
      return true;
    }
    ++attempts_;
    spdlog::log(LevelOf(attempts_), "download of fragment {} version {} broke after {} chunks: {}", request_.fragment,
                request_.version, chunks_, status.error_message());
    // Pruned or never made, or not what can be sent: asking again does not help.
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      Finish(absl::NotFoundError(status.error_message()));
    } else if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      Finish(absl::InvalidArgumentError(status.error_message()));
    } else {
      return false;
    }
    return true;
  }

  const DownloadRequest request_;
  int chunks_ = 0;             // held so far, of
  core::Version version_ = 0;  // this version
  bool complete_ = false;
  uint64_t digest_ = 0;
  core::Mutex mutex_;
  std::weak_ptr<DownloadStream> stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Transfer> MakeUpload(UploadRequest request) {
  return std::make_shared<UploadTransfer>(std::move(request));
}

std::shared_ptr<Transfer> MakeDownload(DownloadRequest request) {
  return std::make_shared<DownloadTransfer>(std::move(request));
}

}  // namespace causeway::transport
