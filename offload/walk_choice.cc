#include "offload/walk_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "offload/calibration.h"
#include "offload/host_array.h"

namespace causeway::offload {
namespace {

constexpr double kWorth = 0.97;  // of the default's time
constexpr char kWalks[] = "walks", kFetchesAhead[] = "fetches_ahead", kStreamsCopy[] = "streams_copy";

bool Parse(const nlohmann::json& json, AdamWWalk& walk) {
  for (const auto& [name, field] :
       {std::pair(kFetchesAhead, &AdamWWalk::fetches_ahead), {kStreamsCopy, &AdamWWalk::streams_copy}}) {
    if (!json.is_object() || !json.contains(name) || !json[name].is_boolean()) return false;
    walk.*field = json[name];
  }
  return true;
}

}  // namespace

AdamWWalk MeasureWalk(int64_t values, OnThreads on_threads) {
  const AdamWWalk before = CurrentWalk();
  const int64_t count = MeasuredValues(values);
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  const HostArray gradient(bytes), first_moment(bytes), second_moment(bytes), parameters(bytes), copy(bytes / 2);
  std::ranges::fill(gradient.Values<float>(), 0.25f);
  const AdamWConstants constants = MakeConstants({}, 1);
  const auto seconds = [&](AdamWWalk walk, bool with_copy) {
    SetWalk(walk);
    const AdamWArrays arrays{.gradient = gradient.data(),
                             .first_moment = first_moment.Values<float>().data(),
                             .second_moment = second_moment.Values<float>().data(),
                             .parameters = parameters.Values<float>().data(),
                             .bfloat16_copy = with_copy ? copy.Values<uint16_t>().data() : nullptr,
                             .count = count};
    return BestSeconds([&] {
      on_threads(count, [&](int64_t first, int64_t size) { AdamWStep(constants, arrays.Part(first, size)); });
    });
  };
  AdamWWalk best;
  const double fetched = seconds(best, false);
  best.fetches_ahead = seconds({.fetches_ahead = false}, false) > kWorth * fetched;
  const double streamed = seconds(best, true);
  best.streams_copy = seconds({.fetches_ahead = best.fetches_ahead, .streams_copy = false}, true) > kWorth * streamed;
  SetWalk(before);
  return best;
}

void ChooseWalk(int64_t values, int threads, OnThreads on_threads, const std::string& path) {
  if (values < kLeastBeyondCaches) return;
  const std::string key = absl::StrCat(ProcessorName(), ", ", threads, " threads");
  nlohmann::json known = ReadCalibrations(path);
  AdamWWalk walk;
  if (known.contains(kWalks) && known[kWalks].is_object() && Parse(known[kWalks].value(key, nlohmann::json()), walk)) {
    return SetWalk(walk);
  }
  walk = MeasureWalk(values, on_threads);
  SetWalk(walk);
  if (!known[kWalks].is_object()) known[kWalks] = nlohmann::json::object();
  known[kWalks][key] = {{kFetchesAhead, walk.fetches_ahead}, {kStreamsCopy, walk.streams_copy}};
  if (!path.empty()) WriteCalibrations(path, known);  // one that cannot be written costs the measurement
}

}  // namespace causeway::offload
