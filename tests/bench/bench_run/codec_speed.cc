#include "tests/bench/bench_run/codec_speed.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numbers>
#include <span>
#include <thread>

#include "absl/functional/function_ref.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/layout.h"
#include "core/random.h"
#include "tests/bench/bench_run/codec_ceilings.h"

namespace causeway::codecs {
namespace {

constexpr SpeedOperation kAllOperations[] = {SpeedOperation::kEncodeFeedback, SpeedOperation::kEncode,
                                             SpeedOperation::kDecode, SpeedOperation::kDecodeAdd};
constexpr int kBytesPerValue[] = {12, 4, 4, 8};

// Long enough for a median that repeats to a percent, short enough for hundreds of rows.
constexpr double kSecondsPerRow = 0.5;
constexpr int kMinPairs = 7;
constexpr int kMaxPairs = 201;

constexpr float kBeta = 0.95f;
constexpr float kWeight = 1e-3f;
constexpr float kFeedbackGain = 1.25f;
constexpr Rotation kRotation = {7, 0};

// Memory as in an ordinary program: normal pages, aligned to one.
class Floats {
 public:
  explicit Floats(int64_t count) : count_(count) {
    constexpr size_t kPageBytes = 4096;
    data_.reset(static_cast<float*>(std::aligned_alloc(kPageBytes, count * sizeof(float))));
    CHECK(data_ != nullptr);
    std::fill_n(data_.get(), count, 0.0f);
  }
  float* data() { return data_.get(); }
  std::span<float> all() { return {data_.get(), static_cast<size_t>(count_)}; }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float[], Free> data_;
  int64_t count_;
};

// Runs a piece of work on all its threads at once, the caller's among them.
class Crew {
 public:
  explicit Crew(int threads) : barrier_(threads) {
    for (int t = 1; t < threads; ++t) {
      others_.emplace_back([this, t] {
        while (true) {
          barrier_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)(t);
          barrier_.arrive_and_wait();
        }
      });
    }
  }
  ~Crew() {
    work_ = nullptr;
    barrier_.arrive_and_wait();
  }

  int threads() const { return static_cast<int>(others_.size()) + 1; }

  double Seconds(absl::FunctionRef<void(int thread)> work) {
    work_ = &work;
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    barrier_.arrive_and_wait();
    work(0);
    barrier_.arrive_and_wait();
    return core::SystemClock().SecondsSince(begin);
  }

 private:
  std::barrier<> barrier_;
  absl::FunctionRef<void(int)>* work_ = nullptr;
  std::vector<std::jthread> others_;  // last: they end before what they use
};

double Median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

simd::Ceilings BestCeilings() {
  if (Supported(Target::kAvx512)) return simd::Avx512Ceilings();
  if (Supported(Target::kAvx2)) return simd::Avx2Ceilings();
  return {};
}

// The memory of one size, and the operations on it.
class Bench {
 public:
  Bench(int64_t values, Crew& crew)
      : units_(values / core::kUnitValues),
        crew_(crew),
        input_(this->values()),
        residual_(this->values()),
        output_(this->values()) {
    for (size_t i = 0; i < input_.all().size(); i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - core::UnitInterval(core::SplitMix64(i))));
      const double angle = 2 * std::numbers::pi * core::UnitInterval(core::SplitMix64(i + 1));
      input_.data()[i] = static_cast<float>(radius * std::cos(angle));
      input_.data()[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }

  int64_t values() const { return units_ * core::kUnitValues; }

  // Prepares the input of decoding, and the residual of the first version.
  void Prepare(const Codec& codec) {
    scales_.resize(codec.ScaleBytes(values()));
    codes_.resize(codec.CodeBytes(values()));
    std::ranges::fill(residual_.all(), 0.0f);
    std::ranges::fill(output_.all(), 0.0f);
    crew_.Seconds([&](int thread) { Operate(codec, SpeedOperation::kEncodeFeedback, ShareOf(thread)); });
  }

  // Seconds of the ceiling and of the operation.
  std::pair<double, double> Pair(const Codec& codec, SpeedOperation operation) {
    const double ceiling = crew_.Seconds([&](int thread) { Ceiling(operation, ShareOf(thread)); });
    return {ceiling, crew_.Seconds([&](int thread) { Operate(codec, operation, ShareOf(thread)); })};
  }

 private:
  struct Share {
    int64_t unit, at, count;
  };

  Share ShareOf(int thread) const {
    const int64_t begin = units_ * thread / crew_.threads(), end = units_ * (thread + 1) / crew_.threads();
    return {begin, begin * core::kUnitValues, (end - begin) * core::kUnitValues};
  }

  void Operate(const Codec& codec, SpeedOperation operation, const Share& share) {
    uint8_t* scales = scales_.data() + codec.ScaleOffset(share.unit);
    uint8_t* codes = codes_.data() + codec.CodeOffset(share.unit);
    std::optional<Rotation> rotation;
    if (codec.rotates()) rotation = {kRotation.seed, share.unit * core::kBlocksPerUnit};
    if (operation == SpeedOperation::kDecode || operation == SpeedOperation::kDecodeAdd) {
      DecodeJob job = {.scales = scales,
                       .codes = codes,
                       .rotation = rotation,
                       .values = output_.data() + share.at,
                       .count = share.count};
      if (operation == SpeedOperation::kDecodeAdd) job.add = kWeight;
      codec.Decode(job);
      return;
    }
    EncodeJob job = {.values = input_.data() + share.at,
                     .count = share.count,
                     .rotation = rotation,
                     .scales = scales,
                     .codes = codes};
    if (operation == SpeedOperation::kEncodeFeedback) {
      job.beta = kBeta;
      job.residual = job.next_residual = residual_.data() + share.at;
      job.gain = kFeedbackGain;
    }
    CHECK(codec.Encode(job));
  }

  void Ceiling(SpeedOperation operation, const Share& share) {
    if (ceilings_.add == nullptr) return;
    float* output = output_.data() + share.at;
    switch (operation) {
      case SpeedOperation::kEncodeFeedback: return ceilings_.add(output, input_.data() + share.at, share.count);
      case SpeedOperation::kEncode: CHECK(std::isfinite(ceilings_.read(input_.data() + share.at, share.count))); return;
      case SpeedOperation::kDecode: return ceilings_.fill(output, share.count);
      case SpeedOperation::kDecodeAdd: return ceilings_.scale(output, share.count);
    }
  }

  const simd::Ceilings ceilings_ = BestCeilings();
  int64_t units_;
  Crew& crew_;
  Floats input_, residual_, output_;
  std::vector<uint8_t> scales_, codes_;
};

// Fills in the measurements.
void Measure(Bench& bench, SpeedRow& row) {
  const Codec& codec = GetCodec(row.codec, row.target);
  std::vector<double> ratios, ceilings, seconds;
  double spent = 0;
  while (static_cast<int>(ratios.size()) < kMinPairs ||
         (spent < kSecondsPerRow && static_cast<int>(ratios.size()) < kMaxPairs)) {
    const auto [ceiling, operation] = bench.Pair(codec, row.operation);
    ratios.push_back(ceiling / operation);
    ceilings.push_back(ceiling);
    seconds.push_back(operation);
    spent += ceiling + operation;
  }
  const auto values = static_cast<double>(bench.values());
  const int bytes = kBytesPerValue[static_cast<size_t>(row.operation)];
  row.pairs = static_cast<int>(ratios.size());
  row.gigavalues_per_s = values / Median(seconds) / 1e9;
  row.gigabytes_per_s = bytes * row.gigavalues_per_s;
  if (BestCeilings().add == nullptr) return;
  row.ratio = Median(ratios);
  row.ceiling_gigabytes_per_s = bytes * values / Median(ceilings) / 1e9;
}

}  // namespace

const char* SpeedOperationName(SpeedOperation operation) {
  constexpr const char* kNames[] = {"encode_feedback", "encode", "decode", "decode_add"};
  return kNames[static_cast<size_t>(operation)];
}

void MeasureSpeed(const SpeedOptions& options, absl::FunctionRef<void(const SpeedRow&)> row) {
  for (int64_t megabytes : options.megabytes) {
    for (int threads : options.threads) {
      Crew crew(threads);
      Bench bench(megabytes * 1'000'000 / static_cast<int64_t>(sizeof(float)), crew);
      for (core::CodecId id : options.codecs) {
        if (threads > 1 && id == core::CodecId::kOnebitAdamSign) continue;  // one scale, which a thread alone may write
        bench.Prepare(GetCodec(id));
        for (Target target : options.targets) {
          if (&GetCodec(id, target) == &GetCodec(id, Target::kScalar) && target != options.targets.front()) continue;
          for (SpeedOperation operation : kAllOperations) {
            SpeedRow measured = {megabytes, threads, target, id, operation};
            Measure(bench, measured);
            row(measured);
          }
        }
      }
    }
  }
}

}  // namespace causeway::codecs
