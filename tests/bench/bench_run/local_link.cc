#include "tests/bench/bench_run/local_link.h"

#include <utility>

#include "core/check.h"
#include "transport/messages.h"
#include "transport/progress_message.h"

namespace causeway::bench {
namespace {

constexpr double kFast = 1e12, kSlow = 1;  // bytes a second, of phases

class Verdict final : public server::UploadPeer {
 public:
  Verdict(worker::TaskThread& tasks, const transport::UploadRequest& request) : tasks_(tasks), request_(request) {}
  void Answer(const absl::StatusOr<v1::Verdict>& verdict) override {
    absl::Status status = verdict.status();
    if (verdict.ok() && !verdict->admitted()) status = absl::FailedPreconditionError(verdict->reason());
    tasks_.Post([request = request_, status] { request.done(status); });
  }

 private:
  worker::TaskThread& tasks_;
  const transport::UploadRequest request_;
};

}  // namespace

// The coordinator's end of the control stream.
class LocalLink::Peer final : public server::SitePeer {
 public:
  explicit Peer(LocalLink& link) : link_(link) {}
  void Send(const v1::CoordinatorMessage& message) override {
    link_.tasks_.Post([this, message] { link_.Deliver(message); });
  }
  void Close() override {}

 private:
  LocalLink& link_;
};

LocalLink::LocalLink(server::RunExchange* coordinator, const core::RunId& run_id, core::SiteId site,
                     LinkObserver* observer, int64_t phase_rounds)
    : coordinator_(coordinator),
      run_id_(run_id),
      site_(std::move(site)),
      observer_(observer),
      phase_rounds_(phase_rounds),
      peer_(std::make_shared<Peer>(*this)) {}

LocalLink::~LocalLink() { CHECK(listener_ == nullptr || left_); }

v1::Context LocalLink::MakeContext() const {
  v1::Context context;
  context.set_protocol(transport::kProtocol);
  context.set_run_id(run_id_);
  context.set_site(site_);
  context.set_session("1");  // its only stay
  return context;
}

// ---- Control ----

void LocalLink::Start(const core::Manifest& manifest, transport::LinkListener* listener) {
  listener_ = listener;
  tasks_.Post([this, manifest] {
    v1::Join join;
    *join.mutable_context() = MakeContext();
    transport::ToProto(manifest, join.mutable_manifest());
    for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
    coordinator_->Join(peer_, join);
  });
}

void LocalLink::SendReady() {
  tasks_.Post([this] { coordinator_->Handle(server::input::SiteReady{peer_.get()}); });
}

// The coordinator only shows it, to no reader here; leases do not end, because its Tick is never called.
bool LocalLink::SendProgress(const core::Progress& progress) {
  tasks_.Post([this, progress] { last_progress_ = progress; });
  return true;
}

void LocalLink::TellPhase(core::Version base) {
  core::Progress told{.step = base + 1, .compute_s = static_cast<double>(base + 1)};
  told.link.up_bytes_per_s = told.link.down_bytes_per_s = base / phase_rounds_ % 2 == 0 ? kFast : kSlow;
  v1::Progress message;
  transport::ToProto(told, &message);
  coordinator_->Handle(server::input::Progress{peer_.get(), message});
}

void LocalLink::Deliver(const v1::CoordinatorMessage& message) {
  if (left_) return;
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kWelcome: {
      const auto map = transport::FromProto(message.welcome().manifest(), message.welcome().fragments());
      CHECK(map.ok());
      listener_->OnWelcome({.resumed = message.welcome().resumed(), .map = *map, .last_admitted = {}});
      break;
    }
    case v1::CoordinatorMessage::kRefused:
      listener_->OnFailure(absl::PermissionDeniedError(message.refused().reason()));
      break;
    case v1::CoordinatorMessage::kSeedRequest: listener_->OnSeedRequest(); break;
    case v1::CoordinatorMessage::kEntry: listener_->OnEntry(transport::FromProto(message.entry())); break;
    case v1::CoordinatorMessage::kNotice: listener_->OnNotice(message.notice().reason()); break;
    case v1::CoordinatorMessage::kDrain: listener_->OnDrain(message.drain().reason()); break;
    case v1::CoordinatorMessage::kHold: break;  // no operator pauses it
    case v1::CoordinatorMessage::kPong:
    case v1::CoordinatorMessage::KIND_NOT_SET: break;
  }
}

void LocalLink::Leave(bool finished, const std::string& reason) {
  DropTransfers();
  tasks_.Post([this, finished, reason] {
    v1::Leave leave;
    leave.set_finished(finished);
    leave.set_reason(reason);
    coordinator_->Handle(server::input::Leave{peer_.get(), leave});
    left_ = true;
  });
  tasks_.Finish();
}

// ---- Payloads ----

void LocalLink::Upload(transport::UploadRequest request) {
  tasks_.Post([this, request = std::move(request)] { Offer(request); });
}

void LocalLink::Offer(const transport::UploadRequest& request) {
  v1::UploadHeader header;
  *header.mutable_context() = MakeContext();
  header.set_initial(request.initial);
  header.set_fragment(request.fragment);
  header.set_base_version(request.base);
  if (!request.initial) {
    if (phase_rounds_ > 0) TellPhase(request.base);
    for (const core::Bytes& chunk : *request.chunks) up_bytes_ += static_cast<int64_t>(chunk.size());
    if (observer_ != nullptr) observer_->OnContribution(request.fragment, request.base, *request.chunks);
  }
  const server::Ready begun = coordinator_->Handle(server::input::BeginUpload{header});
  if (!begun.status.ok()) return request.done(absl::DataLossError(begun.status.message()));
  const server::Upload& upload = begun.upload;
  if (upload.contribution != nullptr) {
    for (const core::Bytes& chunk : *request.chunks) {
      const absl::Status added = upload.contribution->Add(std::string(chunk.begin(), chunk.end()));
      if (!added.ok()) return request.done(absl::DataLossError(added.message()));
    }
  }
  coordinator_->CompleteUpload(header, upload, std::make_shared<Verdict>(tasks_, request));
}

void LocalLink::Download(transport::DownloadRequest request) {
  tasks_.Post([this, request = std::move(request)] {
    downloads_.push_back(std::make_shared<Incoming>(Incoming{.request = request}));
    Advance(downloads_.back());
  });
}

// Goes as far as the coordinator has something; a wake takes it on from there.
void LocalLink::Advance(const std::shared_ptr<Incoming>& incoming) {
  const transport::DownloadRequest& request = incoming->request;
  const auto wake = [this, weak = std::weak_ptr(incoming)] {
    tasks_.Post([this, weak] {
      if (const auto waiting = weak.lock()) Advance(waiting);
    });
  };
  const bool update = request.kind == transport::DownloadKind::kUpdate;
  if (incoming->source == nullptr) {
    v1::DownloadRequest message;
    *message.mutable_context() = MakeContext();
    message.set_fragment(request.fragment);
    update ? message.set_update_base(request.version) : message.set_anchor_version(request.version);
    message.set_held_digest(request.held_digest);
    server::Waiter waiter = wake;
    const server::Ready begun = coordinator_->Handle(server::input::BeginDownload{message, waiter});
    if (!begun.status.ok()) return End(incoming, absl::NotFoundError(begun.status.message()), 0);
    incoming->source = begun.download.source;
    if (incoming->source == nullptr) return;
  }
  if (!incoming->header_sent) {
    const auto header = incoming->source->Header(wake);
    if (!header) return;
    request.on_header(*header);
    incoming->header_sent = true;
  }
  while (true) {
    server::ChunkSource::Item item = incoming->source->Get(incoming->chunks.size(), wake);
    if (!item.error.ok()) return End(incoming, absl::NotFoundError(item.error.message()), 0);
    if (item.end) {
      if (update && observer_ != nullptr) observer_->OnUpdate(request.fragment, request.version, incoming->chunks);
      return End(incoming, absl::OkStatus(), *item.end);
    }
    if (item.chunk == nullptr) return;
    incoming->chunks.push_back(*item.chunk);
    if (update) down_bytes_ += static_cast<int64_t>(item.chunk->size());
    request.on_chunk(static_cast<int>(incoming->chunks.size()) - 1, *item.chunk);
  }
}

void LocalLink::End(const std::shared_ptr<Incoming>& incoming, const absl::Status& status, uint64_t digest) {
  const std::shared_ptr<Incoming> ended = incoming;  // the list may hold the last other reference
  downloads_.remove(ended);
  ended->request.done(status, digest);
}

void LocalLink::DropTransfers() {
  tasks_.Post([this] {
    while (!downloads_.empty()) End(downloads_.front(), absl::CancelledError("dropped"), 0);
  });
}

}  // namespace causeway::bench
