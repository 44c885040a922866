// The specification of Collectives, for every implementation: each operation, at sizes around those where something
// changes, in worlds of one to four ranks. A file instantiates it with its implementations.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "tests/worker/ranks/ranks_under_test.h"

namespace causeway::worker {

inline constexpr Collectives::Timeout kLong = std::chrono::seconds(60);

class CollectivesSuite : public ::testing::TestWithParam<std::tuple<Implementation, int>> {
 protected:
  int world() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (world() > std::get<0>(GetParam()).most_ranks) GTEST_SKIP() << "this implementation has fewer ranks here";
    if (const auto& why_not = std::get<0>(GetParam()).why_not) {
      if (const std::string reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
    }
    ranks_ = std::get<0>(GetParam()).make(world());
  }

  // None, one, around a unit of 4096 values, and as many as are sent in pieces.
  static void ForEachSize(const std::function<void(size_t size)>& body) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
      SCOPED_TRACE(absl::StrCat(size, " values"));
      body(size);
    }
  }

  // A value that float32 sums exactly in any order: small integers.
  static float Value(int rank, size_t i) { return static_cast<float>((rank + 1) * static_cast<int>(i % 1009)); }
  static std::vector<float> Values(int rank, size_t size) {
    std::vector<float> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = Value(rank, i);
    return values;
  }
  float Sum(size_t i) const {
    float sum = 0;
    for (int rank = 0; rank < world(); ++rank) sum += Value(rank, i);
    return sum;
  }

  std::span<float> Put(int rank, const std::vector<float>& values) {
    const std::span<std::byte> bytes = ranks_[rank].memory->Put(std::as_bytes(std::span(values)));
    return {reinterpret_cast<float*>(bytes.data()), values.size()};
  }
  std::vector<float> Get(int rank, std::span<const float> values) {
    const std::vector<std::byte> bytes = ranks_[rank].memory->Get(std::as_bytes(values));
    std::vector<float> result(values.size());
    if (!result.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  void OnAll(const std::function<absl::Status(int rank, Collectives& collectives)>& body) {
    const std::vector<absl::Status> statuses =
        OnRanks(world(), [&](int rank) { return body(rank, *ranks_[rank].collectives); });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }

  std::vector<RankUnderTest> ranks_;
};

TEST_P(CollectivesSuite, AllReduceGivesEachRankTheSum) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> values = Put(rank, Values(rank, size));
      RETURN_IF_ERROR(collectives.Await(collectives.AllReduce(values), kLong));
      const std::vector<float> got = Get(rank, values);
      for (size_t i = 0; i < size; ++i) {
        if (got[i] != Sum(i)) return absl::InternalError(absl::StrCat("rank ", rank, " has ", got[i], " at ", i));
      }
      return absl::OkStatus();
    });
  });
}

TEST_P(CollectivesSuite, ReduceScatterGivesEachRankItsPartOfTheSum) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> values = Put(rank, Values(rank, size * world()));
      const std::span<float> part = Put(rank, std::vector<float>(size, -1));
      RETURN_IF_ERROR(collectives.Await(collectives.ReduceScatter(values, part), kLong));
      const std::vector<float> got = Get(rank, part);
      for (size_t i = 0; i < size; ++i) {
        if (got[i] != Sum(size * rank + i)) return absl::InternalError(absl::StrCat(got[i], " at ", i));
      }
      return absl::OkStatus();
    });
  });
}

TEST_P(CollectivesSuite, AllGatherGivesEachRankAllParts) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> part = Put(rank, Values(rank, size));
      const std::span<float> all = Put(rank, std::vector<float>(size * world(), -1));
      RETURN_IF_ERROR(collectives.Await(collectives.AllGather(BytesOf(part), BytesOf(all)), kLong));
      const std::vector<float> got = Get(rank, all);
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != Value(static_cast<int>(i / size), i % size)) return absl::InternalError(absl::StrCat("at ", i));
      }
      return absl::OkStatus();
    });
  });
}

TEST_P(CollectivesSuite, AllToAllGivesEachRankItsPartOfEachRanks) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> parts = Put(rank, Values(rank, size * world()));
      const std::span<float> received = Put(rank, std::vector<float>(size * world(), -1));
      const auto bytes = BytesOf(std::span<const float>(parts));
      RETURN_IF_ERROR(collectives.Await(collectives.AllToAll(bytes, BytesOf(received)), kLong));
      const std::vector<float> got = Get(rank, received);
      for (size_t i = 0; i < got.size(); ++i) {
        const float expected = Value(static_cast<int>(i / size), size * rank + i % size);
        if (got[i] != expected) return absl::InternalError(absl::StrCat("rank ", rank, " has ", got[i], " at ", i));
      }
      return absl::OkStatus();
    });
  });
}

TEST_P(CollectivesSuite, BroadcastGivesEachRankTheRootsBytes) {
  ForEachSize([&](size_t size) {
    for (int root = 0; root < world(); ++root) {
      OnAll([&](int rank, Collectives& collectives) -> absl::Status {
        const std::span<float> values = Put(rank, Values(rank, size));
        RETURN_IF_ERROR(collectives.Await(collectives.Broadcast(BytesOf(values), root), kLong));
        return Get(rank, values) == Values(root, size) ? absl::OkStatus() : absl::InternalError("other bytes");
      });
    }
  });
}

TEST_P(CollectivesSuite, SendGivesAnotherRankTheBytes) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> values = Put(rank, Values(rank, size));
      Collectives::Ticket last = 0;
      if (rank > 0) last = collectives.Receive(BytesOf(values), rank - 1);
      if (rank + 1 < world()) last = collectives.Send(BytesOf(std::span<const float>(values)), rank + 1);
      if (last > 0) RETURN_IF_ERROR(collectives.Await(last, kLong));
      return Get(rank, values) == Values(0, size) ? absl::OkStatus() : absl::InternalError("other bytes");
    });
  });
}

TEST_P(CollectivesSuite, OperationsThatWereAskedForTogetherAreDoneInTheirOrder) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      const std::span<float> first = Put(rank, Values(rank, size));
      const std::span<float> second = Put(rank, Values(rank, 17));
      collectives.AllReduce(first);
      collectives.Broadcast(BytesOf(first), world() - 1);
      const Collectives::Ticket barrier = collectives.Barrier();
      const Collectives::Ticket last = collectives.AllReduce(second);
      RETURN_IF_ERROR(collectives.Await(last, kLong));
      RETURN_IF_ERROR(collectives.Await(barrier, kLong));
      for (size_t i = 0; i < size; ++i) {
        if (Get(rank, first.subspan(i, 1))[0] != Sum(i)) return absl::InternalError(absl::StrCat("at ", i));
        if (i > 4) break;
      }
      return Get(rank, second)[16] == Sum(16) ? absl::OkStatus() : absl::InternalError("the last is wrong");
    });
  });
}

TEST_P(CollectivesSuite, SplitMakesGroupsThatMeetByThemselves) {
  ForEachSize([&](size_t size) {
    OnAll([&](int rank, Collectives& collectives) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> group, collectives.Split(rank % 2, kLong));
      if (group->world() != (world() + 1 - rank % 2) / 2 || group->rank() != rank / 2) {
        return absl::InternalError(absl::StrCat("rank ", group->rank(), " of ", group->world()));
      }
      const std::span<float> values = Put(rank, Values(rank, size));
      const Collectives::Ticket reduced = group->AllReduce(values);
      const std::span<float> beside = Put(rank, Values(rank, 8));
      RETURN_IF_ERROR(collectives.Await(collectives.AllReduce(beside), kLong));  // the parent goes on
      RETURN_IF_ERROR(group->Await(reduced, kLong));
      const std::vector<float> got = Get(rank, values);
      for (size_t i = 0; i < size; ++i) {
        float sum = 0;
        for (int other = rank % 2; other < world(); other += 2) sum += Value(other, i);
        if (got[i] != sum) return absl::InternalError(absl::StrCat("at ", i));
      }
      return Get(rank, beside)[7] == Sum(7) ? absl::OkStatus() : absl::InternalError("the parent's sum is wrong");
    });
  });
}

inline std::string SuiteName(const ::testing::TestParamInfo<CollectivesSuite::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param), "_ranks");
}

}  // namespace causeway::worker
