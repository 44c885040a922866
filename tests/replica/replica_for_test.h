// One fragment of two tensors whose θ is in the test's hands, and its replica.
#pragma once

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/digest.h"
#include "core/random.h"
#include "replica/host_store.h"
#include "replica/replica.h"

namespace causeway::replica {

inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// One fragment of two tensors, each smaller than a unit.
class ReplicaTest : public ::testing::Test {
 protected:
  ReplicaTest() {
    config_.run_id = "test";
    config_.codec = {core::CodecId::kFloat32, core::CodecId::kFloat32, 0, 0};
    Make();
  }

  void Make() {
    replica_ = New(&pool_);
    replica_->SetInitial(Theta());
  }
  std::unique_ptr<Replica> New(core::BufferPool* pool) const {
    return std::make_unique<Replica>(map_, 0, config_, pool);
  }

  // θ as the movers read it.
  std::vector<float> Theta() {
    std::vector<float> staging(map_.fragment(0).padded_values());
    EXPECT_TRUE(store_.Read(ranges_, staging).ok());
    return staging;
  }

  // An update's chunks that carry `gradient` for every value.
  std::vector<std::string> UpdateOf(float gradient) const {
    return UpdateOf(std::vector<float>(map_.fragment(0).padded_values(), gradient));
  }
  std::vector<std::string> UpdateOf(const std::vector<float>& gradient) const {
    std::vector<std::string> chunks;
    for (const codecs::ChunkSpan& span : codecs::PlanChunks(map_.fragment(0), codecs::DownLeg(config_))) {
      chunks.push_back(*codecs::EncodeChunk(span, std::span(gradient).subspan(span.first_value(), span.values), {}));
    }
    return chunks;
  }

  // The download of an anchor.
  // The digest of the anchor that has this value everywhere, with its padding of zero.
  uint64_t DigestOf(float value) const {
    std::vector<float> padded(map_.fragment(0).padded_values());
    for (const core::TensorPlace& place : map_.fragment(0).tensors) {
      std::ranges::fill(PartOf(std::span(padded), place), value);
    }
    return core::DigestUnits(padded, 0);
  }

  std::vector<std::string> AnchorOf(float anchor, float momentum) const {
    std::vector<std::string> chunks = UpdateOf(anchor);
    for (std::string& chunk : UpdateOf(momentum)) chunks.push_back(std::move(chunk));
    return chunks;
  }

  std::vector<float> Random(uint64_t seed) const {
    std::vector<float> values(map_.fragment(0).padded_values());
    for (float& value : values) value = static_cast<float>(2 * core::UnitInterval(seed = core::SplitMix64(seed)) - 1);
    return values;
  }

  // The values that the coordinator would decode from a contribution.
  std::vector<float> Decoded(const std::vector<core::Bytes>& chunks) const {
    std::vector<float> all;
    for (const core::Bytes& bytes : chunks) {
      const codecs::ChunkView view = *codecs::ChunkView::Parse(bytes);
      std::vector<float> values(view.span().values);
      view.Decode(view.span().first_unit, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<float> Send() {
    std::vector<float> staging = Theta();
    return Decoded(*replica_->EncodeContribution(staging));
  }

  std::vector<float> first_ = {1, 1, 1};
  std::vector<float> second_ = {2, 2};
  core::FragmentMap map_{{{.name = "first", .shape = {3}, .layer = 0}, {.name = "second", .shape = {2}, .layer = 0}},
                         {{0, 1}}};
  const UnitRanges ranges_ = RangesOf(map_.fragment(0));
  HostStore store_{{first_, second_}, nullptr};
  core::RunConfig config_;
  core::BufferPool pool_;
  std::unique_ptr<Replica> replica_;
};

}  // namespace causeway::replica
