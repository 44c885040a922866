#include "transport/link_meter.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/run_config.h"
#include "transport/channel.h"
#include "transport/control_session.h"
#include "transport/grpc_link.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Direction = LinkMeter::Direction;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(LinkMeter, TakesTheDefaultWhileRateOrRoundTripIsUnknown) {
  LinkMeter meter;
  EXPECT_EQ(meter.channels(), kDefaultChannels);
  meter.Moved(Direction::kUp, 100'000'000, 1);
  EXPECT_EQ(meter.channels(), kDefaultChannels);
}

TEST(LinkMeter, ASlowOrNearLinkTakesOneConnection) {
  LinkMeter meter;
  meter.RoundTrip(0.05);
  meter.Moved(Direction::kUp, 2'000'000, 1.6);  // 10 Mbit/s
  EXPECT_EQ(meter.channels(), 1);
  LinkMeter near;
  near.RoundTrip(0.0002);
  near.Moved(Direction::kDown, 1'500'000, 1);
  EXPECT_EQ(near.channels(), 1);
}

TEST(LinkMeter, TakesUpToFourConnectionsThatHaveAMegabyteASecondEach) {
  for (const auto& [bytes_per_s, channels] : {std::pair(2'500'000, 2), {4'000'000, 4}, {1'000'000'000, 4}}) {
    LinkMeter meter;
    meter.RoundTrip(0.0002);
    meter.Moved(Direction::kDown, bytes_per_s, 1);
    EXPECT_EQ(meter.channels(), channels) << bytes_per_s;
  }
}

TEST(LinkMeter, ConnectionsThatAreTheLimitGrowInNumberUntilTheLinkIs) {
  // 1 Gbit/s and 100 ms hold 12.5 MB; each connection moves 2.8 MB in a round trip.
  LinkMeter meter;
  meter.RoundTrip(0.1);
  for (int transfer = 0; transfer < 50; ++transfer) {
    const double rate = std::min(125e6, meter.channels() * 2.8e6 / 0.1);
    meter.Moved(Direction::kDown, static_cast<int64_t>(rate), 1);
  }
  EXPECT_GE(meter.channels() * 2.8e6 / 0.1, 125e6);
  EXPECT_LE(meter.channels(), 6);
}

TEST(LinkMeter, NeverTakesMoreThanTheMost) {
  LinkMeter meter;
  meter.RoundTrip(0.3);
  meter.Moved(Direction::kUp, 10'000'000'000, 1);
  EXPECT_EQ(meter.channels(), kMaxChannels);
}

TEST(LinkMeter, FewerConnectionsAreTakenOnlyWhenTheyHaveSufficedForAWhile) {
  LinkMeter meter;
  meter.RoundTrip(0.1);
  meter.Moved(Direction::kUp, 200'000'000, 1);
  const int fast = meter.channels();
  for (int i = 0; i < 3; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.channels(), fast);
  for (int i = 0; i < 20; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.channels(), 1);
}

TEST(LinkMeter, AHeldRateTakesNoMoreConnectionsThanItFills) {
  LinkMeter meter;
  meter.RoundTrip(0.1);
  meter.Moved(Direction::kUp, 200'000'000, 1);
  ASSERT_GT(meter.channels(), 4);
  EXPECT_EQ(meter.ChannelsWithin(0), meter.channels()) << "no rate is held";
  EXPECT_EQ(meter.ChannelsWithin(1e9), meter.channels()) << "the held rate is beyond the link's";
  EXPECT_EQ(meter.ChannelsWithin(1e6), 1);
  EXPECT_EQ(meter.ChannelsWithin(56e6), 3) << "2.8 MB each in a round trip, and a quarter more";
}

TEST(LinkMeter, AQueueOnTheWayDoesNotCountAsDistance) {
  LinkMeter meter;
  for (double trip : {0.25, 0.05, 0.3}) meter.RoundTrip(trip);
  EXPECT_EQ(meter.progress().round_trip_s, 0.05);
}

TEST(LinkMeter, OneTransferThatABufferTookDoesNotHideASlowLink) {
  LinkMeter meter;
  meter.Moved(Direction::kUp, 1'000'000, 0.01);
  for (int i = 0; i < 2; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_LT(meter.progress().up_bytes_per_s, 2e6);
}

TEST(LinkMeter, TransfersOfAFewBytesSayNothingButWhatTheLinkHasAtLeast) {
  LinkMeter meter;
  meter.Moved(Direction::kUp, 1000, 0.1);
  EXPECT_EQ(meter.progress().up_bytes_per_s, 0);
  EXPECT_EQ(meter.progress().up_least_bytes_per_s, 10'000);
  meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.progress().up_bytes_per_s, 1e6);
  meter.MovedAtLeast(Direction::kDown, 1'000'000, 1);
  EXPECT_EQ(meter.progress().down_bytes_per_s, 0);
  EXPECT_EQ(meter.progress().down_least_bytes_per_s, 1e6);
  EXPECT_EQ(meter.progress().up_least_bytes_per_s, 10'000);
}

TEST(ByteMeter, CountsFromTheFirstByte) {
  ByteMeter meter;
  meter.Add(5);
  meter.Add(7);
  EXPECT_EQ(meter.total(), 12);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(ByteMeter, RateApproachesASteadyStreamAndFadesAfterIt) {
  ByteMeter meter;
  int64_t now_ms = 1000;
  meter.Sample(now_ms);
  for (int second = 0; second < 30; ++second) {
    meter.Add(500);
    meter.Sample(now_ms += 500);
  }
  EXPECT_NEAR(meter.bytes_per_s(), 1000, 1);
  double last = meter.bytes_per_s();
  for (int second = 0; second < 5; ++second) {
    meter.Sample(now_ms += 1000);
    EXPECT_LT(meter.bytes_per_s(), last);
    last = meter.bytes_per_s();
  }
  EXPECT_LT(last, 200);
  for (int second = 0; second < 30; ++second) meter.Sample(now_ms += 1000);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(ByteMeter, BurstShowsAtOnce) {
  ByteMeter meter;
  meter.Sample(1);
  meter.Add(1'000'000);
  meter.Sample(1001);
  EXPECT_GT(meter.bytes_per_s(), 250'000);
}

TEST(ByteMeter, TwoSamplesInOneInstantDoNotDivideByZero) {
  ByteMeter meter;
  meter.Sample(1);
  meter.Add(10);
  meter.Sample(1);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(Pacer, WithoutARateEverythingGoesAtOnce) {
  Pacer pacer(0);
  EXPECT_EQ(pacer.Reserve(1 << 30, 5), 5);
  EXPECT_EQ(pacer.Reserve(1 << 30, 6), 6);
}

TEST(Pacer, BytesWaitForThoseBeforeThem) {
  Pacer pacer(1e6);  // a byte a microsecond
  EXPECT_EQ(pacer.Reserve(1000, 0), 0);
  EXPECT_EQ(pacer.Reserve(500, 100), 1000);
  EXPECT_EQ(pacer.Reserve(1, 100), 1500);
}

TEST(Pacer, TimeWithoutTrafficIsNotSavedUp) {
  Pacer pacer(1e6);
  pacer.Reserve(1000, 0);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 9000);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 10000);
}

struct Grant {
  int64_t at_us;
  int64_t bytes;
};

// Transfers that ask at random moments for random sizes, in the order in which their bytes may go.
std::vector<Grant> Grants(double bytes_per_s, int64_t most_bytes, int64_t most_pause_us) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> bytes(1, most_bytes), pause_us(0, most_pause_us);
  Pacer pacer(bytes_per_s);
  std::vector<Grant> grants;
  int64_t now_us = 1'700'000'000'000'000;
  for (int i = 0; i < 1000; ++i) {
    now_us += pause_us(random);
    const int64_t size = bytes(random);
    grants.push_back({pacer.Reserve(size, now_us), size});
    EXPECT_GE(grants.back().at_us, now_us);
  }
  return grants;
}

TEST(Pacer, AtEveryInstantAtMostTheRatesBytesAndOneReservationHaveGone) {
  for (double bytes_per_s : {125.0, 3e6, 6e6, 1.25e9}) {
    for (int64_t most_bytes : {3, 1 << 20}) {
      for (int64_t most_pause_us : {0, 1000, 300'000}) {
        const std::vector<Grant> grants = Grants(bytes_per_s, most_bytes, most_pause_us);
        for (size_t from = 0; from < grants.size(); from += 37) {
          int64_t gone = 0;
          for (size_t i = from; i < grants.size(); ++i) {
            gone += grants[i].bytes;
            const double elapsed_s =
                1e-6 * static_cast<double>(grants[i].at_us + 1 - grants[from].at_us);  // a tick more
            ASSERT_LE(static_cast<double>(gone), bytes_per_s * elapsed_s + static_cast<double>(most_bytes))
                << bytes_per_s << " B/s, grants " << from << " to " << i;
          }
        }
      }
    }
  }
}

TEST(Pacer, TransfersThatAlwaysWaitGetTheWholeRate) {
  constexpr double kBytesPerS = 6e6;
  const std::vector<Grant> grants = Grants(kBytesPerS, 1 << 20, /*most_pause_us=*/0);
  int64_t before_last = 0;
  for (size_t i = 0; i + 1 < grants.size(); ++i) before_last += grants[i].bytes;
  const double expected_us = 1e6 * static_cast<double>(before_last) / kBytesPerS;
  EXPECT_NEAR(static_cast<double>(grants.back().at_us - grants.front().at_us), expected_us, 2);
}

TEST(Pacer, ARateOfNextToNothingHoldsForEver) {
  Pacer pacer(1e-12);
  for (int i = 0; i < 100; ++i) pacer.Reserve(1 << 20, 1000);
  EXPECT_GT(pacer.Reserve(1, 1000), int64_t{1} << 51);
}

// A link over real gRPC, once through a session. All that may go wrong is held in virtual time (virtual_*_test.cc).

core::Manifest ManifestForTest() { return {{"a", {300}, core::TensorKind::kMatrix, 0}}; }

// Welcomes every site, takes one chunk of an upload and gives out one of a download.
class OneChunkCoordinator final : public v1::Coordinator::Service {
 public:
  std::string uploaded;

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::RunDescription* run) override {
    run->set_run_id("run");
    return grpc::Status::OK;
  }
  grpc::Status Control(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::SiteMessage>* stream) override {
    v1::SiteMessage message;
    stream->Read(&message);
    v1::CoordinatorMessage answer;
    const auto map = *core::BuildFragmentMap(ManifestForTest(), 1, core::FragmentAssignment::kStrided);
    ToProto(map.manifest(), answer.mutable_welcome()->mutable_manifest());
    ToProto(map, answer.mutable_welcome()->mutable_fragments());
    stream->Write(answer);
    while (stream->Read(&message) && !message.has_leave()) continue;
    return grpc::Status::OK;
  }
  grpc::Status Upload(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::UploadReply, v1::UploadMessage>* stream) override {
    v1::UploadMessage header, chunk;
    stream->Read(&header);
    stream->Read(&chunk);
    uploaded = chunk.chunk();
    v1::UploadReply reply;
    reply.mutable_verdict()->set_admitted(true);
    stream->Write(reply);
    return grpc::Status::OK;
  }
  grpc::Status Download(grpc::ServerContext*, const v1::DownloadRequest*,
                        grpc::ServerWriter<v1::DownloadMessage>* writer) override {
    v1::DownloadMessage header, chunk, end;
    header.mutable_header()->set_num_chunks(1);
    chunk.set_chunk("down");
    end.mutable_end()->set_digest(7);
    for (const v1::DownloadMessage& message : {header, chunk, end}) writer->Write(message);
    return grpc::Status::OK;
  }
};

class WelcomedListener final : public LinkListener {
 public:
  Standing GetStanding() override { return {.joining = true}; }
  void OnWelcome(const Welcome&) override { welcomed.set_value(); }
  void OnSeedRequest() override {}
  void OnEntry(const core::Entry&) override {}
  void OnNotice(const std::string&) override {}
  void OnDrain(const std::string&) override {}
  void OnHold(bool) override {}
  void OnFailure(const absl::Status& status) override { ADD_FAILURE() << status; }

  std::promise<void> welcomed;
};

TEST(GrpcLinkTest, ASiteJoinsUploadsDownloadsAndLeaves) {
  OneChunkCoordinator coordinator;
  int port = 0;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  WelcomedListener listener;
  // It stays: gRPC's threads for callbacks end with the last channel, and gRPC 1.51 may crash when they do.
  static auto* const link = new GrpcLink({.coordinator = {"127.0.0.1", port}, .site = "a"});

  EXPECT_EQ(link->Describe([] { return false; })->run_id, "run");
  link->Start(ManifestForTest(), &listener);
  listener.welcomed.get_future().wait();
  std::promise<absl::Status> admitted, fetched;
  link->Upload({.chunks = std::make_shared<const std::vector<core::Bytes>>(1, std::string("up")),
                .done = [&](const absl::Status& status) { admitted.set_value(status); }});
  EXPECT_EQ(admitted.get_future().get(), absl::OkStatus());
  EXPECT_EQ(coordinator.uploaded, "up");
  std::vector<std::string> chunks;
  link->Download({.kind = DownloadKind::kAnchor,
                  .num_chunks = 1,
                  .on_header = [](const DownloadHeader&) {},
                  .on_chunk = [&](int, std::string chunk) { chunks.push_back(std::move(chunk)); },
                  .done =
                      [&](const absl::Status& status, uint64_t digest) {
                        EXPECT_EQ(digest, 7u);
                        fetched.set_value(status);
                      }});
  EXPECT_EQ(fetched.get_future().get(), absl::OkStatus());
  EXPECT_THAT(chunks, ElementsAre("down"));
  link->Leave(/*finished=*/true, "done");
  server->Shutdown();
}

TEST(CheckPlaintextAllowed, OnlyOnLoopbackUnlessAskedFor) {
  for (const char* host : {"localhost", "127.0.0.1", "127.255.0.9", "::1"}) {
    EXPECT_TRUE(CheckPlaintextAllowed({host, 1}, /*insecure=*/false).ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "eu.example.com", "::", "127.example.com", "127.0.0.1.example.com"}) {
    const absl::Status status = CheckPlaintextAllowed({host, 1}, /*insecure=*/false);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure")) << host;
    EXPECT_TRUE(CheckPlaintextAllowed({host, 1}, /*insecure=*/true).ok()) << host;
  }
}

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

constexpr KernelBuffers kLinuxDefaults = {.write = {4096, 16384, 4194304}, .read = {4096, 131072, 6291456}};

// With as many connections as the link chooses.
core::LinkProgress Link(double up_bytes_per_s, double down_bytes_per_s, double round_trip_s) {
  LinkMeter meter;
  meter.RoundTrip(round_trip_s);
  meter.Moved(LinkMeter::Direction::kUp, static_cast<int64_t>(up_bytes_per_s), 1);
  meter.Moved(LinkMeter::Direction::kDown, static_cast<int64_t>(down_bytes_per_s), 1);
  return meter.progress();
}

TEST(KernelBuffers, TheDefaultsAreEnoughForWhatSixteenConnectionsCarry) {
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 1.25e6, 0.2), kLinuxDefaults), "");   // 10 Mbit/s
  EXPECT_EQ(BufferAdvice(Link(118e6, 118e6, 0.1), kLinuxDefaults), "");     // 1 Gbit/s
  EXPECT_EQ(BufferAdvice(Link(350e6, 350e6, 0.1), kLinuxDefaults), "");     // nearly 16 times 2.8 MB, with some room
  EXPECT_EQ(BufferAdvice(Link(1.2e9, 1.2e9, 0.0002), kLinuxDefaults), "");  // 10 Gbit/s, next door
}

TEST(KernelBuffers, ALinkThatSixteenConnectionsCannotFillNamesTheSysctlAndTheSize) {
  // 1.25 × 4 Gbit/s × 200 ms in 16 connections: 7.8 MB in flight each, 11.7 MB of write buffer, 15.6 of read buffer.
  EXPECT_THAT(BufferAdvice(Link(500e6, 1e6, 0.2), kLinuxDefaults),
              AllOf(HasSubstr("4000 Mbit/s over 200 ms"), HasSubstr("net.ipv4.tcp_wmem allows 4194304"),
                    HasSubstr("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 12582912\""),
                    HasSubstr("net.ipv4.tcp_rmem at the coordinator"), Not(HasSubstr("sysctl -w net.ipv4.tcp_rmem"))));
  EXPECT_THAT(BufferAdvice(Link(1e6, 500e6, 0.2), kLinuxDefaults),
              HasSubstr("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 15728640\""));
}

TEST(KernelBuffers, MaximaBelowWhatAConnectionIsCountedOnForMatterWhereTheLinkNeedsThem) {
  KernelBuffers small = kLinuxDefaults;
  small.write.most = 1 << 20;
  EXPECT_THAT(BufferAdvice(Link(118e6, 118e6, 0.1), small), HasSubstr("sysctl -w net.ipv4.tcp_wmem"));
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 118e6, 0.001), small), "");
}

TEST(KernelBuffers, NothingIsSaidOfWhatIsNotKnown) {
  EXPECT_EQ(BufferAdvice(Link(500e6, 500e6, 0.2), {}), "");
  EXPECT_EQ(BufferAdvice({}, kLinuxDefaults), "");
}

TEST(KernelBuffers, ReadsTheThreeNumbersOfTheKernel) {
  const BufferSizes sizes = ParseBufferSizes("4096\t16384\t4194304\n");
  EXPECT_EQ(sizes.least, 4096);
  EXPECT_EQ(sizes.initial, 16384);
  EXPECT_EQ(sizes.most, 4194304);
  EXPECT_EQ(ParseBufferSizes("").most, 0);
  EXPECT_EQ(ParseBufferSizes("4096 many").most, 0);
}

}  // namespace
}  // namespace causeway::transport
