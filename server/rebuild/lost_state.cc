#include "server/rebuild/lost_state.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "core/check.h"
#include "formats/settings.h"
#include "server/rebuild/rebuild_service.h"
#include "server/run/run_parts.h"

namespace causeway::server {
namespace {

constexpr int64_t kRebuildTickMs = 100;

// As a rebuild takes them: what `set` would refuse is not the run's.
auto SettingsOfSites(const core::RunConfig& config) {
  return [config](const core::RunConfig* before, const std::string& run_config) -> absl::StatusOr<core::RunConfig> {
    ASSIGN_OR_RETURN(core::RunConfig settings, ReadSettings(config, run_config));
    if (before == nullptr) return settings;
    ASSIGN_OR_RETURN(const core::RunConfig changed,
                     formats::ChangedConfig(*before, formats::ChangesBetween(*before, settings)));
    if (changed == settings) return settings;
    return absl::InvalidArgumentError("the settings differ in a key that no change of settings can have");
  };
}

// Completes or rebuilds the state; returns what was done. CANCELLED: a stop was requested; ABORTED: no two agree.
absl::StatusOr<std::string> TakeFromSites(LostState& lost, Journal& journal, std::optional<OwnState> own,
                                          const std::optional<v1::RunDescription>& leads) {
  const std::string does = own ? "completes its state from the sites'" : "rebuilds its state from the sites'";
  Rebuild rebuild({.config = lost.config,
                   .settings = SettingsOfSites(lost.config),
                   .shard = lost.addresses.shard,
                   .accept = lost.accept,
                   .own = std::move(own)});
  const auto service = NewRebuildService(&rebuild, &lost.gate, leads);
  ASSIGN_OR_RETURN(const auto server, ListeningServer::Start(*service, lost.config.sync.map_fragments(),
                                                             lost.addresses.grpc, lost.addresses.tls));
  spdlog::info("run {}: {} {}; they reach it at {}", lost.config.run_id, lost.addresses.shard.Text(), does,
               lost.addresses.grpc.Text());
  while (!rebuild.complete()) {
    if (lost.wait_for_stop(kRebuildTickMs)) return absl::CancelledError("stops before it has all that the sites hold");
    rebuild.Tick();
    lost.gate.Tick();
    if (rebuild.undecided()) return absl::AbortedError(rebuild.Progress());
    lost.board.SetNotReady(does + ": " + rebuild.Progress());
  }
  RETURN_IF_ERROR(rebuild.Save(journal));
  return rebuild.Progress();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenOrRebuild(LostState& lost) {
  ASSIGN_OR_RETURN(auto journal, lost.open());
  ASSIGN_OR_RETURN(const StoredRun stored, journal->Load());
  if (!stored.run.manifest.empty()) {
    spdlog::warn("--rebuild_from_sites: {} has a state, and the run goes on with it; to rebuild it, move it away",
                 lost.directory);
    return journal;
  }
  RETURN_IF_ERROR(TakeFromSites(lost, *journal, std::nullopt, std::nullopt).status());
  journal.reset();
  return lost.open();
}

absl::StatusOr<std::string> CompleteFromSites(LostState& lost) {
  ASSIGN_OR_RETURN(const auto journal, lost.open());
  journal->EndsInDoubt();
  std::optional<OwnState> own;
  ASSIGN_OR_RETURN(own, ReadOwnState(*journal, lost.addresses.shard));
  if (own->fragments.empty()) own.reset();  // the disk has lost the model, too: all of it is the sites'
  v1::RunDescription leads;
  leads.set_run_id(lost.config.run_id);
  leads.set_epoch(journal->identity().epoch);
  leads.set_lineage(journal->identity().lineage);
  const absl::StatusOr<std::string> done = TakeFromSites(lost, *journal, std::move(own), leads);
  if (absl::IsAborted(done.status())) {
    spdlog::warn("the state is not completed from the sites': {}", std::string(done.status().message()));
    return "";
  }
  if (done.ok()) journal->EndsInDoubt(false);
  return done;
}

}  // namespace causeway::server
