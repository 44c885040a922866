#include "server/status/training_json.h"

#include "core/offload_config.h"
#include "core/text.h"

namespace causeway::server {
namespace {

constexpr size_t kReducedReasonBytes = 160;

void WriteOnebitAdam(JsonWriter& json, const std::optional<core::OnebitProgress>& onebit) {
  if (!onebit) return;
  json.Key("onebit_adam");
  json.BeginObject();
  json.Member("phase", onebit->frozen_at > 0 ? "frozen" : "warm-up");
  if (onebit->frozen_at > 0) json.Member("frozen_at", onebit->frozen_at);
  json.Member("variance_ratio", Known(onebit->ratio));
  json.Member("compression", Known(onebit->compression));
  json.EndObject();
}

void WriteLevels(JsonWriter& json, const std::vector<core::LevelTraffic>& levels) {
  if (levels.empty()) return;
  json.Key("levels");
  json.BeginArray();
  for (const core::LevelTraffic& level : levels) {
    json.BeginObject();
    json.Member("name", level.name);
    json.Member("predicted_bytes", level.predicted);
    json.Member("measured_bytes", level.measured);
    json.EndObject();
  }
  json.EndArray();
}

}  // namespace

std::string Shortened(const std::string& reason, bool reduced) {
  return reduced ? core::Clipped(reason, kReducedReasonBytes) : reason;
}

void WriteOffload(JsonWriter& json, const std::optional<core::OffloadProgress>& offload, bool reduced) {
  json.Key("offload");
  if (!offload) return json.Null();
  json.BeginObject();
  json.Member("k", core::InterleaveName(offload->k));
  json.Member("subgroup", offload->subgroup);
  json.Member("reason", Shortened(offload->reason, reduced));
  json.Member("predicted_update_s", Known(offload->predicted_s));
  json.Member("update_s", Known(offload->measured_s));
  json.Member("waited_for_copies_s", offload->waited_s);
  if (!reduced && (offload->resident > 0 || offload->to_device_bytes > 0)) {
    json.Key("device");
    json.BeginObject();
    json.Member("resident", offload->resident);
    json.Member("device_subgroups", offload->device_subgroups);
    json.Member("cpu_subgroups", offload->cpu_subgroups);
    json.Member("to_device_bytes", offload->to_device_bytes);
    json.Member("to_host_bytes", offload->to_host_bytes);
    json.Member("early_gradient_bytes", offload->early_gradient_bytes);
    json.EndObject();
  }
  json.EndObject();
}

void WriteRanks(JsonWriter& json, const core::RankProgress& ranks, bool reduced) {
  json.Key("ranks");
  json.BeginObject();
  json.Member("ranks", ranks.ranks);
  json.Member("hosts", ranks.hosts);
  json.Member("slowest", Shortened(ranks.slowest, reduced));
  json.Member("slowest_step_s", Known(ranks.slowest_step_s));
  json.Member("standing_still", Shortened(ranks.standing_still, reduced));
  if (ranks.step_bytes > 0) json.Member("step_bytes", ranks.step_bytes);
  WriteOnebitAdam(json, ranks.onebit_adam);
  if (!reduced) WriteLevels(json, ranks.levels);
  json.EndObject();
}

}  // namespace causeway::server
