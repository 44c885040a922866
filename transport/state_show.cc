#include "transport/state_show.h"

#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "core/check.h"
#include "transport/bulk_message.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

constexpr char kShow[] = "/causeway.v1.Coordinator/Show";

}  // namespace

class StateShow::Stream final : public BulkStream {
 public:
  static std::shared_ptr<Stream> Make(Wire& wire, const v1::Holdings& holdings, Pacer& pacer, LinkListener* listener,
                                      std::function<void(const grpc::Status&)> ended) {
    std::shared_ptr<Stream> stream(new Stream(wire, pacer, listener, std::move(ended)));
    for (const v1::HeldFragment& shown : holdings.fragments()) stream->shown_[shown.fragment()] = shown.version();
    v1::ShowMessage first;
    *first.mutable_holdings() = holdings;
    stream->outgoing_ = ToBytes(first);
    return stream;
  }

  void Run(const std::shared_ptr<Stream>& self) {
    self_ = self;
    wire_.Prepare(/*channel=*/0, kShow, context_, *this);
    AddHold();  // pieces come from another thread; released when reading ends
    StartWrite(&outgoing_);
    StartRead(&incoming_);
    StartCall();
  }

 private:
  Stream(Wire& wire, Pacer& pacer, LinkListener* listener, std::function<void(const grpc::Status&)> ended)
      : BulkStream(wire, Lane{}, pacer), listener_(listener), ended_(std::move(ended)) {}

  // The coordinator requests the next fragment when the last one has arrived. A fragment whose version has risen since
  // is shown anew.
  void OnReadDone(bool ok) override {
    v1::ShowReply reply;
    if (!ok || !FromBytes(incoming_, &reply)) return RemoveHold();
    StartRead(&incoming_);
    AddHold();
    listener_->OnFragmentWanted(reply.fragment(), [this, p = reply.fragment()](HeldValues values) {
      const auto shown = shown_.find(p);
      if (values.pieces == nullptr || shown == shown_.end() || shown->second != values.version) {
        Cancel();
      } else {
        core::MutexLock lock(mutex_);
        pieces_ = std::move(values.pieces);
        next_ = 0;
        if (!writing_) WriteNext();  // else when that write is over: the coordinator may have it before our callback
      }
      RemoveHold();
    });
  }

  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (pieces_ == nullptr || next_ == pieces_->size()) return;
    writing_ = true;
    const core::Bytes& piece = (*pieces_)[next_++];
    outgoing_ = ChunkMessage(piece);
    Pace(static_cast<int64_t>(piece.size()), [this] { StartWrite(&outgoing_); });
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    core::Guarded([&] { ended_(status); });
  }

  LinkListener* const listener_;
  const std::function<void(const grpc::Status&)> ended_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::map<core::FragmentId, core::Version> shown_;
  core::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // Holdings, at first
  Chunks pieces_ ABSL_GUARDED_BY(mutex_);        // of the fragment requested last
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Stream> self_;
};

void StateShow::Begin(const v1::Context& context, const core::Manifest& manifest, LinkListener* listener) {
  {
    core::MutexLock lock(mutex_);
    if (over_ || running_) return;
    running_ = true;
  }
  v1::Holdings holdings;
  *holdings.mutable_context() = context;
  ToProto(manifest, holdings.mutable_manifest());
  listener->OnHoldingsWanted([this, holdings = std::move(holdings), listener](const HeldState& held) mutable {
    for (const core::SettingsRevision& one : held.settings.revisions) ToProto(one, holdings.add_revisions());
    holdings.set_settings_before(held.settings.before);
    for (const core::HeldFragment& one : held.fragments) {
      v1::HeldFragment& fragment = *holdings.add_fragments();
      fragment.set_fragment(one.fragment);
      fragment.set_version(one.held.version);
      fragment.set_anchor_digest(one.held.anchor_digest);
      fragment.set_momentum_digest(one.held.momentum_digest);
      fragment.set_run_tokens(one.run_tokens);
      if (one.before) {
        fragment.mutable_before()->set_version(one.before->version);
        fragment.mutable_before()->set_anchor_digest(one.before->anchor_digest);
        fragment.mutable_before()->set_momentum_digest(one.before->momentum_digest);
      }
    }
    held.fragments.empty() ? OnEnded(grpc::Status::OK) : Start(holdings, listener);
  });
}

void StateShow::Start(const v1::Holdings& holdings, LinkListener* listener) {
  const auto stream = Stream::Make(wire_, holdings, up_, listener, [this](const grpc::Status& s) { OnEnded(s); });
  {
    core::MutexLock lock(mutex_);
    stream_ = stream;
  }
  spdlog::info("shows the coordinator what this site holds: {} fragments", holdings.fragments_size());
  stream->Run(stream);
  core::MutexLock lock(mutex_);
  if (over_) stream->Cancel();
}

void StateShow::OnEnded(const grpc::Status& status) {
  if (!status.ok()) spdlog::warn("the coordinator does not take what this site holds: {}", status.error_message());
  core::MutexLock lock(mutex_);
  running_ = false;
  changed_.NotifyAll();
}

void StateShow::End() {
  core::MutexLock lock(mutex_);
  over_ = true;
  if (const auto stream = stream_.lock()) stream->Cancel();
  lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !running_; });
}

}  // namespace causeway::transport
