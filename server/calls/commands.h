// The record of commands: who sent each, from where, the command, and its result. A record is an event of kind
// "command" in the journal, durable before the answer leaves; refused commands from a known name are recorded as well.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

struct CommandRecord {
  std::string name, role;  // empty: not identified
  std::string address;
  std::string command;    // its name in causewayctl
  std::string arguments;  // "site=a"; empty: none
  std::string result;     // "done", or the reason for failure

  std::string Text() const;       // a sentence for people
  std::string EventText() const;  // JSON, as stored in the journal
  static std::optional<CommandRecord> FromEventText(const std::string& text);
  v1::CommandRecord ToProto() const;
};

// A requested command.
struct AskedCommand {
  std::string call;  // its row in roles.h
  std::string arguments;
};

// Asks the gate, performs the command if it is allowed, records it, and answers.
absl::Status RunCommand(RunExchange* exchange, Gate* gate, const Peer& peer, const AskedCommand& asked,
                        const std::function<absl::Status()>& perform);

// `asked(request)` returns an AskedCommand, `perform(request, response)` a Status. The request has a context.
template <typename Request, typename Response, typename Asked, typename Perform>
void AddCommand(CallService& service, RunExchange* exchange, Gate* gate, const std::string& method, Asked asked,
                Perform perform) {
  service.Add<Request, Response>(method, [=](const Peer& peer, const Request& request, Response& response) {
    return RunCommand(exchange, gate, peer, asked(request), [&]() -> absl::Status {
      const absl::Status of_this_run = exchange->admission().CheckContext(request.context());
      return of_this_run.ok() ? perform(request, response) : of_this_run;
    });
  });
}

}  // namespace causeway::server
