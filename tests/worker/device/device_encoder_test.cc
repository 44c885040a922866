#include "worker/device/device_encoder.h"

#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <thread>

#include "core/fragment_map.h"
#include "core/random.h"
#include "replica/host_store.h"
#include "replica/replica.h"
#include "tests/worker/device/fake_backend.h"
#include "worker/device/staged_copies.h"
#include "worker/site/movers.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

constexpr core::CodecId kCodecs[] = {
    core::CodecId::kFloat32,    core::CodecId::kBfloat16, core::CodecId::kInt8,        core::CodecId::kInt4,
    core::CodecId::kE3m0,       core::CodecId::kSign,     core::CodecId::kRotatedSign, core::CodecId::kRotatedLm2,
    core::CodecId::kRotatedLm4, core::CodecId::kTopk,     core::CodecId::kTopk32};

// θ of a small model on a device, and the fragments that its contributions are made of.
class DeviceEncoderTest : public ::testing::Test {
 protected:
  explicit DeviceEncoderTest() {
    values_.resize(core::NumParameters(manifest_));
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = Noise(i, 1);
    theta_ = static_cast<float*>(*backend_.device().Allocate(values_.size() * sizeof(float)));
    Upload();
    place_of_ = [this](const replica::UnitRange& range) {
      const int64_t first = firsts_[range.tensor] + range.first * core::kUnitValues;
      const int64_t all = manifest_[range.tensor].NumValues() - range.first * core::kUnitValues;
      return ThetaGather::Place{theta_ + first, std::min(all, range.count * core::kUnitValues)};
    };
    MakeEncoder({.parameters = core::NumParameters(manifest_)});
  }
  ~DeviceEncoderTest() override {
    encoder_.reset();
    gather_.reset();
    backend_.device().Free(theta_);
  }

  void MakeEncoder(const DeviceEncoder::Options& options) {
    encoder_.reset();
    gather_ = std::make_unique<ThetaGather>(&backend_, place_of_);
    encoder_ = std::make_unique<DeviceEncoder>(
        &backend_,
        [this](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
          return gather_->Queue(ranges, to, taken);
        },
        options);
  }

  static float Noise(uint64_t i, uint64_t seed) {
    const auto bits = static_cast<int64_t>(core::HashCombine(seed, i) >> 40);
    return std::ldexp(static_cast<float>(bits - (int64_t{1} << 23)), -23 - static_cast<int>(i / 256 % 12));
  }

  void Upload() {
    backend_.device().CopyToDevice(offload::Queue::kCompute, theta_, values_.data(), values_.size() * sizeof(float));
    Await();
  }
  void Await() {
    const auto done = backend_.device().MakeEvent();
    backend_.device().Record(done, offload::Queue::kCompute);
    backend_.device().AwaitOnHost(done);
  }

  // The fragment's θ on the host, in padded layout.
  std::vector<float> Staging(const core::Fragment& fragment) const {
    std::vector<float> staging(fragment.padded_values(), 0.0f);
    for (const core::TensorPlace& place : fragment.tensors) {
      std::copy_n(values_.begin() + firsts_[place.tensor] + place.begin_unit * core::kUnitValues, place.values,
                  staging.begin() + place.first_unit * core::kUnitValues);
    }
    return staging;
  }

  static core::RunConfig ConfigOf(core::CodecId codec, float feedback) {
    core::RunConfig config;
    config.codec.up = codec;
    config.codec.feedback_up = feedback;
    return config;
  }

  const core::Manifest manifest_ = {{"a", {3, 4000}}, {"b", {257}}, {"c", {5000}}};
  const std::vector<int64_t> firsts_ = core::FlatOffsets(manifest_);
  std::vector<float> values_;
  FakeBackend backend_{7};
  float* theta_ = nullptr;
  core::BufferPool pool_;
  ThetaGather::PlaceOf place_of_;
  std::unique_ptr<ThetaGather> gather_;
  std::unique_ptr<DeviceEncoder> encoder_;
};

TEST_F(DeviceEncoderTest, BytesAndResidualsOfManyRoundsAreTheCpuCodecs) {
  const auto map = core::FragmentMap::FromParts(manifest_, {{{0, 0, 2}}, {{0, 2}, {1}, {2}}});
  for (const core::CodecId codec : kCodecs) {
    for (const float feedback : {0.0f, 1.0f}) {
      for (core::FragmentId p = 0; p < map.num_fragments(); ++p) {
        const core::RunConfig config = ConfigOf(codec, feedback);
        replica::Replica there(map, p, config, &pool_), here(map, p, config, &pool_);
        for (int round = 0; round < 3; ++round) {
          for (size_t i = 0; i < values_.size(); ++i) values_[i] += Noise(i, 10 + round);
          Upload();
          const absl::StatusOr<int64_t> ticket = encoder_->BeginKeep(replica::RangesOf(map.fragment(p)));
          ASSERT_TRUE(ticket.ok()) << ticket.status();
          const std::vector<float> staging = Staging(map.fragment(p));
          // θ moves on while the contribution is encoded, on another thread.
          backend_.Launch(offload::Queue::kCompute,
                          FillKernel<float>{theta_, static_cast<int64_t>(values_.size()), 99});
          absl::StatusOr<std::vector<core::Bytes>> encoded;
          std::jthread([&] { encoded = there.EncodeKept(*encoder_, *ticket); }).join();
          encoder_->End(*ticket);
          ASSERT_TRUE(encoded.ok()) << encoded.status();
          EXPECT_EQ(*encoded, *here.EncodeContribution(staging)) << core::CodecName(codec) << ", round " << round;
          there.Resolve(/*merged=*/round != 1);
          here.Resolve(/*merged=*/round != 1);
          EXPECT_EQ(there.ResidualNorm(), here.ResidualNorm()) << core::CodecName(codec);
        }
      }
    }
  }
}

TEST_F(DeviceEncoderTest, ABadValueIsNamedWithItsTensor) {
  const core::FragmentMap map(manifest_, {{0, 1, 2}});
  values_[firsts_[2] + 4321] = std::numeric_limits<float>::quiet_NaN();
  Upload();
  replica::Replica replica(map, 0, ConfigOf(core::CodecId::kInt4, 1), &pool_);
  const auto ticket = encoder_->BeginKeep(replica::RangesOf(map.fragment(0)));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  const auto encoded = replica.EncodeKept(*encoder_, *ticket);
  encoder_->End(*ticket);
  EXPECT_TRUE(absl::IsInvalidArgument(encoded.status()));
  EXPECT_THAT(std::string(encoded.status().message()), HasSubstr("outer gradient of c is nan at index 4321"));
}

TEST_F(DeviceEncoderTest, EachWayGivesTheSameBytes) {
  const core::FragmentMap map(manifest_, {{0, 1, 2}});
  std::vector<std::vector<core::Bytes>> made;
  for (const auto way : {EncodeWay::kMapped, EncodeWay::kCopied}) {
    MakeEncoder({.way = way, .parameters = core::NumParameters(manifest_)});
    replica::Replica replica(map, 0, ConfigOf(core::CodecId::kInt4, 1), &pool_);
    const auto ticket = encoder_->BeginKeep(replica::RangesOf(map.fragment(0)));
    auto chunks = replica.EncodeKept(*encoder_, *ticket);
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    made.push_back(*std::move(chunks));
    encoder_->End(*ticket);
  }
  EXPECT_EQ(made[0], made[1]);
  const core::CodecId topk = core::CodecId::kTopk, onebit_adam = core::CodecId::kOnebitAdamSign;
  EXPECT_TRUE(encoder_->Takes(std::span(&topk, 1)));
  EXPECT_FALSE(encoder_->Takes(std::span(&onebit_adam, 1)));
  MakeEncoder({.way = EncodeWay::kHost});
  EXPECT_FALSE(encoder_->Takes(std::span(&topk, 1)));
}

TEST_F(DeviceEncoderTest, ChunksLieInMemoryThatTheDeviceWrites) {
  const core::FragmentMap map(manifest_, {{0, 1, 2}});
  replica::Replica replica(map, 0, ConfigOf(core::CodecId::kInt4, 1), &pool_);
  const size_t before = backend_.device().pinned();
  const auto ticket = encoder_->BeginKeep(replica::RangesOf(map.fragment(0)));
  const auto chunks = replica.EncodeKept(*encoder_, *ticket);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  EXPECT_EQ(backend_.device().pinned() - before, chunks->size() + 4)
      << "beside the word of bad blocks, and pieces of copies";
  for (const core::Bytes& chunk : *chunks) EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.data()) % 4096, 0u);
  encoder_->End(*ticket);
}

TEST_F(DeviceEncoderTest, AnAnchorIsThereForMovesWhileItsStampIsTheSame) {
  const core::FragmentMap map(manifest_, {{0}, {1, 2}});
  const replica::UnitRanges ranges = replica::RangesOf(map.fragment(1));
  const std::vector<float> anchor(map.fragment(1).padded_values(), 3.0f);
  EXPECT_EQ(encoder_->AnchorOf(ranges, 7), nullptr);
  ASSERT_TRUE(encoder_->TakeAnchor(ranges, anchor, 7).ok());
  const float* const there = encoder_->AnchorOf(ranges, 7);
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there[anchor.size() - 1], 3.0f);
  EXPECT_EQ(encoder_->AnchorOf(ranges, 8), nullptr);
  EXPECT_EQ(encoder_->AnchorOf(replica::RangesOf(map.fragment(0)), 7), nullptr);
  MakeEncoder({.memory = core::SyncMemory::kFragment});
  ASSERT_TRUE(encoder_->TakeAnchor(ranges, anchor, 7).ok());
  EXPECT_EQ(encoder_->AnchorOf(ranges, 7), nullptr);
}

// An allocation during a step would wait for it.
TEST_F(DeviceEncoderTest, ThetaOfTheFirstContributionFindsMemoryThatWasTakenWithTheAnchor) {
  const core::FragmentMap map(manifest_, {{0, 1, 2}});
  const replica::UnitRanges ranges = replica::RangesOf(map.fragment(0));
  const std::vector<float> anchor(map.fragment(0).padded_values(), 3.0f);
  ASSERT_TRUE(encoder_->TakeAnchor(ranges, anchor, 7).ok());
  const int64_t before = backend_.device().free_bytes();
  const auto ticket = encoder_->BeginKeep(ranges);
  ASSERT_TRUE(ticket.ok());
  const int64_t table = static_cast<int64_t>(ranges.size() * sizeof(GatherPiece));
  EXPECT_GE(backend_.device().free_bytes(), before - table);
  encoder_->End(*ticket);
}

// Device bytes beside θ after rounds of both fragments.
TEST_F(DeviceEncoderTest, AnchorsAndResidualsStayThereOrAreThoseOfOneFragment) {
  const core::FragmentMap map(manifest_, {{0}, {1, 2}});
  const core::RunConfig config = ConfigOf(core::CodecId::kInt4, 1);
  const int64_t largest = std::max(map.fragment(0).padded_values(), map.fragment(1).padded_values());
  const int64_t all = map.fragment(0).padded_values() + map.fragment(1).padded_values();
  for (const auto& [memory, values] :
       {std::pair{core::SyncMemory::kFragment, 3 * largest}, {core::SyncMemory::kAuto, largest + 2 * all}}) {
    encoder_.reset();
    gather_.reset();
    const int64_t before = backend_.device().free_bytes();
    MakeEncoder({.memory = memory, .parameters = core::NumParameters(manifest_)});
    std::vector<std::unique_ptr<replica::Replica>> replicas;
    for (core::FragmentId p = 0; p < 2; ++p) {
      replicas.push_back(std::make_unique<replica::Replica>(map, p, config, &pool_));
    }
    for (int round = 0; round < 5; ++round) {
      for (core::FragmentId p = 0; p < 2; ++p) {
        const auto ticket = encoder_->BeginKeep(replica::RangesOf(map.fragment(p)));
        ASSERT_TRUE(replicas[p]->EncodeKept(*encoder_, *ticket).ok());
        encoder_->End(*ticket);
        replicas[p]->Resolve(/*merged=*/true);
      }
    }
    const int64_t tables = 4 * static_cast<int64_t>(sizeof(GatherPiece));
    EXPECT_LE(before - backend_.device().free_bytes(), 4 * values + tables);
  }
}

// θ on the device for Movers.
class ThetaThere : public replica::ParameterStore {
 public:
  ThetaThere(std::vector<std::vector<float>> fragments, DeviceEncoder* encoder)
      : fragments_(std::move(fragments)), encoder_(encoder) {}

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override {
    std::ranges::copy(fragments_[ranges.front().tensor == 0 ? 0 : 1], staging.begin());
    return 0;
  }
  absl::Status AwaitRead(int64_t) override { return absl::OkStatus(); }
  replica::ThetaEncoder* encoder() override { return encoder_; }

 private:
  absl::Status DoMove(const replica::UnitRanges&, const replica::Movement&) override { return absl::OkStatus(); }

  const std::vector<std::vector<float>> fragments_;
  DeviceEncoder* const encoder_;
};

// Keeps what Movers reports.
struct Reports : MoverListener {
  void OnCopied(core::FragmentId) override {}
  void OnEncoded(core::FragmentId, Chunks chunks, const std::string& where) override {
    encoded.push_back(*chunks);
    places.push_back(where);
  }
  void OnAnchorPlaced(core::FragmentId, const core::AnchorDigest&) override { ++anchors; }
  void OnUpdateTaken(core::FragmentId, const core::AnchorDigest&, const std::string&) override {}
  void OnMoverFailed(const absl::Status& status) override { failures.push_back(std::string(status.message())); }

  std::vector<std::vector<core::Bytes>> encoded;
  std::vector<std::string> places, failures;
  int anchors = 0;
};

// Whichever allocation is the first that fails, the contribution is encoded on the host, and the next one on the
// device.
TEST_F(DeviceEncoderTest, ADeviceWithoutMemoryLeavesAContributionToTheHost) {
  const core::FragmentMap map(manifest_, {{0}, {1, 2}});
  const core::RunConfig config = ConfigOf(core::CodecId::kInt4, 1);
  const int64_t kept_bytes = 4 * map.fragment(1).padded_values(), plenty = int64_t{1} << 40;
  std::vector<int64_t> rooms = {3 * kept_bytes + 2 * static_cast<int64_t>(sizeof(GatherPiece))};  // but for a chunk's
  for (int eighths = 0; eighths <= 25; ++eighths) rooms.push_back(eighths * kept_bytes / 8);
  for (const core::SyncMemory memory : {core::SyncMemory::kAuto, core::SyncMemory::kFragment}) {
    std::set<std::string> places;
    for (const int64_t room : rooms) {
      backend_.device().SetMemory(plenty);
      MakeEncoder({.memory = memory, .parameters = core::NumParameters(manifest_)});
      ThetaThere store({Staging(map.fragment(0)), Staging(map.fragment(1))}, encoder_.get());
      Reports reports;
      replica::Replica here(map, 1, config, &pool_);
      here.SetInitial(Staging(map.fragment(1)));
      const core::RunSettings settings(config);
      Movers movers(map, settings, &store, &reports);
      for (const core::FragmentId p : {0, 1}) {  // the first one decides what stays on the device
        const auto payload = std::make_shared<Payload>();
        payload->header.already_held = true;
        payload->digest = *movers.OfferInitial(p);
        movers.PlaceAnchor({.fragment = p}, payload);
        movers.Finish();
        backend_.device().SetMemory(room);
      }
      EXPECT_EQ(reports.anchors, 2);
      for (int round = 0; round < 3; ++round) {
        if (round == 1) backend_.device().SetMemory(plenty);
        movers.ReadTheta(1);
        movers.Encode(1);
        movers.Resolve({.fragment = 1, .merged = true});
        movers.Finish();
        EXPECT_THAT(reports.failures, ::testing::IsEmpty()) << room;
        EXPECT_EQ(reports.encoded.back(), *here.EncodeContribution(Staging(map.fragment(1)))) << room;
        here.Resolve(/*merged=*/true);
      }
      places.insert(reports.places[0]);
      EXPECT_EQ(reports.places[1] + reports.places[2], "devicedevice");
    }
    EXPECT_EQ(places, (std::set<std::string>{"device", "host"}));
  }
}

}  // namespace
}  // namespace causeway::worker
