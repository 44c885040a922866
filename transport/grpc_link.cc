#include "transport/grpc_link.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/codec_id.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/messages.h"
#include "transport/tls_probe.h"

namespace causeway::transport {
namespace {

// Asks for the run's description until the coordinator answers, or it makes no more sense. `stops` ends an attempt;
// `wait(ms)` returns true if it did meanwhile. UNAVAILABLE after options.connect_timeout_s, CANCELLED if stopped,
// PERMISSION_DENIED if the peer is no coordinator that we understand, or another shard.
absl::StatusOr<RunDescription> AwaitDescription(Wire& wire, const LinkOptions& options,
                                                const std::function<bool()>& stops,
                                                const std::function<bool(int64_t backoff_ms)>& wait) {
  const core::Clock& clock = core::SystemClock();
  const int64_t since_ms = clock.NowMs();
  for (int attempt = 0;; ++attempt) {
    v1::RunDescription description;
    const grpc::Status status = wire.Describe(options.site, stops, description);
    const absl::Status meaning = MeaningOf(status, description, options.shard, options.coordinator);
    if (meaning.ok()) return RunDescription{description.run_id(), description.run_config(), description.http()};
    if (!absl::IsUnavailable(meaning)) return meaning;
    const bool unconnected = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const std::string error = Explain(options, unconnected, status.error_message());
    if (UnreachableTooLong(options.connect_timeout_s, since_ms, clock.NowMs())) {
      return absl::UnavailableError(absl::StrCat("no coordinator at ", options.coordinator.Text(), " within ",
                                                 options.connect_timeout_s, " s: ", error));
    }
    const int64_t backoff_ms = BackoffMs(attempt, core::DeviceRandom());
    spdlog::warn("no coordinator at {} ({}); trying again in {} ms", options.coordinator.Text(), error, backoff_ms);
    if (wait(backoff_ms)) return absl::CancelledError("stopped while connecting");
  }
}

LinkOptions WithAnswers(LinkOptions options) {
  options.channel.answers = std::make_shared<Answers>();
  return options;
}

constexpr auto kLeaveTimeout = std::chrono::seconds(2);    // for the coordinator to receive our leave
constexpr auto kFinishTimeout = std::chrono::seconds(30);  // the same at the end of the run: it may restart meanwhile

}  // namespace

std::string Explain(const LinkOptions& options, bool unconnected, const std::string& error) {
  return unconnected ? ExplainFailure(error, options.coordinator, options.channel) : error;
}

GrpcLink::GrpcLink(LinkOptions options, std::unique_ptr<Wire> wire)
    : options_(WithAnswers(std::move(options))),
      wire_(wire != nullptr ? std::move(wire) : MakeGrpcWire(options_.coordinator, options_.channel, options_.all)),
      up_(options_.max_up_bytes_per_s),
      down_(options_.max_down_bytes_per_s),
      show_(wire_.get(), &up_),
      session_(options_.site, options_.shard, options_.connect_timeout_s,
               absl::StrFormat("%016x", core::DeviceRandom())) {
  session_.SetRun(options_.run);
}

GrpcLink::~GrpcLink() { Leave(/*finished=*/false, "the program ends"); }

void GrpcLink::Resume(const core::SessionId& session, const Remembered& of_coordinator) {
  CHECK(listener_ == nullptr);
  core::MutexLock lock(mutex_);
  session_.Resume(session, of_coordinator);
}

Remembered GrpcLink::remembered() const {
  core::MutexLock lock(mutex_);
  return session_.remembered();
}

absl::StatusOr<RunDescription> GrpcLink::Describe(const std::function<bool()>& cancelled) {
  absl::StatusOr<RunDescription> run = AwaitDescription(
      *wire_, options_, [&] { return cancelled() || Stopping(); },
      [&](int64_t backoff_ms) { return WaitForRetry(backoff_ms, cancelled); });
  core::MutexLock lock(mutex_);
  if (run.ok()) session_.SetRun(run->run_id);
  return run;
}

// Waits until the time is over, or the link or its caller stops; true if one does. Unconnected, it waits on the
// channel: gRPC works on a connection, and forgets the old failure, only while someone waits on it.
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
      lock.WaitFor(changed_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return session_.stopping(); });
    }
  }
  return stops();
}

bool GrpcLink::Stopping() const {
  core::MutexLock lock(mutex_);
  return session_.stopping();
}

void GrpcLink::Start(const core::Manifest& manifest, LinkListener* listener) {
  CHECK(listener_ == nullptr);
  manifest_ = manifest;
  listener_ = listener;
  {
    core::MutexLock lock(mutex_);
    session_.Begin(clock_.NowMs());
  }
  thread_ = core::Thread([this] { core::Guarded([this] { Run(); }); });
}

void GrpcLink::Run() {
  while (true) {
    ControlSession::Wait wait;
    {
      core::MutexLock lock(mutex_);
      if (session_.over()) return;
      if (session_.HasToWait()) wait = session_.TakeWait(core::DeviceRandom());
    }
    if (wait.ms > 0) {
      spdlog::warn("{} {} ({}); joining again in {} ms", options_.coordinator.Text(),
                   wait.refused ? "tells this site to wait" : "is not connected",
                   Explain(options_, wait.unconnected, wait.error), wait.ms);
      if (WaitForRetry(wait.ms, [] { return false; })) return;
    }
    Connect();
    // Handle the transfers until the control stream breaks.
    while (true) {
      const int64_t looked_ms = clock_.NowMs();
      Replace(watch_.TakeDead(clock_.NowUs()));
      LaunchDue();
      core::MutexLock lock(mutex_);
      if (session_.stopping() || !session_.running()) break;
      lock.WaitFor(changed_, std::chrono::milliseconds(transfers_.MsToLook(looked_ms)),
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return session_.stopping() || !session_.running() || transfers_.TakeRetryAdded();
                   });
    }
    std::optional<std::string> error;
    {
      core::MutexLock lock(mutex_);
      error = session_.GivesUp(clock_.NowMs());
    }
    if (!error) continue;
    Fail(absl::UnavailableError(absl::StrCat("no coordinator at ", options_.coordinator.Text(), " for ",
                                             options_.connect_timeout_s, " s: ", *error)));
  }
}

void GrpcLink::Connect() {
  v1::Join join;
  ToProto(manifest_, join.mutable_manifest());
  for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
  const Standing standing = listener_->GetStanding();
  ToProto(standing, &join);
  wire_->Dial();
  core::MutexLock lock(mutex_);
  if (session_.over()) return;
  session_.Join(standing.joining, &join);
  control_ = ControlStream::Start(
      *wire_, std::move(join), [this](const v1::CoordinatorMessage& message) { OnControlMessage(message); },
      [this](const grpc::Status& status) { OnControlEnded(status); });
}

void GrpcLink::OnControlEnded(const grpc::Status& status) {
  if (IsRefusal(status)) Fail(absl::PermissionDeniedError(status.error_message()));
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) watch_.ControlLost();
  core::MutexLock lock(mutex_);
  session_.Ended(status, clock_.NowMs());
  control_.reset();
  changed_.NotifyAll();
}

void GrpcLink::OnControlMessage(const v1::CoordinatorMessage& message) {
  {
    core::MutexLock lock(mutex_);
    session_.Heard(clock_.NowMs());
  }
  options_.channel.answers->Heard(message, clock_.NowMs());
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
  if (!map.ok()) return Fail(absl::PermissionDeniedError(map.status().message()));
  Welcome meaning;
  {
    core::MutexLock lock(mutex_);
    meaning = session_.Take(welcome, *std::move(map));
  }
  if (!meaning.kept_transfers) DropTransfers();
  watch_.Begin(welcome.beat_ms());
  wire_->Welcomed(welcome, [this] { Rejoin(); });
  Replace(watch_.TakeSuspects(clock_.NowUs()));
  listener_->OnHold(welcome.held());
  listener_->OnWelcome(meaning);
  std::optional<v1::SiteMessage> leave;
  {
    core::MutexLock lock(mutex_);
    leave = session_.Enter();
    changed_.NotifyAll();
  }
  if (leave) SendOnControl(*std::move(leave));
  LaunchDue();
}

void GrpcLink::OnRefused(const v1::Refused& refused) {
  if (refused.retry_after_ms() == 0) return Fail(absl::PermissionDeniedError(refused.reason()));
  v1::Context context;
  {
    core::MutexLock lock(mutex_);
    session_.Refused(refused, clock_.NowMs());
    context = session_.Context();
  }
  if (refused.wants_state()) show_.Begin(context, manifest_, listener_);
}

void GrpcLink::Fail(const absl::Status& status) {
  {
    core::MutexLock lock(mutex_);
    if (!session_.Fail()) return;
    changed_.NotifyAll();
  }
  DropTransfers();
  listener_->OnFailure(status);
}

core::LinkProgress GrpcLink::Measured() const {
  core::LinkProgress progress = watch_.AddTo(meter_.progress(), clock_.NowUs());
  progress.two_coordinators = options_.channel.answers->Report(options_.coordinator.Text(), clock_.NowMs());
  core::MutexLock lock(mutex_);
  progress.failing = transfers_.Failing(clock_.NowMs());
  return progress;
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
  v1::SiteMessage message, ping;
  ToProto(progress, message.mutable_progress());
  bool pings = false;
  {
    core::MutexLock lock(mutex_);
    pings = session_.Report(clock_.NowMs(), message.mutable_progress());
  }
  ping.mutable_ping()->set_sent_us(clock_.NowUs());
  if (pings) SendOnControl(std::move(ping));
  return SendOnControl(std::move(message));
}

void GrpcLink::Leave(bool finished, const std::string& reason) {
  if (!thread_.joinable()) return;
  v1::SiteMessage message;
  message.mutable_leave()->set_finished(finished);
  message.mutable_leave()->set_reason(reason);
  {
    core::MutexLock lock(mutex_);
    session_.Leave(message);
  }
  SendOnControl(std::move(message));
  {
    core::MutexLock lock(mutex_);
    const auto heard = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return session_.HasLeft(finished); };
    lock.WaitFor(changed_, finished ? kFinishTimeout : kLeaveTimeout, heard);
    session_.Stop();
    changed_.NotifyAll();
    if (control_ != nullptr) control_->Cancel();
  }
  thread_.Join();
  DropTransfers();
  show_.End();
  core::MutexLock lock(mutex_);
  lock.Wait(changed_,
            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !session_.running() && transfers_.empty(); });
}

void GrpcLink::Hurry() {
  core::MutexLock lock(mutex_);
  session_.Hurry();
  changed_.NotifyAll();
}

void GrpcLink::JoinAs(int64_t stay) {
  core::MutexLock lock(mutex_);
  session_.SetStay(stay);
  if (control_ != nullptr) control_->Cancel();
}

void GrpcLink::Rejoin() {
  core::MutexLock lock(mutex_);
  if (control_ != nullptr) control_->Cancel();
}

// ---- Transfers: launched while welcomed, and again where they broke ----

void GrpcLink::Upload(UploadRequest request) { Add(MakeUpload(std::move(request))); }

void GrpcLink::Download(DownloadRequest request) { Add(MakeDownload(std::move(request))); }

// Two requests for the same object cause one transfer, for the later request: its owner has reason to think that the
// earlier one is lost.
void GrpcLink::Add(std::shared_ptr<Transfer> transfer) {
  if (DropIf([&](const Transfer& earlier) { return transfer->Replaces(earlier); })) transfer->TakePlaceOfEarlier();
  {
    core::MutexLock lock(mutex_);
    if (!session_.over()) transfers_.Add(std::exchange(transfer, nullptr));
  }
  if (transfer != nullptr) {
    transfer->Finish(absl::CancelledError("the link has ended"));
  } else {
    LaunchDue();
  }
}

void GrpcLink::LaunchDue() {
  std::vector<std::pair<std::shared_ptr<Transfer>, Lanes>> due;
  v1::Context context;
  std::optional<uint64_t> generation;
  {
    core::MutexLock lock(mutex_);
    if (!session_.welcomed() || session_.stopping()) return;
    context = session_.Context();
    generation = session_.generation();
  }
  // A contribution may come from the site when its stay has just ended.
  DropIf([&](const Transfer& transfer) { return transfer.IsOfEarlierStay(context.stay()); });
  {
    core::MutexLock lock(mutex_);
    for (auto& transfer : transfers_.TakeDue(clock_.NowMs())) {
      Pacer* const pacer = transfer->is_upload() ? &up_ : &down_;
      const int channels = options_.channels > 0 ? options_.channels : meter_.ChannelsWithin(pacer->bytes_per_s());
      due.push_back({transfer, Lanes{wire_.get(), channels, pacer, &meter_, &watch_, session_.proofs()}});
    }
  }
  for (const auto& [launched, lanes] : due) {
    const std::shared_ptr<Transfer> transfer = launched;
    // The second callback holds the transfer until its end. The first is kept by the transfer, and may never be called.
    transfer->Launch(
        lanes, context, generation, [this, written = transfer.get()] { OnTransferWritten(*written); },
        [this, transfer](bool finished) { OnTransferEnded(transfer, finished); });
    // The transfer may have been dropped before there was a stream to cancel.
    core::MutexLock lock(mutex_);
    if (transfers_.IsDropped(*transfer) || session_.over()) transfer->Cancel();
  }
}

// New connections first, so that what is cancelled goes on there.
void GrpcLink::Replace(const ConnectionWatch::Dead& dead) {
  if (dead.connections.empty()) return;
  for (const int connection : dead.connections) wire_->Redial(connection);
  spdlog::warn("no bytes arrive over the connections to {} any more ({}); {} of those for transfers are made anew",
               options_.coordinator.Text(), dead.why, dead.connections.size());
  core::MutexLock lock(mutex_);
  for (const auto& transfer : transfers_.Running()) transfer->CancelOn(dead.connections);
}

void GrpcLink::OnTransferWritten(const Transfer& transfer) {
  {
    core::MutexLock lock(mutex_);
    transfers_.Written(transfer);
  }
  LaunchDue();
}

void GrpcLink::OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished) {
  {
    core::MutexLock lock(mutex_);
    if (transfers_.Ended(*transfer) && !finished && !session_.over()) {
      const int64_t broke_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(transfer->broke_at().time_since_epoch()).count();
      transfers_.Retry(*transfer, transfer->attempts(), broke_ms, clock_.NowMs(), core::DeviceRandom());
      changed_.NotifyAll();
      return;
    }
  }
  buffers_.Look(meter_.progress());
  // It counts as running until its owner is notified and the next one launched, so that Leave does not return earlier.
  if (!finished) transfer->Finish(absl::CancelledError("the transfer was dropped"));
  LaunchDue();
  core::MutexLock lock(mutex_);
  transfers_.Remove(*transfer);
  changed_.NotifyAll();
}

void GrpcLink::DropTransfers() {
  DropIf([](const Transfer&) { return true; });
}

bool GrpcLink::DropIf(const std::function<bool(const Transfer&)>& condition) {
  TransferQueue::Dropped dropped;
  {
    core::MutexLock lock(mutex_);
    dropped = transfers_.DropIf(condition);
  }
  for (const auto& transfer : dropped.running) transfer->Cancel();
  for (const auto& transfer : dropped.idle) transfer->Finish(absl::CancelledError("the transfer was dropped"));
  return dropped.any();
}

}  // namespace causeway::transport
