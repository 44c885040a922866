// The case of arXiv 2103.03330: random rows of 256 MB that lie on the host come to the device, by a kernel that reads
// them over the bus, or gathered by all cores into pinned memory and copied from there. JSON lines; without a GPU one
// that says why there is none.
//
//   way       aligned   worker/device/kernels' GatherKernel from mapped memory: 32 lanes read one line
//             naive     the same without the shift to lines
//             cpu       all cores, then the copy engine
//   row       256 floats, which begin at lines of 128 bytes, and 257, which mostly do not
//   gb_per_s  of the gathered bytes; each run takes other rows, so that no cache has them
#include <sched.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "core/random.h"
#include "tests/codecs/cuda/device_array.h"
#include "tests/worker/device/cuda/launch_naive_gather.h"
#include "worker/device/cuda/launch_kernel.h"

namespace causeway::worker {
namespace {

using codecs::cuda::DeviceArray;
using codecs::cuda::Must;
using codecs::cuda::Place;

constexpr int64_t kValues = int64_t{64} << 20;  // 256 MiB of float32
constexpr int64_t kRowSizes[] = {256, 257};
constexpr int kPercents[] = {1, 5, 20};
constexpr int kRuns = 7;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// A value tells where it lay.
float ValueAt(int64_t i) { return static_cast<float>(i & 0xffffff); }

// Threads that wait for work, one a core; the caller is one of them.
class Crew {
 public:
  explicit Crew(int size) : size_(size), begin_(size), end_(size) {
    for (int member = 1; member < size; ++member) {
      members_.emplace_back([this, member] {
        while (true) {
          begin_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)(member);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~Crew() {
    work_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& member : members_) member.join();
  }
  int size() const { return size_; }

  // work(member) of each, at the same time.
  void Run(const std::function<void(int)>& work) {
    work_ = &work;
    begin_.arrive_and_wait();
    work(0);
    end_.arrive_and_wait();
  }

 private:
  const int size_;
  std::barrier<> begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> members_;
};

std::vector<int64_t> RandomRows(int64_t all, int64_t count, uint64_t seed) {
  std::vector<int64_t> rows(static_cast<size_t>(all));
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t i = 0; i < count; ++i) {
    std::swap(rows[i], rows[i + static_cast<int64_t>(core::SplitMix64(seed * all + i) % (all - i))]);
  }
  rows.resize(static_cast<size_t>(count));
  return rows;
}

class Gather {
 public:
  Gather(DeviceArray<float>& source, Crew& crew, int64_t row_values, int percent)
      : source_(source),
        crew_(crew),
        row_values_(row_values),
        percent_(percent),
        count_(kValues / row_values * percent / 100),
        to_(count_ * row_values, Place::kDevice),
        pinned_(count_ * row_values, Place::kMappedHost) {}

  void Measure() {
    std::vector<double> aligned, naive, cpu;  // seconds
    for (int run = -1; run < kRuns; ++run) {  // the first is not counted
      std::vector<std::vector<int64_t>> rows;
      for (int way = 0; way < 3; ++way) {
        rows.push_back(RandomRows(kValues / row_values_, count_, static_cast<uint64_t>(3 * (run + 1) + way)));
      }
      const double seconds[] = {Aligned(rows[0]), Naive(rows[1]), Cpu(rows[2])};
      if (run < 0) continue;
      aligned.push_back(seconds[0]);
      naive.push_back(seconds[1]);
      cpu.push_back(seconds[2]);
    }
    Print("aligned", aligned, cpu);
    Print("naive", naive, cpu);
    Print("cpu", cpu, cpu);
  }

 private:
  template <typename KernelOf>
  double ByKernel(const std::vector<int64_t>& rows, const std::function<void(const KernelOf&)>& launch) {
    std::vector<GatherPiece> pieces;
    int64_t blocks = 0;
    for (const int64_t row : rows) {
      const float* const from = source_.data() + row * row_values_;
      pieces.push_back({from, std::ssize(pieces) * row_values_, row_values_, blocks});
      blocks += KernelOf::BlocksOf(from, row_values_);
    }
    DeviceArray<GatherPiece> table(std::span<const GatherPiece>(pieces), Place::kDevice);
    const KernelOf kernel{.pieces = table.data(), .to = to_.data(), .count = count_, .all_blocks = blocks};
    return Timed(rows, [&] {
      launch(kernel);
      Must(cudaGetLastError(), "launch");
    });
  }
  double Aligned(const std::vector<int64_t>& rows) {
    return ByKernel<GatherKernel>(rows, [](const GatherKernel& kernel) { CHECK(LaunchValueKernel(kernel, nullptr)); });
  }
  double Naive(const std::vector<int64_t>& rows) {
    return ByKernel<NaiveGatherKernel>(rows,
                                       [](const NaiveGatherKernel& kernel) { LaunchNaiveGather(kernel, nullptr); });
  }
  double Cpu(const std::vector<int64_t>& rows) {
    const size_t bytes = row_values_ * sizeof(float);
    return Timed(rows, [&] {
      crew_.Run([&](int member) {
        for (int64_t i = count_ * member / crew_.size(); i < count_ * (member + 1) / crew_.size(); ++i) {
          std::memcpy(pinned_.host() + i * row_values_, source_.host() + rows[i] * row_values_, bytes);
        }
      });
      Must(cudaMemcpyAsync(to_.data(), pinned_.host(), count_ * bytes, cudaMemcpyHostToDevice), "copy");
    });
  }

  // Until the rows are on the device; ends the program if others are.
  double Timed(const std::vector<int64_t>& rows, const std::function<void()>& queue) {
    Must(cudaMemset(to_.data(), 0xff, count_ * row_values_ * sizeof(float)), "memset");
    Must(cudaDeviceSynchronize(), "memset");
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    queue();
    Must(cudaStreamSynchronize(nullptr), "gather");
    const double seconds = core::SystemClock().SecondsSince(begin);
    const std::vector<float> got = to_.Values();
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t first = rows[i] * row_values_;
      for (int64_t j = 0; j < row_values_; ++j) CHECK(got[i * row_values_ + j] == ValueAt(first + j));
    }
    return seconds;
  }

  void Print(const char* way, const std::vector<double>& seconds, const std::vector<double>& cpu) const {
    const double bytes = static_cast<double>(count_ * row_values_) * sizeof(float);
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(cpu[i] / seconds[i]);
    std::printf(
        "{\"measure\": \"gather\", \"share\": %.2f, \"row_bytes\": %lld, \"way\": \"%s\", \"threads\": %d, "
        "\"gb_per_s\": %.2f, \"of_cpu_gather_and_copy\": %.3f}\n",
        percent_ / 100.0, static_cast<long long>(row_values_ * sizeof(float)), way, crew_.size(),
        bytes / Median(seconds) * 1e-9, Median(ratios));
    std::fflush(stdout);
  }

  DeviceArray<float>& source_;
  Crew& crew_;
  const int64_t row_values_;
  const int percent_;
  const int64_t count_;  // of gathered rows
  DeviceArray<float> to_, pinned_;
};

int Run() {
  if (const std::string why = codecs::cuda::WhyNoGpu(); !why.empty()) {
    std::printf("{\"skipped\": \"%s\"}\n", why.c_str());
    return 0;
  }
  cpu_set_t cores;
  CHECK(sched_getaffinity(0, sizeof cores, &cores) == 0);
  Crew crew(CPU_COUNT(&cores));
  DeviceArray<float> source(kValues, Place::kMappedHost);
  for (int64_t i = 0; i < kValues; ++i) source.host()[i] = ValueAt(i);
  for (const int64_t row_values : kRowSizes) {
    for (const int percent : kPercents) Gather(source, crew, row_values, percent).Measure();
  }
  return 0;
}

}  // namespace
}  // namespace causeway::worker

int main() { return causeway::worker::Run(); }
