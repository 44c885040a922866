// How fast the codecs are on a GPU: bytes read and written a second, as a share of a copy inside the device that is
// timed beside each of them. One line of JSON a row; without a GPU one that says why there is none.
//
//   operation          bytes a value     goes to
//   encode+feedback    12 + payload      device memory, or mapped pinned memory (then the bus decides)
//   decode, decode-add 4, 8 + payload
//   read               4                 zero-copy: values that lie on the host, from a line's begin or 4 bytes after
//   it memcpy             4                 the copy engine, for the same
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "codecs/cuda/cuda_codec.h"
#include "core/check.h"
#include "core/random.h"
#include "tests/codecs/cuda/device_array.h"

namespace causeway::codecs::cuda {
namespace {

constexpr int64_t kValues = int64_t{64} << 20;  // 256 MiB of float32
constexpr int kPairs = 7;
constexpr int kRunsOfOne = 3;

class Timer {
 public:
  Timer() {
    Must(cudaEventCreate(&begin_), "event");
    Must(cudaEventCreate(&end_), "event");
  }
  // Seconds of one run, the mean of a few.
  double Seconds(const std::function<void()>& run) {
    Must(cudaEventRecord(begin_), "event");
    for (int i = 0; i < kRunsOfOne; ++i) run();
    Must(cudaEventRecord(end_), "event");
    Must(cudaEventSynchronize(end_), "event");
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    return milliseconds * 1e-3 / kRunsOfOne;
  }

 private:
  cudaEvent_t begin_, end_;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

struct Arrays {
  DeviceArray<float> values, residual, copy;
};

// Times `run` beside the copy and prints the row.
void Measure(Timer& timer, Arrays& arrays, const char* codec, const char* operation, const char* payload, double bytes,
             const std::function<void()>& run) {
  const auto copy = [&] {
    Must(cudaMemcpyAsync(arrays.copy.data(), arrays.values.data(), kValues * sizeof(float), cudaMemcpyDeviceToDevice),
         "copy");
  };
  timer.Seconds(run);
  timer.Seconds(copy);
  std::vector<double> rates, ratios;
  for (int i = 0; i < kPairs; ++i) {
    const double of_copy = 2.0 * kValues * sizeof(float) / timer.Seconds(copy);
    rates.push_back(bytes / timer.Seconds(run));
    ratios.push_back(rates.back() / of_copy);
  }
  std::printf(
      "{\"codec\": \"%s\", \"operation\": \"%s\", \"payload\": \"%s\", \"gb_per_s\": %.1f, \"of_device_copy\": %.3f}\n",
      codec, operation, payload, Median(rates) * 1e-9, Median(ratios));
  std::fflush(stdout);
}

void MeasureCodec(Timer& timer, Arrays& arrays, core::CodecId id, Place place) {
  const Codec& codec = GetCodec(id);
  const char* name = core::CodecName(id);
  const char* payload = place == Place::kDevice ? "device" : "mapped host";
  DeviceArray<uint8_t> scales(codec.ScaleBytes(kValues), place), codes(codec.CodeBytes(kValues), place);
  const std::vector<unsigned long long> none = {kNoBadBlock};
  DeviceArray<unsigned long long> bad(std::span<const unsigned long long>(none), Place::kDevice);
  const double encoded = static_cast<double>(codec.ScaleBytes(kValues) + codec.CodeBytes(kValues));
  const std::optional<Rotation> rotation = codec.rotates() ? std::optional(Rotation{1, 0}) : std::nullopt;
  const EncodeJob plain = {.values = arrays.values.data(),
                           .count = kValues,
                           .rotation = rotation,
                           .scales = scales.data(),
                           .codes = codes.data()};
  EncodeJob feedback = plain;
  feedback.beta = 1;
  feedback.residual = feedback.next_residual = arrays.residual.data();
  const auto encode = [&](const EncodeJob& job) { CHECK(Encode(id, job, bad.data(), nullptr).ok()); };
  Measure(timer, arrays, name, "encode", payload, 4.0 * kValues + encoded, [&] { encode(plain); });
  Measure(timer, arrays, name, "encode+feedback", payload, 12.0 * kValues + encoded, [&] { encode(feedback); });
  if (core::TopkEntries(id) > 0) return;  // is not decoded there
  DecodeJob job = {.scales = scales.data(),
                   .codes = codes.data(),
                   .rotation = rotation,
                   .values = arrays.copy.data(),
                   .count = kValues};
  const auto decode = [&] { CHECK(Decode(id, job, nullptr).ok()); };
  Measure(timer, arrays, name, "decode", payload, 4.0 * kValues + encoded, decode);
  job.add = 0.25f;
  Measure(timer, arrays, name, "decode-add", payload, 8.0 * kValues + encoded, decode);
}

// The rates of the bus: int4 of values that lie on the host, and the copy engine.
void MeasureBus(Timer& timer, Arrays& arrays) {
  std::vector<float> on_host(kValues + 1, 0.25f);
  DeviceArray<float> mapped(std::span<const float>(on_host), Place::kMappedHost);
  const Codec& codec = GetCodec(core::CodecId::kInt4);
  DeviceArray<uint8_t> scales(codec.ScaleBytes(kValues), Place::kDevice),
      codes(codec.CodeBytes(kValues), Place::kDevice);
  for (const int64_t skipped : {0, 1}) {
    const EncodeJob job = {.values = mapped.data() + skipped,
                           .count = kValues,
                           .saturate = true,
                           .scales = scales.data(),
                           .codes = codes.data()};
    Measure(timer, arrays, "int4", "read", skipped == 0 ? "mapped host, aligned" : "mapped host, misaligned",
            4.0 * kValues, [&] { CHECK(Encode(core::CodecId::kInt4, job, nullptr, nullptr).ok()); });
  }
  const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
    Must(cudaMemcpyAsync(to, from, kValues * sizeof(float), kind), "copy");
  };
  Measure(timer, arrays, "", "memcpy", "to the device", 4.0 * kValues,
          [&] { copy(arrays.residual.data(), mapped.data(), cudaMemcpyHostToDevice); });
  Measure(timer, arrays, "", "memcpy", "to the host", 4.0 * kValues,
          [&] { copy(mapped.data(), arrays.residual.data(), cudaMemcpyDeviceToHost); });
}

int Run() {
  if (const std::string why = WhyNoGpu(); !why.empty()) {
    std::printf("{\"skipped\": \"%s\"}\n", why.c_str());
    return 0;
  }
  cudaDeviceProp device;
  Must(cudaGetDeviceProperties(&device, 0), "properties");
  std::printf("{\"device\": \"%s\", \"values\": %lld}\n", device.name, static_cast<long long>(kValues));
  std::vector<float> values(kValues);
  for (int64_t i = 0; i < kValues; ++i) values[i] = static_cast<float>(core::UnitInterval(core::SplitMix64(i)) - 0.5);
  const std::span<const float> span(values);
  Arrays arrays = {{span, Place::kDevice}, {span, Place::kDevice}, {span, Place::kDevice}};
  Timer timer;
  MeasureBus(timer, arrays);
  for (Place place : {Place::kDevice, Place::kMappedHost}) {
    for (core::CodecId id : core::kAllCodecs) {
      if (Supports(id)) MeasureCodec(timer, arrays, id, place);
    }
  }
  return 0;
}

}  // namespace
}  // namespace causeway::codecs::cuda

int main() { return causeway::codecs::cuda::Run(); }
