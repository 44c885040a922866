// causeway_adamw_step and causeway_outer_step of causeway.h: AdamW and the outer step of values in the host's memory.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/dtype.h"
#include "core/host_limits.h"
#include "core/mutex.h"
#include "core/outer_step.h"
#include "core/thread_team.h"
#include "offload/adamw.h"
#include "offload/calibration.h"
#include "worker/library/causeway.h"
#include "worker/library/entry_point.h"

namespace causeway::worker {

// The host process's compute threads: those of its OpenMP runtime if one is loaded, else our own.
//
// OpenMP threads spin for milliseconds after each parallel loop, as PyTorch's do after backward. Our own threads would
// compete with them for the cores, so we run our work on the OpenMP threads, unless it is done beside theirs.
// Calls work(first, count) for every piece of 0 … values − 1, concurrently and in any order; returns when all are done.
// Any thread; calls take turns.
void OnHostThreads(int64_t values, bool beside, absl::FunctionRef<void(int64_t first, int64_t count)> work);

namespace {

constexpr int64_t kPiece = int64_t{1} << 16;  // values

// GNU's OpenMP, which PyTorch ships: its entry to a parallel region, and the number of threads the program gave it.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
};

int FindLoaded(dl_phdr_info* info, size_t, void* found) {
  const char* const name = std::strrchr(info->dlpi_name, '/');
  if (name == nullptr || std::strncmp(name, "/libgomp", std::strlen("/libgomp")) != 0) return 0;
  *static_cast<std::string*>(found) = info->dlpi_name;
  return 1;
}

OpenMp FindOpenMp() {
  std::string path;
  dl_iterate_phdr(FindLoaded, &path);
  if (path.empty()) return {};
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  OpenMp omp{reinterpret_cast<decltype(OpenMp::parallel)>(dlsym(library, "GOMP_parallel")),
             reinterpret_cast<decltype(OpenMp::max_threads)>(dlsym(library, "omp_get_max_threads"))};
  return omp.parallel == nullptr || omp.max_threads == nullptr ? OpenMp{} : omp;
}

struct Job {
  const int64_t values;
  const absl::FunctionRef<void(int64_t first, int64_t count)> work;
  std::atomic<int64_t> next = 0;

  void Run() {
    for (int64_t first; (first = next.fetch_add(kPiece)) < values;) work(first, std::min(kPiece, values - first));
  }
};

// Our own threads, and the process that has them: a forked child creates others.
struct Team {
  core::Mutex mutex;
  std::unique_ptr<core::ThreadTeam> team ABSL_GUARDED_BY(mutex);
  pid_t process ABSL_GUARDED_BY(mutex) = 0;
};

Team& OwnTeam() {
  static Team& team = *new Team;
  return team;
}

}  // namespace

void OnHostThreads(int64_t values, bool beside, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
  Team& own = OwnTeam();
  core::MutexLock lock(own.mutex);
  Job job{.values = values, .work = work};
  if (const OpenMp omp = beside ? OpenMp() : FindOpenMp(); omp.parallel != nullptr) {
    // OpenMP does not know of a control group's quota.
    const auto most = static_cast<unsigned>(std::clamp(omp.max_threads(), 1, core::UsableCores()));
    omp.parallel([](void* data) { static_cast<Job*>(data)->Run(); }, &job, most, 0);
    return;
  }
  if (own.team == nullptr || own.process != getpid()) {
    static_cast<void>(own.team.release());  // in a child the threads do not exist, so they cannot be joined
    own.team = std::make_unique<core::ThreadTeam>(core::UsableCores());
    own.process = getpid();
  }
  own.team->RunInOrder(
      std::max(1, own.team->threads() - (beside ? 1 : 0)), [&](int, int64_t) { job.Run(); }, [](int64_t) {});
}

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
  uint8_t* followed = nullptr;
  int64_t first = 0;  // counted through all tensors

  void Step(int64_t begin, int64_t count) const {
    const offload::AdamWArrays here = arrays.Part(begin, count);
    const bool has_followed =
        narrow.first == nullptr
            ? AdamWStep(constants, here)
            : AdamWStep(constants, here, {narrow.first + begin, narrow.second + begin, narrow.seed, begin});
    if (has_followed) std::atomic_ref(*followed).store(1, std::memory_order_relaxed);
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
                     .follows_copy = tensor.bfloat16_copy != nullptr && tensor.followed != nullptr,
                     .count = tensor.count},
          .narrow = narrow ? offload::NarrowMoments{static_cast<uint16_t*>(tensor.first_moment),
                                                    static_cast<uint16_t*>(tensor.second_moment), tensor.seed}
                           : offload::NarrowMoments(),
          .constants = offload::MakeConstants({.lr = tensor.lr,
                                               .beta1 = tensor.beta1,
                                               .beta2 = tensor.beta2,
                                               .epsilon = tensor.epsilon,
                                               .weight_decay = tensor.weight_decay,
                                               .gradient_scale = static_cast<float>(tensor.gradient_scale)},
                                              tensor.step),
          .followed = tensor.followed,
          .first = first};
}

absl::Status Step(const causeway_adamw_tensor* tensors, int count, bool beside) {
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
      const auto on_threads = [beside](int64_t size, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
        OnHostThreads(size, beside, work);
      };
      offload::ChooseWalk(values, core::UsableCores(), on_threads, offload::DefaultCalibrationPath());
    });
  }
  OnHostThreads(values, beside, [&](int64_t first, int64_t size) {
    auto part = std::prev(std::ranges::upper_bound(parts, first, {}, &Part::first));
    for (const int64_t end = first + size; first < end; ++part) {
      const int64_t begin = first - part->first, here = std::min(end - first, part->arrays.count - begin);
      part->Step(begin, here);
      first += here;
    }
  });
  return absl::OkStatus();
}

// As Replica::EncodeContribution takes the outer gradient, and as a merge of one contribution steps.
absl::Status Step(const causeway_outer_values* values) {
  RETURN_IF_ERROR(CheckSize(values, "values"));
  if (values->count < 0) return absl::InvalidArgumentError(absl::StrCat("count: expected ≥ 0, got ", values->count));
  if (values->dtype > CAUSEWAY_FLOAT16) {
    return absl::InvalidArgumentError(absl::StrCat("dtype: expected 0, 1 or 2, got ", values->dtype));
  }
  if (values->count == 0) return absl::OkStatus();
  if (values->theta == nullptr || values->anchor == nullptr || values->momentum == nullptr) {
    return Missing("theta, anchor, momentum");
  }
  const core::OuterParameters outer{.lr = values->lr, .momentum = values->momentum_factor};
  OnHostThreads(values->count, false, [&](int64_t first, int64_t count) {
    const auto size = static_cast<size_t>(count);
    std::vector<float> gradient(size);
    const std::span<float> anchor(values->anchor + first, size);
    core::RoundTo(static_cast<core::DType>(values->dtype), anchor, gradient);
    core::OuterGradient(gradient, std::span(values->theta + first, size), gradient);
    core::OuterStep(outer, gradient, std::span(values->momentum + first, size), anchor);
  });
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

using namespace causeway::worker;

int causeway_adamw_step(const causeway_adamw_tensor* tensors, int count) {
  return Enter([&] { return Step(tensors, count, false); });
}

int causeway_adamw_step_beside(const causeway_adamw_tensor* tensors, int count) {
  return Enter([&] { return Step(tensors, count, true); });
}

int causeway_outer_step(const causeway_outer_values* values) {
  return Enter([&] { return Step(values); });
}
