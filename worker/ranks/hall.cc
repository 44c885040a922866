#include "worker/ranks/hall.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/text.h"

namespace causeway::worker {
namespace {

constexpr std::chrono::milliseconds kLookAtStrangers{250};

std::string Name(const v1::MeetRequest& rank) {
  return absl::StrCat("rank ", rank.rank(), " of ", rank.world(), " (", core::InOneLine(rank.host()), ")");
}

}  // namespace

Hall::Hall(int world, RankKey key)
    : key_(std::move(key)), meeting_(std::make_shared<Meeting>(world, 0)), watcher_([this] { EndLateStrangers(); }) {}

Hall::~Hall() {
  {
    core::MutexLock lock(mutex_);
    closes_ = true;
  }
  changed_.NotifyAll();
  watcher_.Join();
}

grpc::Status Hall::Meet(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>* stream) {
  v1::MeetRequest request;
  const std::string caller = context->peer();  // of one that is cancelled it is unknown
  if (!Arrive(context, caller)) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many that have not proven the key"};
  const bool proven = IsRank(context, *stream, request);
  Leave(context);
  if (!proven) {
    spdlog::warn("rank 0: {} was refused: it does not know the ranks' key", caller);
    return {grpc::StatusCode::UNAUTHENTICATED, "the site's ranks have another key"};
  }
  v1::MeetReply reply;
  const absl::Status status = Meet(request, context->deadline() - core::SystemClock().Calendar(), reply);
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  stream->Write(reply);
  // A connection that this side closes first may break under what the caller still writes, before it has read.
  v1::MeetMessage more;
  while (stream->Read(&more)) continue;
  return grpc::Status::OK;
}

absl::Status Hall::Meet(const v1::MeetRequest& request, std::chrono::nanoseconds timeout, v1::MeetReply& reply) {
  core::MutexLock lock(mutex_);
  const std::shared_ptr<Meeting> meeting = meeting_;
  if (meeting->failure.ok()) meeting->failure = Enter(*meeting, request);
  if (meeting->failure.ok() && meeting->is_over()) {
    meeting_ = std::make_shared<Meeting>(meeting->ranks.size(), meeting->number + 1);
  }
  changed_.NotifyAll();
  lock.WaitFor(changed_, timeout, [&] { return meeting->is_over(); });
  if (!meeting->is_over()) meeting->failure = Missing(*meeting, timeout);
  changed_.NotifyAll();
  RETURN_IF_ERROR(meeting->failure);
  for (const auto& rank : meeting->ranks) *reply.add_ranks() = *rank;
  return absl::OkStatus();
}

bool Hall::IsRank(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>& stream,
                  v1::MeetRequest& request) {
  v1::MeetMessage message;
  if (!stream.Read(&message)) return false;
  {
    const core::MutexLock lock(mutex_);
    if (const auto stranger = strangers_.find(context); stranger != strangers_.end()) stranger->second.silent = false;
  }
  v1::MeetReply own;
  own.set_nonce(NewNonce());
  const std::string challenge = message.nonce() + own.nonce();
  own.set_proof(key_.Prove(kRank0Role, challenge));
  if (!stream.Write(own) || !stream.Read(&message)) return false;
  return key_.IsProven(kRankRole, challenge + message.request(), message.proof()) &&
         request.ParseFromString(message.request());
}

bool Hall::Arrive(grpc::ServerContext* context, const std::string& caller) {
  core::MutexLock lock(mutex_);
  if (strangers_.size() >= kStrangersPerRank * meeting_->ranks.size() && !MakeRoom()) return false;
  strangers_[context] = {.address = caller.substr(0, caller.rfind(':')),
                         .until = core::SystemClock().Now() + kLongestStranger};
  return true;
}

// Its call ends, and no longer counts.
bool Hall::MakeRoom() {
  std::map<std::string, int> of_address;
  for (const auto& [context, stranger] : strangers_) ++of_address[stranger.address];
  auto longest = strangers_.end();
  for (auto one = strangers_.begin(); one != strangers_.end(); ++one) {
    if (!one->second.silent) continue;
    const auto rank = [&](const Stranger& stranger) {
      return std::pair(-of_address[stranger.address], stranger.until);
    };
    if (longest == strangers_.end() || rank(one->second) < rank(longest->second)) longest = one;
  }
  if (longest == strangers_.end()) return false;
  longest->first->TryCancel();
  strangers_.erase(longest);
  return true;
}

void Hall::Leave(grpc::ServerContext* context) {
  core::MutexLock lock(mutex_);
  strangers_.erase(context);
}

void Hall::EndLateStrangers() {
  core::MutexLock lock(mutex_);
  while (!closes_) {
    lock.WaitFor(changed_, kLookAtStrangers, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closes_; });
    const core::Clock::TimePoint now = core::SystemClock().Now();
    for (const auto& [context, stranger] : strangers_) {
      if (stranger.until <= now) context->TryCancel();
    }
  }
}

absl::Status Hall::Enter(Meeting& meeting, const v1::MeetRequest& request) {
  const int world = static_cast<int>(meeting.ranks.size());
  if (request.world() != world || request.rank() < 0 || request.rank() >= world) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ranks of a world of ", world, ", as rank 0 is, got ", Name(request)));
  }
  if (request.meeting() != meeting.number) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(request), " has started anew while the others connect: expected all ranks to start together"));
  }
  std::optional<v1::MeetRequest>& place = meeting.ranks[request.rank()];
  if (place) {
    return absl::InvalidArgumentError(absl::StrCat("expected each rank once, got ", Name(*place), " and ",
                                                   Name(request), ": does another site meet at the same address?"));
  }
  for (const auto& other : meeting.ranks) {
    if (!other || other->identity() == request.identity()) continue;
    return absl::InvalidArgumentError(absl::StrCat("expected all ranks alike, got ", Name(*other), " with ",
                                                   core::InOneLine(other->identity()), " and ", Name(request), " with ",
                                                   core::InOneLine(request.identity())));
  }
  place = request;
  ++meeting.here;
  return absl::OkStatus();
}

absl::Status Hall::Missing(const Meeting& meeting, std::chrono::nanoseconds timeout) {
  std::string missing;
  for (size_t rank = 0; rank < meeting.ranks.size(); ++rank) {
    if (!meeting.ranks[rank]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("expected %d ranks within %.1f s, got %d: rank %s has not come", meeting.ranks.size(),
                      std::chrono::duration<double>(timeout).count(), meeting.here, missing));
}

}  // namespace causeway::worker
