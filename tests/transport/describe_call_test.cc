#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "transport/control_session.h"

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;

const Address kThere{"hub", 7000};

v1::RunDescription OfShard(int shard, int num_shards) {
  v1::RunDescription description;
  description.set_shard(shard);
  description.set_num_shards(num_shards);
  return description;
}

TEST(MeaningOfAnAnswer, TheShardThatIsExpectedIsTheRun) {
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(1, 3), {1, 3}, kThere).ok());
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(0, 1), {0, 1}, kThere).ok());
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(0, 0), {0, 1}, kThere).ok()) << "a coordinator of before shards";
}

TEST(MeaningOfAnAnswer, AnotherShardIsRefusedWithBothAndTheFlag) {
  for (const auto& other : {OfShard(2, 3), OfShard(1, 2), OfShard(0, 0)}) {
    const absl::Status meaning = MeaningOf(grpc::Status::OK, other, {1, 3}, kThere);
    EXPECT_TRUE(absl::IsPermissionDenied(meaning)) << meaning;
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("expected shard 1 of 3 at hub:7000, this is shard "));
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("--coordinator"));
  }
}

TEST(MeaningOfAnAnswer, RefusalsAndOtherProgramsAreFinalAndAllElseIsAskedAgain) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status meaning = MeaningOf({static_cast<grpc::StatusCode>(code), "why"}, {}, {}, kThere);
    const bool final_answer = code == grpc::StatusCode::UNIMPLEMENTED ||
                              code == grpc::StatusCode::FAILED_PRECONDITION ||
                              code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::UNAUTHENTICATED;
    EXPECT_EQ(absl::IsPermissionDenied(meaning), final_answer) << meaning;
    EXPECT_EQ(absl::IsUnavailable(meaning), !final_answer) << meaning;
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("why"));
  }
}

}  // namespace
}  // namespace causeway::transport
