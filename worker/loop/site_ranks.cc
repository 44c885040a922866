#include "worker/loop/site_ranks.h"

#include <spdlog/spdlog.h>

#include <set>
#include <utility>

#include "core/check.h"
#include "worker/ranks/gloo_wire.h"
#include "worker/ranks/host_address.h"
#include "worker/ranks/ordered_collectives.h"
#include "worker/ranks/rendezvous.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<SiteRanks>> SiteRanks::Open(const SiteRanksOptions& options) {
  std::unique_ptr<SiteRanks> ranks(new SiteRanks(options));
  const RankPlace& place = options.place;
  std::shared_ptr<Wire> wire;
  if (!place.note.empty()) spdlog::warn("{}", place.note);
  if (place.world > 1) {
    spdlog::info("rank {} of {} ({}) meets the others at {}", place.rank, place.world, place.source, place.rendezvous);
    ASSIGN_OR_RETURN(const std::string address, OwnAddress(place.rendezvous));
    ASSIGN_OR_RETURN(const auto rendezvous,
                     Rendezvous::Open({place, options.identity, options.key, options.timeout_s}));
    ASSIGN_OR_RETURN(
        wire,
        ConnectByGloo(
            {.rank = place.rank, .world = place.world, .host = HostName(), .address = address, .key = options.key},
            [&](const RankContact& mine) { return rendezvous->Meet(mine); }));
    std::set<std::string> hosts;
    for (int rank = 0; rank < place.world; ++rank) hosts.insert(wire->host(rank));
    ranks->hosts_ = std::ssize(hosts);
    spdlog::info("{} ranks on {} hosts, by Gloo from {}", place.world, hosts.size(), address);
  }
  ranks->values_ = std::make_unique<OrderedCollectives>(wire);
  ASSIGN_OR_RETURN(std::unique_ptr<Collectives> control,
                   ranks->values_->Split(/*color=*/0, TimeoutOf(options.timeout_s)));
  ranks->control_ = std::make_unique<RankControl>(std::move(control), options.timeout_s);
  return ranks;
}

TrainerRanks SiteRanks::ForTrainer(std::function<bool()> stop_requested) {
  return {.values = values_.get(),
          .hosts = hosts_,
          .timeout_s = options_.timeout_s,
          .stop_requested = std::move(stop_requested)};
}

void SiteRanks::StayAlive(std::function<void()> stop) {
  control_->StayAlive([this, stop = std::move(stop)](const absl::Status& status) {
    {
      core::MutexLock lock(mutex_);
      failure_ = status;
    }
    spdlog::error("{}: leaves the run", std::string(status.message()));
    stop();
  });
}

absl::Status SiteRanks::failure() {
  core::MutexLock lock(mutex_);
  return failure_;
}

void SiteRanks::End(bool done, const std::string& why) {
  if (!failure().ok()) return;
  // A failed rank cannot receive it; the others know of the failure.
  (void)control_->Tell({RankCommand::Kind::kEnd, done ? 1 : 0, why});
}

}  // namespace causeway::worker
