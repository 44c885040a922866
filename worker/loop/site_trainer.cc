#include "worker/loop/site_trainer.h"

#include <spdlog/spdlog.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "worker/gpu/device_trainer.h"
#include "worker/gpu/fake_backend.h"

namespace causeway::worker {
namespace {

constexpr char kFake[] = "fake";

bool NamesGpu(absl::string_view device) {
  int index = 0;
  return device == "cuda" || (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index) && index >= 0);
}

}  // namespace

absl::Status CheckDevice(const std::string& device) {
  if (device == "auto" || device == "cpu" || device == kFake) return absl::OkStatus();
  if (!NamesGpu(device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: expected auto, cpu, fake, cuda or cuda:INDEX, got ", device));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device=", device,
                   ": this causeway-worker was built without CUDA; expected a build of the cuda preset, or "
                   "--device=cpu, on which the GPUs would lie idle"));
}

absl::StatusOr<std::unique_ptr<Trainer>> MakeSiteTrainer(const std::string& device, const core::RunConfig& config,
                                                         const core::SiteId& site, const TrainerFiles& files) {
  RETURN_IF_ERROR(CheckDevice(device));
  if (device != kFake) return MakeTrainer(config, site, files);
  RETURN_IF_ERROR(CheckRows(config, site, files.ranks.world()));
  if (config.model_kind != core::ModelKind::kLlama) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device=", device, ": expected a run of model.kind llama, got synthetic; use --device=cpu"));
  }
  return DeviceTrainer::Make(config, site, files, std::make_unique<FakeBackend>());
}

}  // namespace causeway::worker
