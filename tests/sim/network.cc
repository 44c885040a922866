#include "tests/sim/network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::sim {
namespace {

constexpr int64_t kWindowBytes = 64 << 10;  // HTTP/2's first
constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr auto kControlKeepalive = std::chrono::seconds(8);
constexpr auto kBulkKeepalive = std::chrono::seconds(65);

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "the connection is lost");

}  // namespace

const char* NameOf(Method method) {
  constexpr const char* kNames[] = {"control", "upload", "download", "follow", "describe", "replicate"};
  return kNames[static_cast<int>(method)];
}

// ---- End ----

void End::Complete(std::function<void()> completion) {
  ++completions_;
  call()->network->machine().Spawn(process_, [self = shared_from_this(), completion = std::move(completion)] {
    completion();
    --self->completions_;
    self->Progress();
  });
}

void End::Send(Segment segment, std::function<void(bool)> done) {
  if (broken_ || (is_client_ && has_status_)) {
    if (segment.kind == Segment::Kind::kStatus) has_status_ = true;
    if (done) Complete([done] { done(false); });
    return Progress();
  }
  sending_.push_back({std::move(segment), std::move(done)});
  Progress();
}

void End::Read(std::function<void(const std::string*)> done) {
  CHECK(reader_ == nullptr);
  reader_ = std::move(done);
  Progress();
}

void End::Take(Segment segment) {
  if (broken_ || over_) return;
  switch (segment.kind) {
    case Segment::Kind::kMessage: arrived_.push_back(std::move(segment.message)); break;
    case Segment::Kind::kHalfClose: no_more_ = true; break;
    case Segment::Kind::kStatus:
      no_more_ = has_status_ = true;
      status_ = segment.status;
      break;
    case Segment::Kind::kReset: return Break(kUnavailable);
  }
  Progress();
}

void End::Break(const grpc::Status& status) {
  if (broken_ || over_) return;
  broken_ = no_more_ = true;
  if (is_client_ && !has_status_) {
    has_status_ = true;
    status_ = status;
  }
  arrived_.clear();
  OnBroken();
  Progress();
}

void End::Progress() {
  if (over_) return;
  const bool goes = !broken_ && !(is_client_ && has_status_);
  while (!sending_.empty() && (!goes || unread_bytes_ < kWindowBytes)) {
    Sending next = std::move(sending_.front());
    sending_.pop_front();
    if (next.segment.kind == Segment::Kind::kStatus) has_status_ = true;
    if (goes) {
      unread_bytes_ += static_cast<int64_t>(next.segment.message.size());
      call()->network->Transmit(*this, std::move(next.segment));
    }
    if (next.done) Complete([done = std::move(next.done), goes] { done(goes); });
  }
  if (reader_ != nullptr && (!arrived_.empty() || no_more_ || (!is_client_ && has_status_))) {
    auto reader = std::exchange(reader_, nullptr);
    if (arrived_.empty()) {
      Complete([reader] { reader(nullptr); });
    } else {
      auto message = std::make_shared<const std::string>(std::move(arrived_.front()));
      arrived_.pop_front();
      Complete([this, reader, message] {
        call()->network->Observed(*this, *message);
        reader(message.get());
      });
      if (call()->server != nullptr) {
        End& sender = call()->other(*this);
        sender.unread_bytes_ -= static_cast<int64_t>(message->size());
        if (!sender.over_) sender.Progress();
      }
    }
  }
  const bool ends = is_client_ ? has_status_ && arrived_.empty() && reader_ == nullptr && sending_.empty()
                               : has_status_ && sending_.empty();
  if (!ends || completions_ > 0 || !MayEnd()) return;
  over_ = true;
  call()->network->machine().Spawn(process_, [self = shared_from_this()] {
    self->OnOver(self->status_);
    self->done_ = true;
    self->call()->network->Forget(self->call());
  });
  if (is_client_ && broken_)
    call()->network->Transmit(*this, {.kind = Segment::Kind::kReset, .message = {}, .status = {}});
}

// ---- Network ----

bool Network::IsBlocked(const Node& from, const Node& to) const { return blocked_.contains({from, to}); }

void Network::Carry(const Direction& direction, std::function<void()> arrival) {
  const auto found = blocked_.find(direction);
  if (found != blocked_.end()) {
    found->second.held.push_back(std::move(arrival));
  } else {
    arrival();
  }
}

void Network::Open(const std::shared_ptr<Call>& call, const std::shared_ptr<End>& client) {
  call->client = client;
  client->call_ = call;
  calls_.push_back(call);
  machine_.After(microseconds(DelayUs()), [this, call] {
    if (IsLost(*call, /*to_client=*/false)) return;
    Carry({call->client_node, call->server_node}, [this, call] { Accept(call); });
  });
  machine_.After(kConnectTimeout, [this, call] {
    if (call->server == nullptr && !IsLost(*call, /*to_client=*/false)) call->client->Break(kUnavailable);
  });
}

void Network::Transmit(End& from, Segment segment) {
  const std::shared_ptr<Call> call = from.call();
  if (call->server == nullptr) {
    call->unsent.push_back(std::move(segment));
    return;
  }
  const bool to_client = !from.is_client_;
  from.last_arrival_ = std::max(from.last_arrival_ + microseconds(1), machine_.Now() + microseconds(DelayUs()));
  const Direction direction{call->node(from.is_client_), call->node(to_client)};
  machine_.At(from.last_arrival_, [this, call, to_client, direction, segment = std::move(segment)] {
    if (IsLost(*call, to_client)) return;
    Carry(direction, [call, to_client, segment] { (to_client ? call->client : call->server)->Take(segment); });
  });
}

void Network::Connected(Call& call) {
  for (Segment& segment : std::exchange(call.unsent, {})) Transmit(*call.client, std::move(segment));
}

void Network::Observed(const End& end, const std::string& message) {
  const Call& call = *end.call();
  machine_.Log(absl::StrCat(NameOf(call.method), " ", call.client_node, end.is_client_ ? " <- " : " -> ",
                            call.server_node, " ", message.size()));
  if (observer_) machine_.Alone([&] { observer_(call, end.is_client_, message); });
}

void Network::Forget(const std::shared_ptr<Call>& call) {
  const bool over = (call->client->done_ || !call->client->process_->alive()) &&
                    (call->server == nullptr || call->server->done_ || !call->server->process_->alive());
  if (over) std::erase(calls_, call);
}

void Network::Ended(const Process& process) {
  const std::vector<std::shared_ptr<Call>> calls = calls_;
  for (const auto& call : calls) {
    for (const bool client : {true, false}) {
      const std::shared_ptr<End>& end = client ? call->client : call->server;
      if (end == nullptr || end->process_.get() != &process) continue;
      const std::shared_ptr<End>& other = client ? call->server : call->client;
      if (other == nullptr) continue;
      machine_.After(microseconds(DelayUs()), [this, call, client, other] {
        if (IsLost(*call, /*to_client=*/!client)) return;
        Carry({call->node(client), call->node(!client)}, [call, other] { other->Break(kUnavailable); });
      });
    }
    Forget(call);
  }
}

void Network::BreakAll(const Process& process) {
  const std::vector<std::shared_ptr<Call>> calls = calls_;
  for (const auto& call : calls) {
    if (call->server == nullptr || call->server->process_.get() != &process) continue;
    call->server->Break(kUnavailable);
    machine_.After(microseconds(DelayUs()), [this, call] {
      if (!IsLost(*call, /*to_client=*/true)) call->client->Break(kUnavailable);
    });
  }
}

bool Network::Serves(const Process& process) const {
  return std::ranges::any_of(calls_, [&](const std::shared_ptr<Call>& call) {
    return call->server != nullptr && call->server->process_.get() == &process && !call->server->done_;
  });
}

void Network::BreakSome(const Node& a, const Node& b, int64_t one_in) {
  const std::vector<std::shared_ptr<Call>> calls = calls_;
  for (const auto& call : calls) {
    const bool between =
        (call->client_node == a && call->server_node == b) || (call->client_node == b && call->server_node == a);
    if (!between || !machine_.chance().OneIn(one_in)) continue;
    call->client->Break(kUnavailable);
    if (call->server != nullptr) call->server->Break(kUnavailable);
  }
}

// ---- Connections that die without a word ----

int64_t Network::Connect(const Node& from, const Node& to, Method first) {
  const auto number = static_cast<int64_t>(connections_.size()) + 1;
  const bool control = first != Method::kUpload && first != Method::kDownload;
  connections_[number] = {.client_node = from, .server_node = to, .control = control};
  return number;
}

bool Network::IsLost(const Call& call, bool to_client) const {
  const Connection& connection = connections_.at(call.connection);
  return to_client ? connection.client_deaf : connection.server_deaf;
}

void Network::Die(const Node& client, const Node& server, int64_t one_in, Deaf deaf, bool bulk_only) {
  for (auto& [number, connection] : connections_) {
    const bool meant = connection.client_node == client && connection.server_node == server && !connection.closed &&
                       !(bulk_only && connection.control);
    if (!meant || connection.client_deaf || connection.server_deaf || !machine_.chance().OneIn(one_in)) continue;
    connection.client_deaf = deaf != Deaf::kServer;
    connection.server_deaf = deaf != Deaf::kClient;
    WatchDead(number);
  }
}

// Each end's keepalive gives the connection up, whichever direction is lost: an answer to its pings is missing.
void Network::WatchDead(int64_t number) {
  machine_.After(connections_[number].control ? kControlKeepalive : kBulkKeepalive, [this, number] {
    connections_[number].closed = true;
    BreakCalls(number, /*of_client=*/true);
  });
  machine_.After(kBulkKeepalive, [this, number] { BreakCalls(number, /*of_client=*/false); });
}

void Network::BreakCalls(int64_t number, bool of_client) {
  const std::vector<std::shared_ptr<Call>> calls = calls_;
  for (const auto& call : calls) {
    const std::shared_ptr<End>& end = of_client ? call->client : call->server;
    if (call->connection == number && end != nullptr) end->Break(kUnavailable);
  }
}

void Network::Block(const Node& from, const Node& to, Clock::Duration time) {
  const Direction direction{from, to};
  blocked_[direction].until = std::max(blocked_[direction].until, machine_.Now() + time);
  machine_.At(blocked_[direction].until, [this, direction] {
    const auto found = blocked_.find(direction);
    if (found != blocked_.end() && found->second.until <= machine_.Now()) Release(direction);
  });
  for (const auto& call : calls_) {
    if ((call->client_node == from && call->server_node == to) ||
        (call->client_node == to && call->server_node == from)) {
      WatchKeepalive(call);
    }
  }
}

void Network::WatchKeepalive(const std::shared_ptr<Call>& call) {
  const auto watch = [&](Clock::Duration time, const std::shared_ptr<End>& end) {
    if (end == nullptr) return;
    machine_.After(time + milliseconds(machine_.chance().Below(5000)), [this, call, end, begun = machine_.Now()] {
      if (end->over_ ||
          (!IsBlocked(call->client_node, call->server_node) && !IsBlocked(call->server_node, call->client_node)))
        return;
      end->Break(kUnavailable);
      const std::shared_ptr<End>& other = end->is_client_ ? call->server : call->client;
      if (other == nullptr) return;
      Carry({call->node(end->is_client_), call->node(!end->is_client_)}, [call, other] { other->Break(kUnavailable); });
    });
  };
  const bool control =
      call->method == Method::kControl || call->method == Method::kFollow || call->method == Method::kReplicate;
  watch(control ? kControlKeepalive : kBulkKeepalive, call->client);
  watch(kBulkKeepalive, call->server);
}

void Network::Release(const Direction& direction) {
  const auto found = blocked_.find(direction);
  std::vector<std::function<void()>> held = std::move(found->second.held);
  blocked_.erase(found);
  for (const auto& arrival : held) arrival();
}

void Network::Heal() {
  while (!blocked_.empty()) Release(blocked_.begin()->first);
}

}  // namespace causeway::sim
