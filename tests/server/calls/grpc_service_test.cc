// The calls of one question and one answer, over gRPC: what operators and causewayctl ask.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class GrpcServiceTest : public testing::Test {
 protected:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Coordinator::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  Response Call(Method<Request, Response> method, const Request& request,
                grpc::StatusCode expected = grpc::StatusCode::OK) {
    grpc::ClientContext context;
    Response response;
    status_ = (run_.stub.get()->*method)(&context, request, &response);
    EXPECT_EQ(status_.error_code(), expected) << status_.error_message();
    return response;
  }
  template <typename Request>
  static Request Asked() {
    Request request;
    *request.mutable_context() = ContextForTest("");
    return request;
  }
  v1::ChangeRunResponse Change(v1::ChangeRunRequest::Change change, grpc::StatusCode expected = grpc::StatusCode::OK) {
    auto request = Asked<v1::ChangeRunRequest>();
    request.set_change(change);
    return Call(&v1::Coordinator::Stub::ChangeRun, request, expected);
  }
  void Drain(const std::string& site, grpc::StatusCode expected = grpc::StatusCode::OK) {
    auto request = Asked<v1::DrainRequest>();
    request.set_site(site);
    Call(&v1::Coordinator::Stub::DrainSite, request, expected);
  }
  std::vector<v1::HistoryEvent> History(int64_t after_id, int limit) {
    auto request = Asked<v1::HistoryRequest>();
    request.set_after_id(after_id);
    request.set_limit(limit);
    const auto response = Call(&v1::Coordinator::Stub::GetHistory, request);
    return {response.events().begin(), response.events().end()};
  }

  CoordinatorForTest run_;
  grpc::Status status_;
};

TEST_F(GrpcServiceTest, DescribeSaysWhichRunItIsAndItsVersionsOnceThereAre) {
  const auto request = Asked<v1::DescribeRequest>();
  v1::RunDescription run = Call(&v1::Coordinator::Stub::Describe, request);
  EXPECT_EQ(run.protocol(), transport::kProtocol);
  EXPECT_EQ(run.run_id(), "test");
  EXPECT_EQ(run.epoch(), 1u);
  EXPECT_FALSE(run.lineage().empty());
  EXPECT_EQ(run.num_shards(), 1);
  EXPECT_FALSE(run.has_manifest());
  run_.Start();
  run = Call(&v1::Coordinator::Stub::Describe, request);
  EXPECT_EQ(run.fragments_size(), 2);
  EXPECT_THAT(run.versions(), ElementsAre(0, 0));
}

TEST_F(GrpcServiceTest, StatusIsTheJsonThatHttpAnswers) {
  EXPECT_EQ(Call(&v1::Coordinator::Stub::GetStatus, v1::StatusRequest()).json(), "{}");
}

TEST_F(GrpcServiceTest, ChangesOfTheRunTakeEffectAndOnesThatChangeNothingAreRefused) {
  run_.Start();
  Change(v1::ChangeRunRequest::PAUSE);
  EXPECT_TRUE(run_.coordinator->Status().paused);
  Change(v1::ChangeRunRequest::PAUSE, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "the run is paused already");
  Change(v1::ChangeRunRequest::RESUME);
  EXPECT_FALSE(run_.coordinator->Status().paused);
  Change(v1::ChangeRunRequest::UNKNOWN, grpc::StatusCode::INVALID_ARGUMENT);
  Change(static_cast<v1::ChangeRunRequest::Change>(9), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_.error_message(), "expected pause, resume or stop, got 9");
  Change(v1::ChangeRunRequest::STOP);
  EXPECT_TRUE(run_.coordinator->Status().stopped);
}

TEST_F(GrpcServiceTest, DrainReachesASiteOfTheRunAndNamesOneThatIsNone) {
  run_.Start();
  Drain("c", grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "site c is not training: it is not in the run");
  Drain("a");
  EXPECT_EQ(run_.Read("a").drain().reason(), "an operator asked for it");
  Drain("a", grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "site a is not training: it is draining");
}

TEST_F(GrpcServiceTest, HistoryComesInPagesOldestFirst) {
  run_.Start();
  const auto all = History(0, 0);
  ASSERT_GT(all.size(), 5u);
  EXPECT_EQ(all[0].kind(), "start");
  EXPECT_EQ(all[0].text(), "epoch 1");
  EXPECT_EQ(all[0].fragment(), -1);
  const auto page = History(all[1].id(), 3);
  ASSERT_THAT(page, SizeIs(3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(page[i].SerializeAsString(), all[2 + i].SerializeAsString());
    EXPECT_GT(page[i].id(), all[1 + i].id());
  }
  EXPECT_THAT(History(all.back().id(), 0), SizeIs(0));
}

TEST_F(GrpcServiceTest, CallOfAnotherRunIsRefusedWhateverItAsks) {
  run_.Start();
  const auto other = [](auto request) {
    request.mutable_context()->set_run_id("other");
    return request;
  };
  constexpr auto kRefused = grpc::StatusCode::FAILED_PRECONDITION;
  v1::ChangeRunRequest pause = Asked<v1::ChangeRunRequest>();
  pause.set_change(v1::ChangeRunRequest::PAUSE);
  v1::DrainRequest drain = Asked<v1::DrainRequest>();
  drain.set_site("a");
  Call(&v1::Coordinator::Stub::Describe, other(Asked<v1::DescribeRequest>()), kRefused);
  Call(&v1::Coordinator::Stub::GetHistory, other(Asked<v1::HistoryRequest>()), kRefused);
  Call(&v1::Coordinator::Stub::ChangeRun, other(pause), kRefused);
  Call(&v1::Coordinator::Stub::DrainSite, other(drain), kRefused);
  EXPECT_THAT(status_.error_message(), HasSubstr("expected run test, got other"));
  EXPECT_FALSE(run_.coordinator->Status().paused);
  EXPECT_EQ(run_.coordinator->Status().sites[0].state, core::SiteState::kTraining);
}

}  // namespace
}  // namespace causeway::server
