// The record of commands: who asked, from where, what, and what became of it. A record is an event of kind "command" in
// the journal, durable before the answer leaves; refused commands of a name that is known are recorded as well.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "server/service/call_service.h"
#include "server/service/coordinator.h"
#include "server/service/gate.h"

namespace causeway::server {

struct CommandRecord {
  std::string name, role;  // empty: nothing says who it was
  std::string address;
  std::string command;    // as of causewayctl
  std::string arguments;  // "site=a"; empty: none
  std::string result;     // "done", or why not

  std::string Text() const;       // a sentence for people
  std::string EventText() const;  // JSON, as it lies in the journal
  static std::optional<CommandRecord> FromEventText(const std::string& text);
  v1::CommandRecord ToProto() const;
};

// A command as it was asked for.
struct AskedCommand {
  std::string call;  // its row in roles.h
  std::string arguments;
};

// Asks the gate, does it if it may, records it, and answers.
absl::Status RunCommand(Coordinator* coordinator, Gate* gate, const Peer& peer, const AskedCommand& asked,
                        const std::function<absl::Status()>& perform);

// `asked(request)` is an AskedCommand, `perform(request, response)` a Status. The request has a context.
template <typename Request, typename Response, typename Asked, typename Perform>
void AddCommand(CallService& service, Coordinator* coordinator, Gate* gate, const std::string& method, Asked asked,
                Perform perform) {
  service.Add<Request, Response>(method, [=](const Peer& peer, const Request& request, Response& response) {
    return RunCommand(coordinator, gate, peer, asked(request), [&]() -> absl::Status {
      const absl::Status of_this_run = coordinator->CheckContext(request.context());
      return of_this_run.ok() ? perform(request, response) : of_this_run;
    });
  });
}

}  // namespace causeway::server
