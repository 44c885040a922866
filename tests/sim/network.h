// The network between simulated processes, at the level of gRPC's streams: the real reactors at both ends, and between
// them messages that are late, calls that break, and links that carry nothing, or carry it in one direction.
//
//   reactor ── gRPC's operations ──► End ── Segment: message, half-close, status, reset ──► link ──► End ──► reactor
//
// Messages of one call keep their order; calls do not. A link that is blocked delays what it carries until it is open
// again, as TCP does; each end breaks by itself once its keepalive has waited too long. A cut breaks the calls of a
// link at both ends at once. A connection may die without a word: nothing that its calls send arrives any more, those
// of later calls over it neither, until an end's keepalive gives it up or its owner makes a new one. Completions run on
// threads of the end's process, one for each completion.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/machine.h"
#include "transport/wire.h"

namespace causeway::sim {

using Node = std::string;

enum class Method { kControl, kUpload, kDownload, kFollow, kDescribe, kReplicate };
const char* NameOf(Method method);

// A thing that one end sends to the other.
struct Segment {
  enum class Kind { kMessage, kHalfClose, kStatus, kReset };
  Kind kind = Kind::kMessage;
  std::string message;
  grpc::Status status;  // the call's, from the server
};

class Call;
class Network;

// One end of a call: operations that its reactor started, and what has come for them.
class End : public std::enable_shared_from_this<End> {
 public:
  virtual ~End() = default;

  void Send(Segment segment, std::function<void(bool)> done);
  void Read(std::function<void(const std::string*)> done);  // nullptr: no more comes
  void Take(Segment segment);                               // has arrived
  void Break(const grpc::Status& status);                   // no more goes or comes, from here on
  // Runs a completion on a thread of the process. The call is not over before it has.
  void Complete(std::function<void()> completion);

  bool over() const { return over_; }
  const std::shared_ptr<Process>& process() const { return process_; }

 protected:
  End(std::shared_ptr<Process> process, bool is_client) : process_(std::move(process)), is_client_(is_client) {}

  virtual bool MayEnd() const = 0;  // the reactor has let go of it
  virtual void OnBroken() {}
  virtual void OnOver(const grpc::Status& status) = 0;
  void Progress();  // after anything has changed
  std::shared_ptr<Call> call() const { return call_.lock(); }

  bool broken_ = false;
  bool has_status_ = false;  // the client's: the call's; the server's: it has sent one
  grpc::Status status_;
  bool no_more_ = false;  // comes after what has arrived

 private:
  friend class Call;
  friend class Network;
  struct Sending {
    Segment segment;
    std::function<void(bool)> done;
  };

  const std::shared_ptr<Process> process_;
  const bool is_client_;
  std::weak_ptr<Call> call_;  // it holds the ends
  std::deque<std::string> arrived_;
  std::function<void(const std::string*)> reader_;
  std::deque<Sending> sending_;      // waits for the window
  int64_t unread_bytes_ = 0;         // of what this end has sent: on its way, or not read there
  Clock::TimePoint last_arrival_{};  // of what this end has sent
  int completions_ = 0;              // that are to run
  bool over_ = false;
  bool done_ = false;  // the reactor has heard that
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Network* network, int64_t number, Method method, Node client_node, Node server_node)
      : network(network),
        number(number),
        method(method),
        client_node(std::move(client_node)),
        server_node(std::move(server_node)) {}

  End& other(const End& end) const { return end.is_client_ ? *server : *client; }
  const Node& node(bool of_client) const { return of_client ? client_node : server_node; }

  Network* const network;
  const int64_t number;  // among the network's
  const Method method;
  const Node client_node;
  const Node server_node;
  int64_t connection = 0;  // that carries it
  std::shared_ptr<End> client, server;
  std::deque<Segment> unsent;  // of the client, until there is a connection
};

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Answers calls: makes a reactor for each of them, as gRPC's service does.
class Server {
 public:
  virtual ~Server() = default;
  virtual grpc::Status Describe(const v1::DescribeRequest& request, v1::RunDescription* description) = 0;
  virtual CallReactor* NewControl() = 0;
  virtual CallReactor* NewFollow() = 0;
  virtual CallReactor* NewUpload() = 0;
  virtual CallReactor* NewDownload() = 0;
  virtual CallReactor* NewReplicate() { return nullptr; }
};

struct Listener {
  std::shared_ptr<Process> process;  // whose threads the reactors run on
  std::shared_ptr<Server> server;
};

struct NetworkOptions {
  int64_t least_delay_us = 200;
  int64_t most_delay_us = 30'000;
};

class Network {
 public:
  Network(Machine* machine, NetworkOptions options) : machine_(*machine), options_(options) {}

  Machine& machine() { return machine_; }

  void Listen(const Node& node, Listener listener) { listeners_[node] = std::move(listener); }
  void Close(const Node& node) { listeners_.erase(node); }
  // Every call with an end in the process breaks at the other end.
  void Ended(const Process& process);
  void BreakAll(const Process& process);      // calls that the process serves, at its end
  bool Serves(const Process& process) const;  // a call that is not over

  // A connection that a process makes, for its calls to come; its number.
  int64_t Connect(const Node& from, const Node& to, Method first);
  bool IsClosed(int64_t connection) const { return connections_.at(connection).closed; }

  // Which messages of a dead connection are lost.
  enum class Deaf { kBoth, kClient, kServer };
  void Die(const Node& client, const Node& server, int64_t one_in, Deaf deaf, bool bulk_only);  // 1: all
  void Block(const Node& from, const Node& to, Clock::Duration time);  // nothing arrives in this direction
  void BreakSome(const Node& a, const Node& b, int64_t one_in);        // calls between them; 1: all
  void Heal();                                                         // everything, for good
  void set_most_delay_us(int64_t delay_us) { options_.most_delay_us = delay_us; }

  // A site's or a shard's calls to a coordinator: the one of these nodes that leads, as transport/wire.h finds it.
  std::unique_ptr<transport::Wire> MakeWire(const std::shared_ptr<Process>& process, const Node& from,
                                            const std::vector<Node>& to);

  // One coordinator's calls to another. Describe takes at most five seconds.
  grpc::Status Describe(const std::shared_ptr<Process>& process, const Node& from, const Node& to,
                        const v1::DescribeRequest& request, v1::RunDescription& description);
  using ReplicateCall = grpc::ClientReaderWriterInterface<v1::ReplicateMessage, v1::ReplicateReply>;
  std::unique_ptr<ReplicateCall> Replicate(const std::shared_ptr<Process>& process, const Node& from, const Node& to,
                                           std::function<void()>& cancel);

  // Called with each message that is handed to an end's reactor.
  using Observer = std::function<void(const Call& call, bool to_client, const std::string& message)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // ---- For the ends ----
  int64_t NextCall() { return ++num_calls_; }
  void Open(const std::shared_ptr<Call>& call, const std::shared_ptr<End>& client);
  void Transmit(End& from, Segment segment);
  void Observed(const End& end, const std::string& message);
  bool IsBlocked(const Node& from, const Node& to) const;
  void Forget(const std::shared_ptr<Call>& call);

 private:
  struct Connection {
    Node client_node, server_node;
    bool control = false;
    bool client_deaf = false, server_deaf = false;
    bool closed = false;  // its client knows that it is dead
  };
  struct Blocked {
    Clock::TimePoint until;
    std::vector<std::function<void()>> held;
  };
  using Direction = std::pair<Node, Node>;

  int64_t DelayUs() { return machine_.chance().Between(options_.least_delay_us, options_.most_delay_us); }
  void Open(Method method, const Node& from, const Node& to, const std::shared_ptr<End>& end);  // on a new connection
  void Carry(const Direction& direction, std::function<void()> arrival);
  bool IsLost(const Call& call, bool to_client) const;
  void WatchDead(int64_t connection);
  void BreakCalls(int64_t connection, bool of_client);
  void Release(const Direction& direction);
  void WatchKeepalive(const std::shared_ptr<Call>& call);
  void Accept(const std::shared_ptr<Call>& call);
  void Connected(Call& call);

  Machine& machine_;
  NetworkOptions options_;
  std::map<Node, Listener> listeners_;
  std::map<Direction, Blocked> blocked_;
  std::map<int64_t, Connection> connections_;
  std::vector<std::shared_ptr<Call>> calls_;
  int64_t num_calls_ = 0;
  Observer observer_;
};

}  // namespace causeway::sim
