#include "server/run/model_bounds.h"

#include <unistd.h>

#include "absl/strings/str_format.h"
#include "core/model_manifest.h"

namespace causeway::server {
namespace {

constexpr int64_t kBytesOfParameter = 12;  // anchor, momentum and residual, as float32

}  // namespace

absl::Status ModelBounds::Check(const core::Manifest& brought) const {
  if (manifest) return core::CompareManifests(*manifest, brought);
  const int64_t values = core::NumParameters(brought) / shard.count;
  if (memory_bytes == 0 || values <= memory_bytes / kBytesOfParameter) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the model's %.3g values need %.3g GB of the coordinator's memory (12 bytes each), and this machine "
      "has %.3g GB",
      static_cast<double>(values), static_cast<double>(values) * kBytesOfParameter * 1e-9,
      static_cast<double>(memory_bytes) * 1e-9));
}

ModelBounds BoundsOf(const core::RunConfig& config, const core::Shard& shard) {
  ModelBounds bounds{.memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), .shard = shard};
  if (config.model_kind != core::ModelKind::kExternal) bounds.manifest = core::ModelManifest(config);
  return bounds;
}

}  // namespace causeway::server
