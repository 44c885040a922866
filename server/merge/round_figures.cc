#include "server/merge/round_figures.h"

#include <algorithm>
#include <array>

#include "codecs/block_format.h"
#include "core/aligned.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::server {
namespace {

constexpr int64_t kRunValues = 2048;
constexpr int kRunLanes = 32;
static_assert(kTileValues % kRunValues == 0);

constexpr int64_t kSampledTiles = 16;  // at least, where there are as many
constexpr int64_t kLargestStride = 128;

// Between these, rounding and overflow of a float lane are negligible compared with the sum.
constexpr double kSmallestRun = 0x1p-80;
constexpr double kLargestRun = 0x1p80;

constexpr float kSmallestUndone = 0x1p-8f;  // μ

bool Ordinary(double squares) { return squares >= kSmallestRun && squares <= kLargestRun; }

struct RunLanes {
  alignas(core::kCacheLineBytes) std::array<float, kRunLanes> gg, gv, vv;
};

// Takes the outer step of a run, and computes its sums.
CAUSEWAY_MULTIVERSION
void StepOfRun(float mu, float minus_eta, float gain, const float* __restrict gradient, float* __restrict momentum,
               float* __restrict anchor, RunLanes* __restrict sums) {
  float gg[kRunLanes] = {}, gv[kRunLanes] = {}, vv[kRunLanes] = {};
  for (int64_t i = 0; i < kRunValues; i += kRunLanes) {
    for (int l = 0; l < kRunLanes; ++l) {
      const float g = gradient[i + l];
      float v = momentum[i + l];
      gg[l] = std::fma(g, g, gg[l]);
      gv[l] = std::fma(g, v, gv[l]);
      vv[l] = std::fma(v, v, vv[l]);
      float w = anchor[i + l];
      core::StepValue(mu, minus_eta, gain, g, v, w);
      momentum[i + l] = v;
      anchor[i + l] = w;
    }
  }
  std::copy_n(gg, kRunLanes, sums->gg.data());
  std::copy_n(gv, kRunLanes, sums->gv.data());
  std::copy_n(vv, kRunLanes, sums->vv.data());
}

template <typename Lanes>
double Folded(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// The product of two floats is exact in double, and Σ of 2^40 of them within its range.
CAUSEWAY_MULTIVERSION
void DoubleLanes(const float* gradient, const float* momentum, size_t values, StepProducts* sums) {
  double gg[kRunLanes] = {}, gv[kRunLanes] = {}, vv[kRunLanes] = {};
  const size_t whole = values / kRunLanes * kRunLanes;
  for (size_t i = 0; i < whole; i += kRunLanes) {
    for (int l = 0; l < kRunLanes; ++l) {
      const double g = gradient[i + l], v = momentum[i + l];
      gg[l] += g * g;
      gv[l] += g * v;
      vv[l] += v * v;
    }
  }
  for (size_t i = whole; i < values; ++i) {
    const double g = gradient[i], v = momentum[i];
    gg[i - whole] += g * g;
    gv[i - whole] += g * v;
    vv[i - whole] += v * v;
  }
  *sums = {Folded(gg), Folded(gv), Folded(vv)};
}

// v as it was before a run's step.
class MomentumBefore {
 public:
  explicit MomentumBefore(float mu) : mu_(mu) {}

  void Keep(std::span<const float> momentum) {
    if (mu_ < kSmallestUndone) std::ranges::copy(momentum, values_.begin());
  }
  // Reconstructed after the step. It is off by 2^-24 g / μ, which does not matter: all figures are shares of ‖g‖.
  const float* After(std::span<const float> gradient, std::span<const float> momentum) {
    if (mu_ >= kSmallestUndone) {
      for (size_t i = 0; i < momentum.size(); ++i) values_[i] = (momentum[i] - gradient[i]) / mu_;
    }
    return values_.data();
  }

 private:
  const float mu_;
  alignas(core::kCacheLineBytes) std::array<float, kRunValues> values_;
};

// Σ a b over whole blocks.
CAUSEWAY_MULTIVERSION
double Product(const float* a, const float* b, size_t values) {
  double sum = 0;
  for (size_t at = 0; at < values; at += core::kBlockValues) {
    sum += codecs::SumOverBlock<double>(
        [a, b, at](int i, double lane) { return lane + double{a[at + i]} * double{b[at + i]}; });
  }
  return sum;
}

}  // namespace

void StepProducts::Add(const StepProducts& other) {
  gg += other.gg;
  gv += other.gv;
  vv += other.vv;
}

StepProducts MeasuredOuterStep(const core::OuterParameters& outer, std::span<const float> gradient,
                               std::span<float> momentum, std::span<float> anchor) {
  CHECK(gradient.size() == momentum.size() && gradient.size() == anchor.size());
  MomentumBefore before(outer.momentum);
  RunLanes lanes;
  StepProducts sums;
  for (size_t at = 0; at < gradient.size(); at += kRunValues) {
    const size_t count = std::min<size_t>(kRunValues, gradient.size() - at);
    const std::span<const float> g = gradient.subspan(at, count);
    const std::span<float> v = momentum.subspan(at, count), w = anchor.subspan(at, count);
    StepProducts run;
    if (count < kRunValues) {
      DoubleLanes(g.data(), v.data(), count, &run);
      core::OuterStep(outer, g, v, w);
    } else {
      before.Keep(v);
      StepOfRun(outer.momentum, -outer.lr, outer.gain, g.data(), v.data(), w.data(), &lanes);
      run = {Folded(lanes.gg), Folded(lanes.gv), Folded(lanes.vv)};
      if (!Ordinary(run.gg) || !Ordinary(run.vv)) DoubleLanes(g.data(), before.After(g, v), count, &run);
    }
    sums.Add(run);
  }
  return sums;
}

void Agreements::Add(const Agreements& other) {
  CHECK(dx.size() == other.dx.size());
  xx += other.xx;
  for (size_t m = 0; m < dx.size(); ++m) dx[m] += other.dx[m];
  for (size_t m = 0; m < dd.size(); ++m) dd[m] += other.dd[m];
}

std::vector<double> Agreements::Cosines() const {
  std::vector<double> cosines;
  for (size_t m = 0; m < dx.size(); ++m) {
    const double length = std::sqrt(dd[m]) * std::sqrt(xx);
    cosines.push_back(length > 0 ? std::clamp(dx[m] / length, -1.0, 1.0) : std::nan(""));
  }
  return cosines;
}

// Tiles are at most kTileUnits long, so that one begins in each whole group of that many units.
TileSample::TileSample(const core::Fragment& fragment, core::Version base)
    : stride_(std::clamp<int64_t>(fragment.padded_values() / kTileValues / kSampledTiles, 1, kLargestStride)),
      offset_(base % stride_) {}

std::optional<Tile> TileSample::Of(const Tile& tile) const {
  if (tile.first_unit / kTileUnits % stride_ != offset_) return std::nullopt;
  return Tile{tile.first_unit, stride_ == 1 ? tile.values : std::min(tile.values, core::kUnitValues)};
}

void AddAgreements(const Tile& tile, std::span<const ContributionReader> readers, std::span<const float> mean,
                   Agreements& agreements) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> buffer;
  const std::span<float> d(buffer.data(), tile.values_in_blocks());
  CHECK(mean.size() >= d.size() && readers.size() == agreements.dx.size());
  agreements.xx += Product(mean.data(), mean.data(), d.size());
  for (size_t m = 0; m < readers.size(); ++m) {
    ContributionReader reader = readers[m];
    reader.SeekTo(tile.first_unit);
    std::ranges::fill(d, 0.0f);
    reader.DecodeAdd(tile, 1.0f, d);
    agreements.dx[m] += Product(d.data(), mean.data(), d.size());
    agreements.dd[m] += Product(d.data(), d.data(), d.size());
  }
}

}  // namespace causeway::server
