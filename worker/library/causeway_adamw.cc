// causeway_adamw_step of causeway.h: AdamW of tensors in the host's memory.
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/host_limits.h"
#include "offload/adamw.h"
#include "offload/calibration.h"
#include "offload/walk_choice.h"
#include "worker/library/causeway.h"
#include "worker/library/entry_point.h"
#include "worker/library/host_threads.h"

namespace causeway::worker {
namespace {

absl::Status CheckTensor(const causeway_adamw_tensor& tensor, int index) {
  const auto at = [&](const char* field) { return absl::StrCat("tensors[", index, "].", field); };
  if (tensor.struct_size != sizeof(tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat(at("struct_size"), ": expected ", sizeof(tensor), ", got ", tensor.struct_size));
  }
  for (const auto& [field, dtype] :
       {std::pair("gradient_dtype", tensor.gradient_dtype), {"moment_dtype", tensor.moment_dtype}}) {
    if (dtype == CAUSEWAY_FLOAT32 || dtype == CAUSEWAY_BFLOAT16) continue;
    return absl::InvalidArgumentError(absl::StrCat(at(field), ": expected 0 or 1, got ", dtype));
  }
  if (tensor.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(at("count"), ": expected ≥ 0, got ", tensor.count));
  }
  if (tensor.step < 1) {
    return absl::InvalidArgumentError(absl::StrCat(at("step"), ": expected ≥ 1, got ", tensor.step));
  }
  if (tensor.count > 0 && (tensor.parameters == nullptr || tensor.first_moment == nullptr ||
                           tensor.second_moment == nullptr || tensor.gradient == nullptr)) {
    return Missing("parameters, first_moment, second_moment, gradient of each tensor");
  }
  return absl::OkStatus();
}

struct Part {
  offload::AdamWArrays arrays;
  offload::NarrowMoments narrow;  // none: the arrays have moments
  offload::AdamWConstants constants;
  int64_t first = 0;  // counted through all tensors

  void Step(int64_t begin, int64_t count) const {
    const offload::AdamWArrays here = arrays.Part(begin, count);
    if (narrow.first == nullptr) return AdamWStep(constants, here);
    AdamWStep(constants, here, {narrow.first + begin, narrow.second + begin, narrow.seed, begin});
  }
};

Part PartOf(const causeway_adamw_tensor& tensor, int64_t first) {
  const bool narrow = tensor.moment_dtype == CAUSEWAY_BFLOAT16;
  return {.arrays = {.gradient = tensor.gradient,
                     .gradient_type = tensor.gradient_dtype == CAUSEWAY_FLOAT32 ? offload::GradientType::kFloat32
                                                                                : offload::GradientType::kBfloat16,
                     .first_moment = narrow ? nullptr : static_cast<float*>(tensor.first_moment),
                     .second_moment = narrow ? nullptr : static_cast<float*>(tensor.second_moment),
                     .parameters = tensor.parameters,
                     .bfloat16_copy = tensor.bfloat16_copy,
                     .count = tensor.count},
          .narrow = narrow ? offload::NarrowMoments{static_cast<uint16_t*>(tensor.first_moment),
                                                    static_cast<uint16_t*>(tensor.second_moment), tensor.seed}
                           : offload::NarrowMoments(),
          .constants = offload::MakeConstants({.lr = tensor.lr,
                                               .beta1 = tensor.beta1,
                                               .beta2 = tensor.beta2,
                                               .epsilon = tensor.epsilon,
                                               .weight_decay = tensor.weight_decay},
                                              tensor.step),
          .first = first};
}

absl::Status Step(const causeway_adamw_tensor* tensors, int count) {
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat("count: expected ≥ 0, got ", count));
  if (count > 0 && tensors == nullptr) return Missing("tensors");
  std::vector<Part> parts;
  int64_t values = 0;
  for (int i = 0; i < count; ++i) {
    RETURN_IF_ERROR(CheckTensor(tensors[i], i));
    if (tensors[i].count == 0) continue;
    parts.push_back(PartOf(tensors[i], values));
    values += tensors[i].count;
  }
  static std::once_flag once;
  if (values >= offload::kLeastBeyondCaches) {
    std::call_once(once, [&] {
      offload::ChooseWalk(values, core::UsableCores(), OnHostThreads, offload::DefaultCalibrationPath());
    });
  }
  OnHostThreads(values, [&](int64_t first, int64_t size) {
    auto part = std::prev(std::ranges::upper_bound(parts, first, {}, &Part::first));
    for (const int64_t end = first + size; first < end; ++part) {
      const int64_t begin = first - part->first, here = std::min(end - first, part->arrays.count - begin);
      part->Step(begin, here);
      first += here;
    }
  });
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

using namespace causeway::worker;

int causeway_adamw_step(const causeway_adamw_tensor* tensors, int count) {
  return Enter([&] { return Step(tensors, count); });
}
