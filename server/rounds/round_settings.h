// The settings by which the rules of a run decide.
#pragma once

#include <cstdint>
#include <functional>

#include "core/ids.h"
#include "core/run_config.h"

namespace causeway::server {

using TokensPerStep = std::function<int64_t(const core::SiteId&)>;  // a site's tokens per step; null or 0: unknown

struct RoundSettings {
  core::SyncConfig sync;
  core::MembershipConfig membership;
  core::Shard shard;
  core::ValuesConfig values = {.gate = 0};
  TokensPerStep max_tokens_per_step = nullptr;
  core::Step steps = 0;    // at which the run ends; 0: it has no such end
  int64_t run_tokens = 0;  // at which the run ends; 0: it has no such end
};

}  // namespace causeway::server
