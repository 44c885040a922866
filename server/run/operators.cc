#include "server/run/operators.h"

#include <spdlog/spdlog.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "server/run/run_exchange.h"

namespace causeway::server {
namespace {

using Change = v1::ChangeRunRequest;

void SendDrain(const core::SiteId& site, RunParts& run) { run.members.Send(site, DrainMessage(), run.ready); }

absl::StatusOr<RunEvent> EventOf(Change::Change change) {
  switch (change) {
    case Change::PAUSE: return PauseRun{};
    case Change::RESUME: return ResumeRun{};
    case Change::STOP: return StopRun{};
    default: return absl::InvalidArgumentError(absl::StrCat("expected pause, resume or stop, got ", change));
  }
}

}  // namespace

v1::CoordinatorMessage DrainMessage() {
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason("an operator asked for it");
  return message;
}

absl::Status Operators::CheckLeads(const std::string& what) const {
  if (options_.shard.leads()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": this is ", options_.shard.Text(), "; ask shard 0, at ", options_.lead));
}

absl::Status Operators::Drain(const core::SiteId& site) {
  RETURN_IF_ERROR(CheckLeads("drain"));
  return run_.Ask([&](RunParts& run, Actions&) -> absl::Status {
    RETURN_IF_ERROR(run.rules.Handle(DrainSite{site, "asked to leave"}, options_.clock->NowMs()).status);
    run.ready.state_changed = true;
    run.ready.Note("drain", site, -1, "asked to leave");
    SendDrain(site, run);
    return absl::OkStatus();
  });
}

absl::Status Operators::ChangeRun(Change::Change change) {
  return run_.Ask([&](RunParts& run, Actions&) -> absl::Status {
    const std::string name = absl::AsciiStrToLower(Change::Change_Name(change));
    if (change != Change::RESUME || !run.rules.doubted()) {  // a doubt is each shard's own
      RETURN_IF_ERROR(CheckLeads(name));
    }
    ASSIGN_OR_RETURN(const RunEvent event, EventOf(change));
    RETURN_IF_ERROR(run.rules.Handle(event, options_.clock->NowMs()).status);
    run.ready.state_changed = true;
    run.ready.Note(name, "by an operator");
    for (const auto& [site, record] : run.rules.state().sites) {
      if (record.state == core::SiteState::kDraining) SendDrain(site, run);
    }
    return absl::OkStatus();
  });
}

absl::Status Operators::Release(const core::SiteId& site) {
  RETURN_IF_ERROR(CheckLeads("release"));
  return run_.Ask([&](RunParts& run, Actions& actions) -> absl::Status {
    Outcome outcome = run.rules.Handle(ReleaseSite{site}, options_.clock->NowMs());
    RETURN_IF_ERROR(outcome.status);
    actions = std::move(outcome.actions);
    run.ready.state_changed = true;
    for (const auto& [name, record] : run.rules.state().sites) {
      if (!site.empty() && name != site) continue;
      if (Member* const member = run.members.Find(name)) member->norm = {};
    }
    run.ready.Note("release", site, -1, "by an operator: it starts from the anchor");
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<core::Version>> Operators::RollBack(core::Version version) {
  if (!options_.shard.alone()) {
    return absl::FailedPreconditionError(
        "a run of several shards cannot be rolled back while it runs; restore a backup of all their state directories");
  }
  ASSIGN_OR_RETURN(const int num_fragments, run_.With([](Run& run) -> absl::StatusOr<int> {
    if (!run.model.fact().stays()) return absl::FailedPreconditionError("the run has no parameters yet");
    return run.model.fact().map().num_fragments();
  }));
  RETURN_IF_ERROR(journal_.Keep(version, num_fragments));
  std::vector<int64_t> run_tokens;
  for (core::FragmentId p = 0; p < num_fragments; ++p) {  // a damaged one is found before anything is decided
    ASSIGN_OR_RETURN(const core::FragmentState state, journal_.LoadSnapshot(p, version));
    run_tokens.push_back(state.run_tokens);
  }
  std::vector<core::Version> versions;
  RETURN_IF_ERROR(run_.Ask([&](RunParts& run, Actions& actions) -> absl::Status {
    Outcome outcome = run.rules.Handle(RollBackRun{version, run_tokens}, options_.clock->NowMs());
    RETURN_IF_ERROR(outcome.status);
    actions = std::move(outcome.actions);
    run.ready.state_changed = true;
    run.ready.Note("rollback", absl::StrCat("to version ", version, ", by an operator"));
    spdlog::warn("the run is rolled back to version {}", version);
    versions = run.rules.state().versions;
    return absl::OkStatus();
  }));
  return versions;
}

absl::StatusOr<std::vector<core::SettingsRevision>> Operators::ChangeSettings(
    const v1::ChangeSettingsRequest& request) {
  RETURN_IF_ERROR(CheckLeads("set"));
  if (request.changes().empty() != request.cancel()) {
    return absl::InvalidArgumentError("set: expected KEY=VALUE at least once, or --cancel alone");
  }
  ASSIGN_OR_RETURN(std::vector<core::SettingsRevision> revisions, run_.With([&](Run& run) {
    auto changed = run.ChangeSettings(request);
    run.Publish();
    return changed;
  }));
  if (request.dry_run()) return revisions;
  journal_.Flush();
  RETURN_IF_ERROR(run_.status());
  for (const core::SettingsRevision& one : revisions) {
    spdlog::info("settings, revision {}, from step {}: {}", one.number, one.step, absl::StrJoin(one.changes, ", "));
  }
  return revisions;
}

absl::Status Operators::RecordCommand(const std::string& text) {
  return run_.Ask([&](RunParts& run, Actions&) -> absl::Status {
    run.ready.Note("command", text);
    return absl::OkStatus();
  });
}

}  // namespace causeway::server
