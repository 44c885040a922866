// The run that the service's tests serve, and what its sites send.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "codecs/chunk_plan.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "server/run/run_exchange.h"
#include "tests/core/fake_clock.h"
#include "transport/messages.h"

namespace causeway::server {

// The coordinators when a run has two.
inline constexpr core::Shard kLead{0, 2};
inline constexpr core::Shard kSecond{1, 2};

inline constexpr int64_t kAfterTheLease = 60'000;

inline core::Manifest ManifestForTest() {
  return {{"a", {5000}, core::TensorKind::kMatrix, 0},
          {"b", {300}, core::TensorKind::kMatrix, 0},
          {"c", {10, 10}, core::TensorKind::kMatrix, 0},
          {"d", {700}, core::TensorKind::kMatrix, 1}};
}

inline core::RunConfig ConfigForTest() {
  core::RunConfig config;
  config.run_id = "test";
  config.sync = {.sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 0};
  config.membership.min_sites = 2;
  config.checkpoint.every_rounds = 0;
  return config;
}

// A fragment's chunks, all values alike.
inline std::vector<std::string> ChunksOf(const core::Fragment& fragment, core::CodecId codec, float value) {
  std::vector<std::string> chunks;
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment, {codec})) {
    chunks.push_back(*codecs::EncodeChunk(span, std::vector<float>(span.values, value), {}));
  }
  return chunks;
}

inline v1::Context ContextForTest(const std::string& site) {
  v1::Context context;
  context.set_protocol(transport::kProtocol);
  context.set_run_id("test");
  context.set_site(site);
  context.set_session(site + "-1");
  return context;
}

inline v1::Join JoinOf(const std::string& site, const core::Manifest& manifest = ManifestForTest()) {
  v1::Join join;
  *join.mutable_context() = ContextForTest(site);
  transport::ToProto(manifest, join.mutable_manifest());
  for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
  return join;
}

// Ticks until then, so often that the coordinator does not take itself for one that stood still.
inline void TickUntil(int64_t ms, core::FakeClock& clock, RunExchange& coordinator) {
  const int64_t step_ms = ConfigForTest().membership.lease_ms / 4;
  do {
    clock.Set(std::min(clock.NowMs() + step_ms, ms));
    coordinator.Tick();
  } while (clock.NowMs() < ms);
}

inline v1::UploadHeader HeaderOf(const std::string& site, int fragment, int64_t base = 0) {
  v1::UploadHeader header;
  *header.mutable_context() = ContextForTest(site);
  header.set_fragment(fragment);
  header.set_base_version(base);
  header.set_tokens(8);
  header.set_steps(1);
  return header;
}

}  // namespace causeway::server
