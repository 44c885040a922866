// W and v of each fragment that a site holds, as it presents them to a coordinator that rebuilds its state. Pure.
#pragma once

#include <vector>

#include "replica/replica.h"
#include "transport/coordinator_link.h"
#include "worker/site/site_checkpoint.h"

namespace causeway::worker {

transport::HeldValues HeldValuesOf(core::Version version, const replica::ReplicaArrays& arrays);

// For a process that has not been welcomed since it restarted.
std::vector<core::HeldFragment> HeldFragmentsOf(const SiteCheckpoint& checkpoint);

}  // namespace causeway::worker
