#include "tests/sim/drawn_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "tests/sim/service.h"

namespace causeway::sim {

core::SyntheticConfig DrawModel(Chance& chance) {
  core::SyntheticConfig model;
  model.step_ms = chance.Between(10, 60);
  model.apply = core::SyntheticApply::kOnSend;
  for (int64_t i = 0, tensors = chance.Between(4, 7); i < tensors; ++i) {
    model.tensors.push_back(
        {.name = absl::StrCat("t", i), .shape = {chance.Between(1, 4000)}, .init = 0.25F * static_cast<float>(i)});
  }
  for (const char* site : {"a", "b", "c", "d"}) {
    model.gradient_by_site[site] = static_cast<float>(chance.Between(-100, 100)) / 64.0F;
  }
  return model;
}

DrawnRun DrawRun(Chance& chance) {
  DrawnRun run;
  core::RunConfig& config = run.config;
  config.run_id = "sim";
  config.seed = 7;
  run.model = DrawModel(chance);
  config.model_kind = chance.OneIn(3) ? core::ModelKind::kExternal : core::ModelKind::kSynthetic;
  if (config.model_kind == core::ModelKind::kSynthetic) config.synthetic = run.model;
  config.inner = InnerOfSimulation();
  config.sync.num_fragments = static_cast<int>(chance.Between(1, 4));
  run.shards = config.sync.num_fragments > 1 && chance.OneIn(3) ? 2 : 1;
  // Parts of fragments for both shards, where each fragment has enough units; drawn from what was drawn, so that a
  // seed's other choices stay.
  config.sync.parts = run.shards == 2 && run.model.tensors.size() % 2 == 0 ? 2 : 1;
  if (!core::BuildFragmentMap(core::SyntheticManifest(run.model), config.sync).ok()) config.sync.parts = 1;
  config.sync.sync_every = chance.Between(config.sync.num_fragments + 2, 14);
  config.sync.fragment_sync_delay = chance.Below(std::min<int64_t>(config.sync.sync_every, 4));
  config.sync.mode = chance.OneIn(2) ? core::SyncMode::kQuorum : core::SyncMode::kSynchronous;
  constexpr core::CodecId kCodecs[] = {core::CodecId::kInt4, core::CodecId::kFloat32, core::CodecId::kSign,
                                       core::CodecId::kInt8};
  config.codec.up = kCodecs[chance.Below(4)];
  config.codec.down = kCodecs[chance.Below(4)];
  if (config.codec.up == core::CodecId::kSign && config.codec.down == core::CodecId::kInt8) {  // one in 16; as above
    config.codec.up = core::CodecId::kTopk32;
    config.codec.allow_down.assign(std::rbegin(core::kTopkCodecs), std::rend(core::kTopkCodecs));
    config.codec.down = core::SparseDown(config.codec.up, /*contributions=*/1);
  }
  config.membership.min_sites = 1;
  const bool quorum = config.sync.mode == core::SyncMode::kQuorum;
  config.membership.grace_ms = quorum ? chance.Between(0, 500) : 0;
  config.membership.lease_ms = chance.Between(400, 4000);
  if (quorum) config.membership.max_staleness = chance.Between(0, 3);
  config.membership.weights = core::WeightRule::kTokens;
  // None is refused: sites' gradients differ by a factor of 100, their sums by more, and where one site trains alone
  // for ten seconds the norm of what it sends falls by 10⁶, before those come back that went on by themselves.
  config.values.gate = 1e12;
  config.eval.every_rounds = 0;
  config.checkpoint.every_rounds = chance.Between(0, 4);
  config.checkpoint.max_update_log_bytes = chance.Between(0, 1) * (1 << 20);
  config.checkpoint.min_free_bytes = 0;
  return run;
}

}  // namespace causeway::sim
