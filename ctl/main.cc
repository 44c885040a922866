// causewayctl: inspects and controls a run.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/ids.h"
#include "core/text.h"
#include "ctl/client.h"
#include "ctl/client_flags.h"
#include "ctl/command_help.h"
#include "ctl/history_command.h"
#include "ctl/init_command.h"
#include "ctl/partition_command.h"
#include "ctl/pipeline_command.h"
#include "ctl/program.h"
#include "ctl/report_command.h"
#include "ctl/round_command.h"
#include "ctl/settings_command.h"
#include "ctl/standard_streams.h"
#include "ctl/status_command.h"
#include "ctl/what_if_command.h"
#include "formats/model_export.h"
#include "formats/posix_file.h"
#include "formats/presets.h"
#include "formats/run_advice.h"
#include "formats/run_yaml.h"
#include "transport/first_address.h"
#include "transport/messages.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7077",
          "HOST:PORT of the coordinator, with a standby A|B; export, report: of all shards, A,B,…");
ABSL_FLAG(bool, json, false,
          "status: the JSON of GET /status; config-check: the full config; plan, plan pipeline, plan partition, plan "
          "what-if: JSON, of tables a line for "
          "each row; history: a line of JSON for each event");
ABSL_FLAG(std::string, out, "", "export, init: directory to write; report, plan pipeline: file");
ABSL_FLAG(std::string, assets, "",
          "export: a Hugging Face folder of the same model, whose tokenizer and generation_config.json are copied");
ABSL_FLAG(std::string, dtype, "float32", "export: float32, or bfloat16, rounded to nearest, ties to even");
ABSL_FLAG(bool, overwrite, false, "export: also a model in --out that no export of this run has written");
ABSL_FLAG(
    std::string, hook, "",
    "export: command for /bin/sh once the model is written, such as rclone copy $CAUSEWAY_EXPORT_DIR s3:models/x");
ABSL_FLAG(std::string, site, "", "drain, release, history: the site's name");
ABSL_FLAG(int64_t, to, -1, "rollback: a version of which all fragments have a snapshot");
ABSL_FLAG(std::string, at, "", "promote: HOST:PORT of the standby that is to lead");
ABSL_FLAG(std::string, forget, "", "standby: HOST:PORT of one that does not come back: no start asks it any more");
ABSL_FLAG(bool, leader_is_stopped, false, "promote: the leader's process has ended, and nothing starts it again");
ABSL_FLAG(bool, all, false, "release: all sites that are in quarantine");
ABSL_FLAG(bool, yes, false,
          "stop, rollback: does it without the run's name; set: a learning rate more than ten times as large is meant");
ABSL_FLAG(bool, markdown, false, "settings: as docs/reference.md");

namespace causeway::ctl {
namespace {

// The descriptions of the shards, in the order of the list: each fragment is at its owner.
absl::StatusOr<std::vector<v1::RunDescription>> DescribeShards(std::vector<Client>& clients) {
  std::vector<v1::RunDescription> descriptions;
  for (Client& client : clients) {
    ASSIGN_OR_RETURN(v1::RunDescription one, client.Describe());
    const core::Shard expected{static_cast<int>(descriptions.size()), static_cast<int>(clients.size())};
    if (const core::Shard there{one.shard(), std::max(1, one.num_shards())}; there != expected) {
      return absl::InvalidArgumentError(absl::StrCat("--coordinator: expected ", expected.Text(), ", got ",
                                                     there.Text(), ": it names all shards of the run, in their order"));
    }
    descriptions.push_back(std::move(one));
  }
  return descriptions;
}

// Says which fragments no round has changed yet.
void PrintUntrained(const core::FragmentMap& map, const std::vector<core::Version>& versions) {
  for (const core::Fragment& fragment : map.fragments()) {
    if (versions[fragment.id] > 0) continue;
    const core::TensorSpec& first = map.manifest()[fragment.tensors.front().tensor];
    std::fprintf(stderr,
                 "note: fragment %d (%s and others, %zu tensors) is in no round yet: its values are the initial ones\n",
                 static_cast<int>(fragment.id), first.name.c_str(), fragment.tensors.size());
  }
}

// Its output is this command's.
absl::Status RunExportHook(const std::string& hook, const std::string& folder) {
  if (hook.empty()) return absl::OkStatus();
  const std::string quoted = absl::StrReplaceAll(folder, {{"'", "'\\''"}});
  const int ended = std::system(absl::StrCat("export CAUSEWAY_EXPORT_DIR='", quoted, "'\n", hook).c_str());
  if (ended == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("--hook ended ",
                                          WIFEXITED(ended) ? absl::StrCat("with ", WEXITSTATUS(ended)) : "by a signal",
                                          "; the model is in ", folder));
}

absl::Status Export(std::vector<Client>& clients) {
  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return absl::InvalidArgumentError("export: expected --out=DIR");
  ASSIGN_OR_RETURN(const std::vector<v1::RunDescription> shards, DescribeShards(clients));
  if (std::ranges::any_of(shards, [](const auto& shard) { return shard.versions().empty(); })) {
    return absl::FailedPreconditionError("the run has no parameters yet: its first site supplies them");
  }
  const v1::RunDescription& description = shards.front();
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunConfig(description.run_config()));
  ASSIGN_OR_RETURN(const core::FragmentMap map, transport::FromProto(description.manifest(), description.fragments()));
  std::map<std::string, std::string> files;
  for (const v1::ModelFile& file : description.files()) {
    ASSIGN_OR_RETURN(files[file.name()], clients.front().DownloadFile(file));
  }
  ASSIGN_OR_RETURN(const formats::ExportForm form,
                   formats::MakeExportForm(config, absl::GetFlag(FLAGS_dtype), absl::GetFlag(FLAGS_assets), files));
  if (absl::Status folder = formats::MakeWritableFolder(out); !folder.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", folder.message()));
  }
  absl::Status replaces = formats::CheckReplacesNothingElse(out, form);
  if (std::error_code error; std::filesystem::equivalent(out, config.llama.init_from, error)) {
    replaces = absl::FailedPreconditionError(
        absl::StrCat("expected another folder than the run's model.init_from, got ", out));
  }
  if (!replaces.ok() && !absl::GetFlag(FLAGS_overwrite)) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", replaces.message(), "; --overwrite replaces it"));
  }
  std::vector<Client::Anchor> anchors;
  std::vector<std::span<const float>> values;
  std::vector<core::Version> versions;
  for (const core::Fragment& fragment : map.fragments()) {
    const size_t owner = fragment.id % clients.size();
    ASSIGN_OR_RETURN(Client::Anchor anchor,
                     clients[owner].DownloadAnchor(fragment, shards[owner].versions(fragment.id)));
    anchors.push_back(std::move(anchor));
  }
  for (const Client::Anchor& anchor : anchors) {
    values.push_back(anchor.values);
    versions.push_back(anchor.version);
  }
  if (absl::Status status = formats::WriteExport(out, form, map, values, versions); !status.ok()) {
    return absl::InternalError(status.message());  // a disk that is full, say: not a coordinator that is not there
  }
  PrintUntrained(map, versions);
  if (const auto frozen = std::ranges::count_if(map.manifest(), &core::TensorSpec::frozen);
      frozen > 0 && !form.is_adapter()) {
    std::fprintf(stderr, "note: %td frozen tensors are not in it: the run has never had their values\n", frozen);
  }
  if (!form.note.empty()) std::fprintf(stderr, "note: %s\n", form.note.c_str());
  std::printf("%s\n", out.c_str());
  std::fflush(stdout);
  return RunExportHook(absl::GetFlag(FLAGS_hook), out);
}

absl::StatusOr<std::vector<Client>> MakeClients() {
  std::vector<Client> clients;
  for (const absl::string_view text : absl::StrSplit(absl::GetFlag(FLAGS_coordinator), ',')) {
    ASSIGN_OR_RETURN(const std::vector<transport::Address> addresses,
                     transport::ParseAddresses("--coordinator", std::string(text)));
    ASSIGN_OR_RETURN(const transport::ChannelOptions options, ReadChannelOptions(addresses.front()));
    const bool several = addresses.size() > 1;
    const auto leader = several ? transport::FindLeader(addresses, options, /*run=*/"").leader : std::nullopt;
    clients.emplace_back(leader.value_or(addresses.front()), options);
  }
  return clients;
}

// The model that the first site has brought.
absl::StatusOr<core::Manifest> ExternalModel(const core::RunId& run_id) {
  ASSIGN_OR_RETURN(std::vector<Client> clients, MakeClients());
  ASSIGN_OR_RETURN(const v1::RunDescription description, clients.front().Describe());
  if (description.run_id() != run_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: --coordinator: expected run ", run_id, ", got ", description.run_id()));
  }
  if (!description.has_manifest()) {
    return absl::FailedPreconditionError(absl::StrCat("plan: the sites bring the model of run ", run_id,
                                                      ", and none has joined yet: try again when one has"));
  }
  return transport::FromProto(description.manifest());
}

absl::Status Drain(Client& client) {
  const std::string site = absl::GetFlag(FLAGS_site);
  if (site.empty()) return absl::InvalidArgumentError("drain: expected --site=NAME");
  return client.Drain(site);
}

absl::Status Release(Client& client) {
  const std::string site = absl::GetFlag(FLAGS_site);
  if (site.empty() != absl::GetFlag(FLAGS_all)) {
    return absl::InvalidArgumentError("release: expected --site=NAME, or --all");
  }
  return client.Release(site);
}

// The run's name, once the person has confirmed that it is meant.
absl::StatusOr<std::string> ConfirmedRun(Client& client, const std::vector<std::string>& arguments,
                                         const std::string& consequence) {
  ASSIGN_OR_RETURN(const v1::RunDescription description, client.Describe());
  const bool has_person = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
  RETURN_IF_ERROR(Confirm({.command = arguments[0],
                           .consequence = consequence,
                           .run = core::InOneLine(description.run_id()),
                           .given = arguments.size() > 1 ? arguments[1] : "",
                           .yes = absl::GetFlag(FLAGS_yes)},
                          has_person ? &std::cin : nullptr));
  return description.run_id();
}

absl::Status StopRun(Client& client, const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const std::string run, ConfirmedRun(client, arguments, "ends the run for all its sites"));
  RETURN_IF_ERROR(client.ChangeRun(v1::ChangeRunRequest::STOP));
  std::printf(
      "run %s ends: its sites finish what is in flight and leave. Their workers end with 0, and no manager starts them "
      "again; causewayctl resume lets sites join again, once someone has started them\n",
      core::InOneLine(run).c_str());
  return absl::OkStatus();
}

absl::Status RollBack(Client& client, const std::vector<std::string>& arguments) {
  const int64_t version = absl::GetFlag(FLAGS_to);
  if (version < 0) return absl::InvalidArgumentError("rollback: expected --to=VERSION");
  RETURN_IF_ERROR(
      ConfirmedRun(client, arguments,
                   absl::StrCat("takes all sites back to version ", version, ", without what came after it"))
          .status());
  ASSIGN_OR_RETURN(const std::vector<core::Version> versions, client.RollBack(version));
  std::printf("rolled back to version %lld; the fragments' versions are now %s\n", static_cast<long long>(version),
              absl::StrJoin(versions, ", ").c_str());
  return absl::OkStatus();
}

absl::Status Promote() {
  if (absl::GetFlag(FLAGS_at).empty())
    return absl::InvalidArgumentError("promote: expected --at=HOST:PORT, the standby");
  ASSIGN_OR_RETURN(const transport::Address address, core::ParseAddress("--at", absl::GetFlag(FLAGS_at)));
  ASSIGN_OR_RETURN(const transport::ChannelOptions options, ReadChannelOptions(address));
  ASSIGN_OR_RETURN(const std::string said, Client(address, options).Promote(absl::GetFlag(FLAGS_leader_is_stopped)));
  std::printf("%s\n", said.c_str());
  return absl::OkStatus();
}

absl::Status ForgetStandby(Client& client) {
  const std::string address = absl::GetFlag(FLAGS_forget);
  if (address.empty()) return absl::InvalidArgumentError("standby: expected --forget=HOST:PORT");
  return client.ForgetStandby(address);
}

absl::Status AskRun(std::vector<Client>& clients, const std::vector<std::string>& arguments) {
  const std::string& command = arguments[0];
  Client& client = clients.front();
  if (command == "status") return RunStatusCommand(client, absl::GetFlag(FLAGS_json));
  if (command == "export") return Export(clients);
  if (command == "report") {
    if (clients.size() > 1) RETURN_IF_ERROR(DescribeShards(clients).status());
    return RunReportCommand(clients, absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_coordinator));
  }
  if (command == "history") return RunHistoryCommand(client, absl::GetFlag(FLAGS_site), absl::GetFlag(FLAGS_json));
  if (command == "set") return RunSetCommand(client, arguments);
  if (command == "drain") return Drain(client);
  if (command == "pause") return client.ChangeRun(v1::ChangeRunRequest::PAUSE);
  if (command == "resume") return client.ChangeRun(v1::ChangeRunRequest::RESUME);
  if (command == "stop") return StopRun(client, arguments);
  if (command == "release") return Release(client);
  if (command == "rollback") return RollBack(client, arguments);
  if (command == "standby") return ForgetStandby(client);
  return absl::InternalError(absl::StrCat("no such command: ", command));
}

absl::Status CheckConfig(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) return absl::InvalidArgumentError("config-check: expected one FILE");
  ASSIGN_OR_RETURN(const std::string text, formats::ReadRunYamlText(arguments[1]));
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunYaml(text, arguments[1]));
  if (absl::GetFlag(FLAGS_json)) std::printf("%s\n", formats::RunConfigJson(config).c_str());
  if (const std::string note = formats::PresetNote(text); !note.empty())
    std::fprintf(stderr, "note: %s\n", note.c_str());
  for (const std::string& advice : formats::RunAdvice(config)) std::fprintf(stderr, "note: %s\n", advice.c_str());
  std::fprintf(stderr, "fine: %s\n", formats::RunSummary(config).c_str());
  return absl::OkStatus();
}

absl::Status RunCommand(const std::vector<std::string>& arguments) {
  const std::string& command = arguments[0];
  if (command == "help") {
    const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
    std::printf("%s", (words.empty() ? CommandList() : CommandHelp(words)).c_str());
    return absl::OkStatus();
  }
  if (command == "version" && arguments.size() == 1) {
    PrintVersion();
    return absl::OkStatus();
  }
  const std::set<std::string> commands = CommandNames();
  if (!commands.contains(command)) return absl::InvalidArgumentError(UnknownCommand(command));
  RETURN_IF_ERROR(CheckFlags(command, GivenFlags(), commands));
  if (command == "config-check") return CheckConfig(arguments);
  if (command == "plan" && arguments.size() == 2 && arguments[1] == "pipeline") {
    return RunPipelineCommand(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_out));
  }
  if (command == "plan" && arguments.size() == 2 && arguments[1] == "partition") {
    return RunPartitionCommand(absl::GetFlag(FLAGS_json));
  }
  if (command == "plan" && arguments.size() == 2 && arguments[1] == "what-if") {
    return RunWhatIfCommand(absl::GetFlag(FLAGS_json));
  }
  const bool plans_round = command == "plan" && arguments.size() == 2 && arguments[1] == "round";
  const bool names_run = (command == "stop" || command == "rollback") && arguments.size() == 2;
  if (arguments.size() > 1 && !plans_round && !names_run && command != "set")
    return absl::InvalidArgumentError("unexpected argument " + core::Quoted(arguments[1]));
  if (command == "settings") {
    PrintSettings(absl::GetFlag(FLAGS_markdown));
    return absl::OkStatus();
  }
  if (command == "init") return RunInitCommand(absl::GetFlag(FLAGS_out));
  if (command == "plan") return RunRoundCommand(absl::GetFlag(FLAGS_json), ExternalModel);
  if (command == "promote") return Promote();
  ASSIGN_OR_RETURN(std::vector<Client> clients, MakeClients());
  const absl::Status done = AskRun(clients, arguments);
  if (const std::vector<std::string>& lacking = clients.front().not_copied_to(); done.ok() && !lacking.empty()) {
    std::fprintf(stderr,
                 "note: done, and not copied yet to the standby at %s: if it leads soon, it may not know of this\n",
                 absl::StrJoin(lacking, ", ").c_str());
  }
  return done;
}

ExitCode CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kDone;
    case absl::StatusCode::kInvalidArgument: return kBadInput;
    case absl::StatusCode::kFailedPrecondition: return kRefused;
    case absl::StatusCode::kPermissionDenied:  // a file's, too
    case absl::StatusCode::kUnauthenticated: return status.GetPayload(kSaidByCoordinator) ? kRefused : kFailed;
    case absl::StatusCode::kUnavailable: return kUnreachable;
    default: return kFailed;
  }
}

}  // namespace
}  // namespace causeway::ctl

int main(int argc, char** argv) {
  using namespace causeway::ctl;
  PrepareStandardStreams();
  const std::vector<std::string> arguments =
      StartProgram(argc, argv, FullUsage(), {.alone = {"check"}, .help = [](const std::vector<std::string>& words) {
                                               return words.empty() ? CommandList() : CommandHelp(words);
                                             }});
  if (arguments.empty()) {
    std::printf("%s", CommandList().c_str());
    return EndOutput(kBadInput);
  }
  if (WatchesStatus() || FollowsHistory()) CatchStopSignals();  // everything else ends at once
  if (ChecksStatus() && arguments == std::vector<std::string>{"status"}) {
    absl::StatusOr<std::vector<Client>> clients = MakeClients();
    return EndOutput(clients.ok() ? CheckStatus(clients->front()) : Fail(kUnreachable, clients.status()));
  }
  const absl::Status status = RunCommand(arguments);
  return EndOutput(status.ok() ? kDone : Fail(CodeOf(status), status));
}
