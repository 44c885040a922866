#include "transport/grpc_link.h"

#include <spdlog/spdlog.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/describe_call.h"
#include "transport/messages.h"
#include "transport/tls_probe.h"

namespace causeway::transport {
namespace {

constexpr auto kLeaveTimeout = std::chrono::seconds(2);    // for the coordinator to hear that we leave
constexpr auto kFinishTimeout = std::chrono::seconds(30);  // the same, once all is done: a restart of it fits in
constexpr int64_t kPingMs = 500;

// The coordinator knows who we are, or wants to, and does not let us in: asking again does not help.
bool IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
}

}  // namespace

GrpcLink::GrpcLink(LinkOptions options) : GrpcLink(options, MakeGrpcWire(options.coordinator, options.channel)) {}

GrpcLink::GrpcLink(LinkOptions options, std::unique_ptr<Wire> wire)
    : options_(std::move(options)),
      session_(absl::StrFormat("%016x", core::DeviceRandom())),
      wire_(std::move(wire)),
      up_(options_.max_up_bytes_per_s),
      down_(options_.max_down_bytes_per_s) {}

GrpcLink::~GrpcLink() { Leave(/*finished=*/false, "the program ends"); }

bool GrpcLink::UnreachableTooLong(int64_t since_ms) const {
  return options_.connect_timeout_s > 0 && clock_.NowMs() - since_ms >= options_.connect_timeout_s * 1000;
}

void GrpcLink::Resume(const core::SessionId& session, const std::string& lineage) {
  CHECK(listener_ == nullptr);
  session_ = session;
  core::MutexLock lock(mutex_);
  lineage_ = lineage;
}

std::string GrpcLink::lineage() const {
  core::MutexLock lock(mutex_);
  return lineage_;
}

// Of a connection that failed: what TLS has to say, or else gRPC's words, which are clear where nobody answers.
std::string GrpcLink::Explain(const std::string& error) const {
  if (absl::StrContains(error, "refused") || absl::StrContains(error, "imeout")) return error;
  const std::string why = WhyNoConnection(options_.coordinator, options_.channel.tls);
  return why.empty() ? error : why;
}

v1::Context GrpcLink::MakeContext() const {
  v1::Context context;
  context.set_protocol(kProtocol);
  context.set_run_id(run_id_);
  context.set_site(options_.site);
  context.set_session(session_);
  context.set_epoch(epoch_);
  context.set_lineage(lineage_);
  context.set_shard(options_.shard.index);
  context.set_num_shards(options_.shard.count);
  context.set_world(1);
  return context;
}

absl::Status GrpcLink::CheckShard(const v1::RunDescription& description) const {
  const core::Shard there{description.shard(), std::max(1, description.num_shards())};
  if (there == options_.shard) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("expected ", options_.shard.Text(), " at ",
                                                  options_.coordinator.Text(), ", this is ", there.Text(),
                                                  ": --coordinator names all shards of the run, in their order"));
}

absl::StatusOr<RunDescription> GrpcLink::Describe(const std::function<bool()>& cancelled) {
  const int64_t since_ms = clock_.NowMs();
  const auto stops = [&] { return cancelled() || Stopping(); };
  for (int attempt = 0;; ++attempt) {
    v1::RunDescription description;
    const grpc::Status status = wire_->Describe(options_.site, stops, description);
    if (status.ok()) {
      RETURN_IF_ERROR(CheckShard(description));
      core::MutexLock lock(mutex_);
      run_id_ = description.run_id();
      return RunDescription{description.run_id(), description.run_config()};
    }
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
        status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      return absl::PermissionDeniedError(
          absl::StrCat(options_.coordinator.Text(), " is not a coordinator of this version: ", status.error_message()));
    }
    if (IsRefusal(status)) return absl::PermissionDeniedError(status.error_message());
    const bool unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const std::string error = unavailable ? Explain(status.error_message()) : status.error_message();
    if (UnreachableTooLong(since_ms)) {
      return absl::UnavailableError(absl::StrCat("no coordinator at ", options_.coordinator.Text(), " within ",
                                                 options_.connect_timeout_s, " s: ", error));
    }
    const int64_t backoff_ms = BackoffMs(attempt, core::DeviceRandom());
    spdlog::warn("no coordinator at {} ({}); trying again in {} ms", options_.coordinator.Text(), error, backoff_ms);
    if (WaitForRetry(backoff_ms, cancelled)) return absl::CancelledError("stopped while connecting");
  }
}

// Waits for the time to be over, or the link or its caller to stop; true if one does. Unconnected, it waits on the
// channel: gRPC gets on with a connection only while somebody does, and would otherwise still report the old failure at
// the next attempt.
bool GrpcLink::WaitForRetry(int64_t backoff_ms, const std::function<bool()>& cancelled) {
  const int64_t end_ms = clock_.NowMs() + backoff_ms;
  const auto stops = [&] { return Stopping() || cancelled(); };
  bool connected = false;
  while (clock_.NowMs() < end_ms && !stops()) {
    const auto wait = std::chrono::milliseconds(std::min(end_ms - clock_.NowMs(), kStopPollMs));
    if (!connected) {
      connected = wire_->AwaitConnected(clock_.Now() + wait);
    } else {
      core::MutexLock lock(mutex_);
      lock.WaitFor(changed_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
    }
  }
  return stops();
}

bool GrpcLink::Stopping() const {
  core::MutexLock lock(mutex_);
  return stopping_;
}

void GrpcLink::Start(const core::Manifest& manifest, LinkListener* listener) {
  CHECK(listener_ == nullptr);
  manifest_ = manifest;
  listener_ = listener;
  {
    core::MutexLock lock(mutex_);
    unreached_since_ms_ = clock_.NowMs();
  }
  thread_ = core::Thread([this] { core::Guarded([this] { Run(); }); });
}

void GrpcLink::Run() {
  while (true) {
    int64_t wait_ms = 0;
    std::string error;
    bool explain = false;
    {
      core::MutexLock lock(mutex_);
      if (stopping_ || failed_) return;
      if (!control_running_ && attempts_ > 0) {
        wait_ms = std::max(retry_after_ms_, BackoffMs(attempts_ - 1, core::DeviceRandom()));
        retry_after_ms_ = 0;
        error = last_error_;
        explain = connection_failed_;
      }
    }
    if (wait_ms > 0) {
      spdlog::warn("connection to {} lost ({}); joining again in {} ms", options_.coordinator.Text(),
                   explain ? Explain(error) : error, wait_ms);
    }
    if (wait_ms > 0 && WaitForRetry(wait_ms, [] { return false; })) return;
    Connect();
    // Until the control stream breaks, look after the transfers.
    while (true) {
      const int64_t looked_ms = clock_.NowMs();
      LaunchDue();
      core::MutexLock lock(mutex_);
      if (stopping_ || !control_running_) break;
      lock.WaitFor(changed_, std::chrono::milliseconds(MsToLook(looked_ms)),
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return stopping_ || !control_running_ || std::exchange(retry_added_, false);
                   });
    }
    bool give_up = false;
    {
      core::MutexLock lock(mutex_);
      give_up = !stopping_ && !failed_ && UnreachableTooLong(unreached_since_ms_);
      error = last_error_;
    }
    if (give_up) {
      Fail(absl::UnavailableError(absl::StrCat("no coordinator at ", options_.coordinator.Text(), " for ",
                                               options_.connect_timeout_s, " s: ", error)));
    }
  }
}

void GrpcLink::Connect() {
  v1::Join join;
  ToProto(manifest_, join.mutable_manifest());
  for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
  const Standing standing = listener_->GetStanding();
  join.mutable_versions()->Assign(standing.versions.begin(), standing.versions.end());
  join.set_from_checkpoint(standing.from_checkpoint);
  join.set_software_version(kVersion);
  ToProto(standing.data, &join);
  core::MutexLock lock(mutex_);
  if (stopping_ || failed_) return;
  joining_ = standing.joining;
  join.set_stay(stay_);
  *join.mutable_context() = MakeContext();
  control_running_ = true;
  control_ = ControlStream::Start(
      *wire_, std::move(join), [this](const v1::CoordinatorMessage& message) { OnControlMessage(message); },
      [this](const grpc::Status& status) { OnControlEnded(status); });
}

void GrpcLink::OnControlEnded(const grpc::Status& status) {
  if (IsRefusal(status)) Fail(absl::PermissionDeniedError(status.error_message()));
  core::MutexLock lock(mutex_);
  connection_failed_ = !welcomed_ && status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (welcomed_ || unreached_since_ms_ == 0) unreached_since_ms_ = clock_.NowMs();
  attempts_ = welcomed_ ? 1 : attempts_ + 1;
  if (leave_ && welcomed_ && status.ok()) left_ = stopping_ = true;  // it ends the stream when that is durable
  welcomed_ = false;
  control_running_ = false;
  control_.reset();
  if (!status.error_message().empty()) {
    last_error_ = status.error_message();
  } else if (retry_after_ms_ == 0) {
    last_error_ = "the coordinator ended it";
  }
  changed_.NotifyAll();
}

void GrpcLink::OnControlMessage(const v1::CoordinatorMessage& message) {
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kWelcome: OnWelcome(message.welcome()); break;
    case v1::CoordinatorMessage::kRefused: OnRefused(message.refused()); break;
    case v1::CoordinatorMessage::kSeedRequest: listener_->OnSeedRequest(); break;
    case v1::CoordinatorMessage::kEntry: listener_->OnEntry(FromProto(message.entry())); break;
    case v1::CoordinatorMessage::kNotice: listener_->OnNotice(message.notice().reason()); break;
    case v1::CoordinatorMessage::kDrain: listener_->OnDrain(message.drain().reason()); break;
    case v1::CoordinatorMessage::kHold: listener_->OnHold(message.hold().held()); break;
    case v1::CoordinatorMessage::kPong:
      meter_.RoundTrip(static_cast<double>(clock_.NowUs() - static_cast<int64_t>(message.pong().sent_us())) * 1e-6);
      break;
    case v1::CoordinatorMessage::KIND_NOT_SET: break;  // from a newer coordinator
  }
}

void GrpcLink::OnWelcome(const v1::Welcome& welcome) {
  absl::StatusOr<core::FragmentMap> map = FromProto(welcome.manifest(), welcome.fragments());
  if (!map.ok()) {
    Fail(absl::PermissionDeniedError(map.status().message()));
    return;
  }
  bool same_lineage = true, same_model = true, joining = false;
  {
    core::MutexLock lock(mutex_);
    joining = joining_;
    same_lineage = lineage_.empty() || lineage_ == welcome.lineage();
    epoch_ = same_lineage ? std::max<uint64_t>(epoch_, welcome.epoch()) : welcome.epoch();
    lineage_ = welcome.lineage();
    if (welcome.has_generation()) {
      same_model = generation_.value_or(welcome.generation()) == welcome.generation();
      generation_ = welcome.generation();
    }
  }
  const bool keeps = same_model && (welcome.resumed() || (joining && same_lineage));
  if (!keeps) DropTransfers();
  listener_->OnHold(welcome.held());
  listener_->OnWelcome({.resumed = welcome.resumed(),
                        .kept_transfers = keeps,
                        .same_lineage = same_lineage,
                        .stay = welcome.stay(),
                        .generation = welcome.has_generation() ? std::optional(welcome.generation()) : std::nullopt,
                        .map = *std::move(map),
                        .last_admitted = {welcome.last_admitted().begin(), welcome.last_admitted().end()}});
  std::optional<v1::SiteMessage> leave;
  {
    core::MutexLock lock(mutex_);
    welcomed_ = true;
    attempts_ = 0;
    leave = leave_;
    changed_.NotifyAll();
  }
  if (leave) SendOnControl(*std::move(leave));
  LaunchDue();
}

void GrpcLink::OnRefused(const v1::Refused& refused) {
  if (refused.retry_after_ms() == 0) {
    Fail(absl::PermissionDeniedError(refused.reason()));
    return;
  }
  core::MutexLock lock(mutex_);
  retry_after_ms_ = refused.retry_after_ms();
  unreached_since_ms_ = clock_.NowMs();  // it was reached, and said when to come back
  last_error_ = refused.reason();
}

void GrpcLink::Fail(const absl::Status& status) {
  {
    core::MutexLock lock(mutex_);
    if (failed_) return;
    failed_ = true;
    changed_.NotifyAll();
  }
  DropTransfers();
  listener_->OnFailure(status);
}

bool GrpcLink::SendOnControl(v1::SiteMessage message) {
  std::shared_ptr<ControlStream> control;
  {
    core::MutexLock lock(mutex_);
    control = control_;
  }
  if (control != nullptr) control->Send(std::move(message));
  return control != nullptr;
}

void GrpcLink::SendReady() {
  v1::SiteMessage message;
  message.mutable_ready();
  SendOnControl(std::move(message));
}

bool GrpcLink::SendProgress(const core::Progress& progress) {
  v1::SiteMessage message;
  ToProto(progress, message.mutable_progress());
  Ping();
  return SendOnControl(std::move(message));
}

// Measures the round trip, with the reports, which come a few times in a lease.
void GrpcLink::Ping() {
  {
    core::MutexLock lock(mutex_);
    if (!welcomed_ || clock_.NowMs() - pinged_ms_ < kPingMs) return;
    pinged_ms_ = clock_.NowMs();
  }
  v1::SiteMessage message;
  message.mutable_ping()->set_sent_us(clock_.NowUs());
  SendOnControl(std::move(message));
}

void GrpcLink::Leave(bool finished, const std::string& reason) {
  if (!thread_.joinable()) return;
  v1::SiteMessage message;
  message.mutable_leave()->set_finished(finished);
  message.mutable_leave()->set_reason(reason);
  {
    core::MutexLock lock(mutex_);
    leave_ = message;
  }
  SendOnControl(std::move(message));
  {
    core::MutexLock lock(mutex_);
    const auto heard = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return left_ || failed_ || hurried_ || (!finished && !control_running_);
    };
    lock.WaitFor(changed_, finished ? kFinishTimeout : kLeaveTimeout, heard);
    stopping_ = true;
    changed_.NotifyAll();
    if (control_ != nullptr) control_->Cancel();
  }
  thread_.Join();
  DropTransfers();
  core::MutexLock lock(mutex_);
  lock.Wait(changed_,
            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !control_running_ && transfers_.empty(); });
}

void GrpcLink::Hurry() {
  core::MutexLock lock(mutex_);
  hurried_ = true;
  changed_.NotifyAll();
}

void GrpcLink::JoinStay(int64_t stay) {
  core::MutexLock lock(mutex_);
  stay_ = stay;
  if (control_ != nullptr) control_->Cancel();
}

void GrpcLink::Rejoin() {
  core::MutexLock lock(mutex_);
  if (control_ != nullptr) control_->Cancel();
}

}  // namespace causeway::transport
