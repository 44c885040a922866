#include "tests/transport/scripted_coordinator.h"

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "transport/read_message.h"

namespace causeway::transport {
namespace {

const grpc::Status kCancelled(grpc::StatusCode::CANCELLED, "cancelled");

}  // namespace

Payload PayloadOf(core::FragmentId fragment, core::Version salt, int chunks, size_t chunk_bytes) {
  Payload payload;
  for (int i = 0; i < chunks; ++i) {
    payload.push_back(absl::StrCat("fragment ", fragment, " of ", salt, " chunk ", i, " "));
    payload.back().resize(std::max(payload.back().size(), chunk_bytes), '.');
  }
  return payload;
}

ScriptedCoordinator::~ScriptedCoordinator() = default;

template <typename Reactor>
Reactor* ScriptedCoordinator::Keep(std::unique_ptr<Reactor> reactor) {
  Reactor* const kept = reactor.get();
  open_[kept] = std::move(reactor);
  return kept;
}

// ---- Control ----

class ScriptedCoordinator::Control final : public sim::CallReactor, public OpenCall {
 public:
  explicit Control(ScriptedCoordinator* owner) : owner_(*owner) {
    owner_.controls_.insert(this);
    StartRead(&incoming_);
  }

  void Say(const v1::CoordinatorMessage& message) {
    outgoing_.push_back(ToBytes(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }
  void End(const grpc::Status& status) {
    if (!std::exchange(ended_, true)) Finish(status);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(kCancelled);
    v1::SiteMessage message;
    CHECK(ReadMessage(incoming_, &message).ok());
    Take(message);
    if (!ended_) StartRead(&incoming_);
  }
  void OnWriteDone(bool) override {
    outgoing_.pop_front();
    if (!outgoing_.empty() && !ended_) StartWrite(&outgoing_.front());
  }
  void OnCancel() override { End(kCancelled); }
  void OnDone() override {
    owner_.controls_.erase(this);
    owner_.open_.erase(this);
  }

  void Take(const v1::SiteMessage& message) {
    v1::CoordinatorMessage answer;
    if (message.has_join()) {
      owner_.joins.push_back(message.join());
      if (owner_.ends_joins) return End(*owner_.ends_joins);
      if (owner_.refuses) {
        *answer.mutable_refused() = *owner_.refuses;
        Say(answer);
        return End(grpc::Status::OK);
      }
      *answer.mutable_welcome() = owner_.welcome;
      return Say(answer);
    }
    owner_.said.push_back(message);
    if (message.has_ping() && owner_.answers_pings) {
      answer.mutable_pong()->set_sent_us(message.ping().sent_us());
      Say(answer);
    }
    if (message.has_leave() && owner_.hears_leaves) End(grpc::Status::OK);
  }

  ScriptedCoordinator& owner_;
  grpc::ByteBuffer incoming_;
  std::deque<grpc::ByteBuffer> outgoing_;
  bool ended_ = false;
};

sim::CallReactor* ScriptedCoordinator::NewControl() { return Keep(std::make_unique<Control>(this)); }

void ScriptedCoordinator::Say(const v1::CoordinatorMessage& message) {
  for (Control* control : controls_) control->Say(message);
}

void ScriptedCoordinator::EndControl(const grpc::Status& status) {
  const std::set<Control*> controls = controls_;
  for (Control* control : controls) control->End(status);
}

grpc::Status ScriptedCoordinator::Describe(const v1::DescribeRequest&, v1::RunDescription* answer) {
  *answer = description;
  return describe_status;
}

// ---- Uploads ----

class ScriptedCoordinator::Upstream final : public sim::CallReactor, public OpenCall {
 public:
  explicit Upstream(ScriptedCoordinator* owner) : owner_(*owner) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    if (ended_) return;
    if (!ok) return EndOfChunks();
    std::optional<std::string> chunk = TakeChunk(incoming_);
    if (chunk && begun_) {
      Take(*chunk);
    } else if (!chunk) {
      Begin();
    }
    if (!ended_) StartRead(&incoming_);
  }
  void OnWriteDone(bool) override {
    if (verdict_sent_) End(grpc::Status::OK);
  }
  void OnCancel() override { End(kCancelled); }
  void OnDone() override { owner_.open_.erase(this); }

  void Begin() {
    v1::UploadMessage message;
    FromBytes(incoming_, &message);
    header_ = message.header();
    key_ = {header_.initial(), header_.fragment(), header_.base_version()};
    owner_.headers.push_back(header_);
    if (owner_.ends_bulk) return End(*owner_.ends_bulk);
    begun_ = true;
    upload().chunks = owner_.expected[key_].size();
    if (header_.sends_all()) return;
    v1::UploadReply reply;
    reply.mutable_missing();
    for (size_t i = header_.stripe(); i < upload().chunks; i += header_.num_stripes()) {
      if (!upload().arrived.contains(static_cast<int>(i))) reply.mutable_missing()->add_chunks(static_cast<int>(i));
    }
    Reply(reply);
  }

  void Take(const std::string& chunk) {
    const Payload& payload = owner_.expected[key_];
    const auto found = std::ranges::find(payload, chunk);
    const auto index = static_cast<int>(found - payload.begin());
    owner_.chunk_order.push_back(key_);
    if (found == payload.end() || index % header_.num_stripes() != header_.stripe()) {
      upload().wrong.push_back(chunk);
    } else {
      ++upload().arrived[index];
    }
  }

  void EndOfChunks() {
    if (!begun_ || !upload().whole()) return End(grpc::Status::OK);  // other stripes are on their way
    v1::UploadReply reply;
    reply.mutable_verdict()->set_admitted(owner_.refuses_contributions.empty());
    reply.mutable_verdict()->set_reason(owner_.refuses_contributions);
    ++upload().verdicts;
    verdict_sent_ = true;
    Reply(reply);
  }

  void Reply(const v1::UploadReply& reply) {
    outgoing_ = ToBytes(reply);
    StartWrite(&outgoing_);
  }
  void End(const grpc::Status& status) {
    if (!std::exchange(ended_, true)) Finish(status);
  }
  Upload& upload() { return owner_.uploads[key_]; }

  ScriptedCoordinator& owner_;
  grpc::ByteBuffer incoming_, outgoing_;
  v1::UploadHeader header_;
  UploadKey key_;
  bool begun_ = false, verdict_sent_ = false, ended_ = false;
};

sim::CallReactor* ScriptedCoordinator::NewUpload() { return Keep(std::make_unique<Upstream>(this)); }

// ---- Downloads ----

class ScriptedCoordinator::Downstream final : public sim::CallReactor, public OpenCall {
 public:
  explicit Downstream(ScriptedCoordinator* owner) : owner_(*owner) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(kCancelled);
    v1::DownloadRequest request;
    FromBytes(incoming_, &request);
    owner_.requests.push_back(request);
    if (owner_.ends_bulk) {
      End(*owner_.ends_bulk);
    } else {
      Fill(request);
      OnWriteDone(true);
    }
  }
  void Fill(const v1::DownloadRequest& request) {
    const bool anchor = request.source_case() == v1::DownloadRequest::kAnchorVersion;
    const auto& [version, payload] = owner_.downloads[{request.fragment(), anchor}];
    v1::DownloadMessage header;
    header.mutable_header()->set_version(version);
    header.mutable_header()->set_num_chunks(static_cast<int>(payload.size()));
    if (owner_.header_generation) header.mutable_header()->set_generation(*owner_.header_generation);
    outgoing_.push_back(ToBytes(header));
    const int stripes = std::max(1, request.num_stripes());
    const int held = request.held_version() == version ? request.first_chunk() : 0;
    for (size_t i = request.stripe() + static_cast<size_t>(held) * stripes; i < payload.size(); i += stripes) {
      outgoing_.push_back(ChunkMessage(std::make_shared<const std::string>(payload[i])));
    }
    v1::DownloadMessage end;
    end.mutable_end()->set_digest(DigestOf(request.fragment(), version));
    outgoing_.push_back(ToBytes(end));
  }
  void OnWriteDone(bool ok) override {
    if (ended_) return;
    if (!ok || outgoing_.empty()) return End(ok ? grpc::Status::OK : kCancelled);
    writing_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    StartWrite(&writing_);
  }
  void OnCancel() override { End(kCancelled); }
  void OnDone() override { owner_.open_.erase(this); }
  void End(const grpc::Status& status) {
    if (!std::exchange(ended_, true)) Finish(status);
  }

  ScriptedCoordinator& owner_;
  grpc::ByteBuffer incoming_;
  std::deque<grpc::ByteBuffer> outgoing_;
  grpc::ByteBuffer writing_;
  bool ended_ = false;
};

sim::CallReactor* ScriptedCoordinator::NewDownload() { return Keep(std::make_unique<Downstream>(this)); }

}  // namespace causeway::transport
