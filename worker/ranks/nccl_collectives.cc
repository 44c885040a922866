#include "worker/ranks/nccl_collectives.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"

namespace causeway::worker {
namespace {

// A device's queue takes about 1000 kernels; a launch beyond them would block, and with it an abort.
constexpr size_t kMostLaunched = 64;

// An abort ends the device's kernels. If NCCL hangs in it, Await still returns.
constexpr std::chrono::seconds kForAbort{30};
constexpr std::chrono::milliseconds kForReason{500};

// All operations are done; a rank that has not come by then has failed.
constexpr std::chrono::seconds kMostFinalize{10};

double Seconds(Collectives::Timeout timeout) { return std::chrono::duration<double>(timeout).count(); }

std::string OfBytes(const std::string& name, size_t bytes) { return absl::StrCat(name, " of ", bytes, " bytes"); }

// The message with which rank 0 begins a communicator.
struct Invitation {
  NcclUniqueId id = {};
  int32_t version = 0;
};

// The group on the device whose ranks are those of `control`.
absl::StatusOr<std::unique_ptr<Collectives>> MakeGroup(const NcclApi& nccl, std::unique_ptr<Collectives> control,
                                                       std::shared_ptr<StreamHooks> hooks,
                                                       std::shared_ptr<SharedFate> fate, Collectives::Timeout timeout) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  Invitation invitation = {.version = nccl.version};
  RETURN_IF_ERROR(hooks->Use());
  if (control->rank() == 0) {
    if (const NcclResult result = nccl.get_unique_id(&invitation.id); result != NcclResult::kSuccess) {
      return absl::InternalError(absl::StrCat("NCCL: no unique id: ", nccl.get_error_string(result)));
    }
  }
  RETURN_IF_ERROR(control->Await(control->Broadcast(BytesOf(std::span(&invitation, 1)), 0), timeout));
  if (invitation.version != nccl.version) {
    return absl::FailedPreconditionError(absl::StrCat("NCCL: expected version ", NcclVersionName(invitation.version),
                                                      ", as ", control->NameOf(0), " has, got ",
                                                      NcclVersionName(nccl.version), " in ", nccl.file));
  }
  // The time for creating the group is limited; later each Await has its own deadline.
  const auto making = std::make_shared<bool>(true);
  const auto give_up = [fate, making, begin, timeout, world = control->world()]() -> absl::Status {
    if (*making && core::SystemClock().Now() - begin > timeout) {
      return absl::DeadlineExceededError(
          absl::StrFormat("NCCL: making a group of %d ranks took longer than %.1f s", world, Seconds(timeout)));
    }
    return fate->failure();
  };
  NcclCollectives::Parts parts;
  ASSIGN_OR_RETURN(parts.token, hooks->Allocate(sizeof(float)));
  ASSIGN_OR_RETURN(parts.communicator,
                   NcclCommunicator::Make(nccl, invitation.id, control->rank(), control->world(), give_up,
                                          std::min<Collectives::Timeout>(timeout, kMostFinalize)));
  *making = false;
  parts.control = std::move(control);
  parts.hooks = std::move(hooks);
  parts.fate = std::move(fate);
  return std::make_unique<NcclCollectives>(nccl, std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> MakeNcclCollectives(const NcclApi& nccl, Collectives& control,
                                                                 std::shared_ptr<StreamHooks> hooks,
                                                                 Collectives::Timeout timeout) {
  ASSIGN_OR_RETURN(std::unique_ptr<Collectives> watched, control.Split(0, timeout));
  ASSIGN_OR_RETURN(std::unique_ptr<Collectives> ours, control.Split(0, timeout));
  const auto fate = std::make_shared<SharedFate>(std::move(watched), timeout);
  absl::StatusOr<std::unique_ptr<Collectives>> made = MakeGroup(nccl, std::move(ours), std::move(hooks), fate, timeout);
  if (made.ok()) return made;
  fate->Fail(made.status());
  return fate->failure();
}

NcclCollectives::NcclCollectives(const NcclApi& nccl, Parts parts) : nccl_(nccl), parts_(std::move(parts)) {
  thread_ = core::Thread([this] { Serve(); });
}

NcclCollectives::~NcclCollectives() {
  bool pending = false;
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    pending = !queue_.empty();
    changed_.NotifyAll();
  }
  if (pending) Abort("its group ended with operations pending");
  thread_.Join();
}

absl::StatusOr<std::unique_ptr<Collectives>> NcclCollectives::Split(int color, Timeout timeout) {
  const auto split = [&]() -> absl::StatusOr<std::unique_ptr<Collectives>> {
    RETURN_IF_ERROR(parts_.fate->failure());
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> control, parts_.control->Split(color, timeout));
    ASSIGN_OR_RETURN(std::shared_ptr<StreamHooks> hooks, parts_.hooks->Another());
    return MakeGroup(nccl_, std::move(control), std::move(hooks), parts_.fate, timeout);
  };
  absl::StatusOr<std::unique_ptr<Collectives>> made = split();
  if (made.ok()) return made;
  parts_.fate->Fail(made.status());
  return parts_.fate->failure();
}

// ---- The queue ----

Collectives::Ticket NcclCollectives::Post(Operation operation) {
  core::MutexLock lock(mutex_);
  const Ticket ticket = done_ + static_cast<int64_t>(queue_.size()) + 1;
  if (ended_) return ticket;
  queue_.push_back(std::move(operation));
  changed_.NotifyAll();
  return ticket;
}

absl::Status NcclCollectives::Await(Ticket ticket, Timeout timeout) {
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= ticket || ended_; };
  absl::Status late;
  {
    core::MutexLock lock(mutex_);
    if (!lock.WaitFor(changed_, timeout, over)) {
      late = absl::DeadlineExceededError(
          absl::StrFormat("NCCL: %s took longer than %.1f s", queue_.front().name, Seconds(timeout)));
    }
  }
  if (!late.ok()) parts_.fate->Fail(late);
  core::MutexLock lock(mutex_);
  lock.WaitFor(changed_, kForAbort, over);
  return done_ >= ticket ? absl::OkStatus() : parts_.fate->failure();
}

bool NcclCollectives::IsDone(Ticket ticket) {
  core::MutexLock lock(mutex_);
  return done_ >= ticket;
}

void NcclCollectives::Abort(const std::string& reason) { parts_.fate->Fail(absl::AbortedError(reason)); }

// ---- The thread ----

void NcclCollectives::Serve() {
  if (const absl::Status used = parts_.hooks->Use(); !used.ok()) parts_.fate->Fail(used);
  PollPause pause;
  while (true) {
    Operation* const next = NextToLaunch(pause);
    absl::Status status = parts_.fate->failure();
    {
      core::MutexLock lock(mutex_);
      if (stopping_ && queue_.empty() && status.ok()) return;
    }
    if (status.ok() && next != nullptr) status = LaunchOne(*next);
    if (status.ok()) {
      const absl::StatusOr<bool> advanced = Advance();
      status = advanced.status();
      if (next != nullptr || (advanced.ok() && *advanced)) pause.Reset();
    }
    if (status.ok()) continue;
    // NCCL only knows that another rank is gone; that rank may have sent the reason.
    if (absl::IsUnavailable(status)) parts_.fate->AwaitFailure(kForReason);
    parts_.fate->Fail(status);
    AbortGroup();
    return;
  }
}

NcclCollectives::Operation* NcclCollectives::NextToLaunch(PollPause& pause) {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); });
  const auto may_launch = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return launched_ < queue_.size() && launched_ < kMostLaunched;
  };
  if (!may_launch()) lock.WaitFor(changed_, pause.Next(), may_launch);
  return may_launch() ? &queue_[launched_] : nullptr;  // stays in place: others only append
}

absl::Status NcclCollectives::LaunchOne(Operation& operation) {
  int64_t event = 0;
  if (operation.launch) {
    void* const stream = parts_.hooks->stream();
    RETURN_IF_ERROR(parts_.communicator->Call(
        operation.name, [&](const NcclApi& nccl, NcclComm* comm) { return operation.launch(nccl, comm, stream); }));
    ASSIGN_OR_RETURN(event, parts_.hooks->Record());
    sent_bytes_ += operation.sent;
  }
  core::MutexLock lock(mutex_);
  operation.event = event;
  ++launched_;
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclCollectives::Advance() {
  bool advanced = false;
  while (true) {
    const Operation* front = nullptr;
    {
      core::MutexLock lock(mutex_);
      if (launched_ == 0) return advanced;
      front = &queue_.front();
    }
    if (front->event > 0) {
      ASSIGN_OR_RETURN(const bool done, parts_.hooks->Done(front->event));
      if (!done) {
        RETURN_IF_ERROR(parts_.communicator->AsyncError(front->name));
        return advanced;
      }
    }
    core::MutexLock lock(mutex_);
    queue_.pop_front();
    --launched_;
    ++done_;
    advanced = true;
    changed_.NotifyAll();
  }
}

void NcclCollectives::AbortGroup() {
  parts_.communicator->Abort();
  core::MutexLock lock(mutex_);
  queue_.clear();
  launched_ = 0;
  ended_ = true;
  changed_.NotifyAll();
}

// ---- The operations ----

std::string NcclCollectives::Numbered(const char* kind) { return absl::StrCat(kind, " ", ++asked_); }

// Bytes that a rank of a ring sends: for an all-reduce 2 (W−1)/W of the values, for each of its halves half of that.

Collectives::Ticket NcclCollectives::AllReduce(std::span<float> values) {
  Operation operation{.name = OfBytes(Numbered("all-reduce"), values.size_bytes())};
  if (!values.empty()) {
    operation.sent = 2 * (world() - 1) * static_cast<int64_t>(values.size_bytes()) / world();
    operation.launch = [values](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.all_reduce(values.data(), values.data(), values.size(), NcclType::kFloat32, NcclReduction::kSum, comm,
                             stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::ReduceScatter(std::span<const float> values, std::span<float> part) {
  CHECK(values.size() == part.size() * world());
  Operation operation{.name = OfBytes(Numbered("reduce-scatter"), values.size_bytes())};
  if (!part.empty()) {
    operation.sent = (world() - 1) * static_cast<int64_t>(part.size_bytes());
    operation.launch = [values, part](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.reduce_scatter(values.data(), part.data(), part.size(), NcclType::kFloat32, NcclReduction::kSum, comm,
                                 stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::AllGather(std::span<const std::byte> part, std::span<std::byte> all) {
  CHECK(all.size() == part.size() * world());
  Operation operation{.name = OfBytes(Numbered("all-gather"), part.size())};
  if (!part.empty()) {
    operation.sent = (world() - 1) * static_cast<int64_t>(part.size());
    operation.launch = [part, all](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.all_gather(part.data(), all.data(), part.size(), NcclType::kInt8, comm, stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::AllToAll(std::span<const std::byte> parts, std::span<std::byte> received) {
  CHECK(parts.size() == received.size() && parts.size() % world() == 0);
  Operation operation{.name = OfBytes(Numbered("all-to-all"), parts.size())};
  const size_t size = parts.size() / world();
  if (size > 0) {
    operation.sent = (world() - 1) * static_cast<int64_t>(size);
    operation.launch = [parts, received, size, ranks = world()](const NcclApi& nccl, NcclComm* comm, void* stream) {
      // One call for all: single ones would each wait for their peer before the next begins.
      if (const NcclResult result = nccl.group_start(); result != NcclResult::kSuccess) return result;
      for (int rank = 0; rank < ranks; ++rank) {
        const NcclResult sent = nccl.send(parts.data() + size * rank, size, NcclType::kInt8, rank, comm, stream);
        if (sent != NcclResult::kSuccess && sent != NcclResult::kInProgress) return sent;
        const NcclResult taken = nccl.receive(received.data() + size * rank, size, NcclType::kInt8, rank, comm, stream);
        if (taken != NcclResult::kSuccess && taken != NcclResult::kInProgress) return taken;
      }
      return nccl.group_end();
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::Broadcast(std::span<std::byte> bytes, int root) {
  CHECK(root >= 0 && root < world());
  Operation operation{.name = absl::StrCat(OfBytes(Numbered("broadcast"), bytes.size()), " from rank ", root)};
  if (!bytes.empty()) {
    const bool last = (rank() + 1) % world() == root;  // of the ring
    operation.sent = last ? 0 : static_cast<int64_t>(bytes.size());
    operation.launch = [bytes, root](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.broadcast(bytes.data(), bytes.data(), bytes.size(), NcclType::kInt8, root, comm, stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::Send(std::span<const std::byte> bytes, int to) {
  CHECK(to >= 0 && to < world() && to != rank());
  Operation operation{.name = OfBytes("send", bytes.size())};
  if (!bytes.empty()) {
    operation.sent = static_cast<int64_t>(bytes.size());
    operation.launch = [bytes, to](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.send(bytes.data(), bytes.size(), NcclType::kInt8, to, comm, stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::Receive(std::span<std::byte> bytes, int from) {
  CHECK(from >= 0 && from < world() && from != rank());
  Operation operation{.name = OfBytes("receive", bytes.size())};
  if (!bytes.empty()) {
    operation.launch = [bytes, from](const NcclApi& nccl, NcclComm* comm, void* stream) {
      return nccl.receive(bytes.data(), bytes.size(), NcclType::kInt8, from, comm, stream);
    };
  }
  return Post(std::move(operation));
}

Collectives::Ticket NcclCollectives::Barrier() {
  return Post({.name = Numbered("barrier"),
               .launch = [token = parts_.token](const NcclApi& nccl, NcclComm* comm, void* stream) {
                 return nccl.all_reduce(token, token, 1, NcclType::kFloat32, NcclReduction::kSum, comm, stream);
               }});
}

}  // namespace causeway::worker
