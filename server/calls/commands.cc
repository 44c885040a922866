#include "server/calls/commands.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/text.h"

namespace causeway::server {
namespace {

constexpr size_t kMaxWordsBytes = 512;  // of arguments, and of a result

// The fields by their names in the journal and on the wire.
template <typename Record, typename Function>
void ForEachField(Record& record, Function function) {
  function("name", record.name);
  function("role", record.role);
  function("address", record.address);
  function("command", record.command);
  function("arguments", record.arguments);
  function("result", record.result);
}

}  // namespace

std::string CommandRecord::Text() const {
  const std::string who = name.empty() ? absl::StrCat("from ", address, ", not identified")
                                       : absl::StrCat(name, " (", role, ") from ", address);
  return absl::StrCat(who, ": ", command, arguments.empty() ? "" : " ", arguments, ": ", result);
}

std::string CommandRecord::EventText() const {
  nlohmann::ordered_json json;
  ForEachField(*this, [&](const char* key, const std::string& value) { json[key] = value; });
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<CommandRecord> CommandRecord::FromEventText(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  CommandRecord record;
  bool whole = true;
  ForEachField(record, [&](const char* key, std::string& value) {
    const auto found = json.find(key);
    whole = whole && found != json.end() && found->is_string();
    if (whole) value = found->get<std::string>();
  });
  return whole ? std::optional(std::move(record)) : std::nullopt;
}

v1::CommandRecord CommandRecord::ToProto() const {
  v1::CommandRecord message;
  message.set_name(name);
  message.set_role(role);
  message.set_address(address);
  message.set_command(command);
  message.set_arguments(arguments);
  message.set_result(result);
  return message;
}

absl::Status RunCommand(RunExchange* exchange, Gate* gate, const Peer& peer, const AskedCommand& asked,
                        const std::function<absl::Status()>& perform) {
  const std::optional<Identity> who = gate->Who(peer);
  const absl::Status allowed = gate->Command(peer, asked.call);
  const absl::Status done = allowed.ok() ? perform() : allowed;
  if (!allowed.ok() && !gate->TakeRecordOfRefusal()) return done;
  const CallRow* const row = RowOf(asked.call);
  const CommandRecord record{
      .name = who ? who->name : "",
      .role = who ? std::string(RoleName(who->role)) : "",
      .address = peer.Address(),
      .command = row == nullptr ? asked.call : std::string(row->command),
      .arguments = core::Clipped(asked.arguments, kMaxWordsBytes),
      .result = done.ok() ? "done" : core::Clipped(absl::StrCat("refused: ", done.message()), kMaxWordsBytes)};
  const absl::Status recorded = exchange->Ask(input::Command{record.EventText()}).status();
  return done.ok() ? recorded : done;
}

}  // namespace causeway::server
