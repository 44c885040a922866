// The HTTP port, over real sockets.
#include "server/status/http_server.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include "core/thread.h"
#include "server/status/event_streams.h"
#include "server/status/page.h"
#include "tests/core/virtual_time.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int64_t NowMs() { return core::SystemClock().NowMs(); }

int Count(const std::string& text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class HttpServerTest : public ::testing::Test {
 protected:
  std::shared_ptr<httplib::Response> Get(const std::string& path) {
    httplib::Client client("127.0.0.1", server_->port());
    const httplib::Result result = client.Get(path);
    EXPECT_TRUE(result) << path;
    return result ? std::make_shared<httplib::Response>(*result) : std::make_shared<httplib::Response>();
  }

  int Connect() {  // -1: it could not
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
  }

  // A connection that has sent its request and will not read. -1: it could not.
  int Ask(const std::string& path) {
    const int fd = Connect();
    if (fd < 0) return fd;
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    return fd;
  }

  // Reads a stream until `enough` says so of all that came.
  std::string ReadEvents(const std::function<bool(const std::string&)>& enough) {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(10);
    std::string seen;
    client.Get("/events", [&](const char* data, size_t size) {
      seen.append(data, size);
      return !enough(seen);
    });
    return seen;
  }

  void AwaitStreams(int count) {
    const int64_t deadline_ms = NowMs() + 20'000;
    while (board_.event_streams() != count && NowMs() < deadline_ms) std::this_thread::yield();
    EXPECT_EQ(board_.event_streams(), count);
  }

  StatusBoard board_{{.version = "1.2.3", .host = {}}};
  std::unique_ptr<HttpServer> server_ = *HttpServer::Start("127.0.0.1", 0, &board_);
};

TEST_F(HttpServerTest, BeforeTheFirstPageProbesAreAnsweredAndReadersToldToComeAgain) {
  EXPECT_EQ(Get("/healthz")->status, 200);
  const auto ready = Get("/readyz");
  EXPECT_EQ(ready->status, 503);
  EXPECT_THAT(ready->body, HasSubstr("starts"));
  const auto status = Get("/status");
  EXPECT_EQ(status->status, 503);
  EXPECT_EQ(status->get_header_value("Retry-After"), "1");
}

TEST_F(HttpServerTest, AnswersWithWhatTheBoardSays) {
  board_.Publish(LargeSnapshot(2, 2));
  board_.SetReady();
  EXPECT_EQ(Get("/status")->body, *board_.Status());
  EXPECT_EQ(Get("/status?details=full")->body, *board_.Status(Details::kFull));
  EXPECT_EQ(Get("/timeline")->body, *board_.Timeline());
  EXPECT_EQ(Get("/metrics")->body, *board_.Metrics());
  EXPECT_THAT(Get("/metrics")->get_header_value("Content-Type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_EQ(Get("/readyz")->status, 200);
  EXPECT_EQ(Get("/healthz")->body, "ok\n");
  EXPECT_EQ(Get("/nothing")->status, 404);
}

TEST_F(HttpServerTest, RangesAreNotServed) {
  board_.Publish(LargeSnapshot(2, 2));
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 2'600; ++i) ranges += ",0-";
  httplib::Client client("127.0.0.1", server_->port());
  for (const char* path : {"/", "/status", "/metrics", "/healthz"}) {
    const httplib::Result result = client.Get(path, httplib::Headers{{"Range", ranges}});
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 200) << path;
    EXPECT_EQ(result->body, Get(path)->body) << path;
  }
}

TEST_F(HttpServerTest, ARequestForAnotherHostIsRefusedOnAllPathsAndSaysWhatWasExpected) {
  httplib::Client client("127.0.0.1", server_->port());
  for (const char* path : {"/", "/status", "/events", "/healthz", "/nothing"}) {
    const httplib::Result result = client.Get(path, httplib::Headers{{"Host", "elsewhere.example:7078"}});
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 421) << path;
    EXPECT_THAT(result->body,
                HasSubstr("expected an address, localhost or one of --http_hosts, got 'elsewhere.example:7078'"))
        << path;
  }
  server_ = *HttpServer::Start("127.0.0.1", 0, &board_, Serves::kAll, {"elsewhere.example"});
  httplib::Client again("127.0.0.1", server_->port());
  EXPECT_EQ(again.Get("/healthz", httplib::Headers{{"Host", "elsewhere.example:7078"}})->status, 200);
}

TEST_F(HttpServerTest, AFailureIsWhatTheProbesSay) {
  board_.Publish({.failure = "the disk is full"});
  const auto health = Get("/healthz");
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(health->body, "the disk is full\n");
}

TEST_F(HttpServerTest, ThePageMayLoadNothingFromElsewhereAndIsNotKept) {
  const auto page = Get("/");
  EXPECT_EQ(page->body, PageHtml());
  EXPECT_THAT(page->get_header_value("Content-Type"), StartsWith("text/html"));
  const std::string policy = page->get_header_value("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(policy, HasSubstr("script-src 'sha256-"));
  for (const char* path : {"/", "/status", "/metrics", "/nothing"}) {
    EXPECT_EQ(Get(path)->get_header_value("X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(Get(path)->get_header_value("Cache-Control"), "no-store") << path;
  }
}

TEST_F(HttpServerTest, AStreamBringsStatusAndTimelineAtOnceAndThenEachNewPage) {
  board_.Publish({.state = "training"});
  const std::string seen = ReadEvents([this](const std::string& seen) {
    board_.Publish({.state = "training"});  // so that there is something new each time
    return Count(seen, "event: status\ndata: {") >= 3;
  });
  EXPECT_THAT(seen, StartsWith("retry: 2000\n\nevent: status\ndata: {"));
  EXPECT_THAT(seen, HasSubstr("}\n\nevent: timeline\ndata: {"));
  AwaitStreams(0);  // the end of a stream frees its place
}

TEST_F(HttpServerTest, AStreamTellsNothingTwiceButThatItIsThere) {
  board_.Publish({.state = "training"});
  const std::string seen = ReadEvents([this, published = false](const std::string& seen) mutable {
    if (!published && Count(seen, "\n:\n\n") >= 3) {  // one of the seconds is even
      EXPECT_EQ(Count(seen, "event: status"), 1);
      EXPECT_EQ(Count(seen, "event: timeline"), 1);
      board_.Publish({.state = "done"});
      published = true;
    }
    return Count(seen, R"("state":"done")") > 0;
  });
  EXPECT_EQ(Count(seen, "event: status"), 2) << seen;
}

TEST_F(HttpServerTest, BeyondTheCapAPageIsToldToPoll) {
  board_.Publish({.state = "training"});
  std::vector<int> readers;
  for (int i = 0; i < kMaxEventStreams; ++i) readers.push_back(Ask("/events"));
  AwaitStreams(kMaxEventStreams);
  const auto refused = Get("/events");
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "2");
  EXPECT_EQ(Get("/status")->status, 200);
  close(readers.back());
  AwaitStreams(kMaxEventStreams - 1);
  readers.back() = Ask("/events");
  AwaitStreams(kMaxEventStreams);
  for (const int fd : readers) close(fd);
}

TEST_F(HttpServerTest, ReadersThatNeverReadHoldNobodyUpAndAreCut) {
  StatusSnapshot large = LargeSnapshot(64, 64);
  board_.Publish(large);
  board_.SetReady();
  std::vector<int> readers;
  for (int i = 0; i < 20; ++i) {
    readers.push_back(Ask("/events"));
    for (int j = 0; j < 5; ++j) readers.push_back(Ask("/status"));
  }
  AwaitStreams(20);
  int answered_before_a_cut = 0;
  const int64_t begun_ms = NowMs();
  int64_t published_ms = begun_ms;
  while (board_.event_streams() > 0 && NowMs() < begun_ms + 60'000) {
    const int64_t asked_ms = NowMs();
    EXPECT_EQ(Get("/healthz")->status, 200);
    if (board_.event_streams() == 20) ++answered_before_a_cut;
    if (asked_ms < published_ms + 250) continue;
    board_.Publish(large);  // as a coordinator does: a stream fills up with what is new
    published_ms = asked_ms;
  }
  EXPECT_EQ(board_.event_streams(), 0);
  EXPECT_GT(answered_before_a_cut, 0);  // how soon: tests/bench/run status
  for (const int fd : readers) close(fd);
}

TEST_F(HttpServerTest, ConnectionsBeyondTheBudgetAreToldToComeLaterAndSlowSendersAreCutInTime) {
  board_.SetReady();
  std::vector<int> senders;
  const int most = kMaxEventStreams + kRequestThreads + kWaitingConnections;
  for (int i = 0; i < most; ++i) {
    senders.push_back(Connect());
    ASSERT_EQ(send(senders.back(), "GET /healthz HTTP/1.1\r\nX: ", 26, 0), 26);
  }
  const int64_t begun_ms = NowMs();
  while (true) {  // the last of them may not be counted yet
    const auto refused = Get("/healthz");
    if (refused->status == 503) {
      EXPECT_EQ(refused->get_header_value("Retry-After"), "2");
      EXPECT_THAT(refused->body, HasSubstr("too many connections"));
      break;
    }
    ASSERT_LT(NowMs(), begun_ms + 20'000);
  }
  // A byte now and then does not help: each has kRequestTime in all.
  httplib::Client client("127.0.0.1", server_->port());
  client.set_read_timeout(1);
  while (true) {
    for (const int sender : senders) send(sender, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    const httplib::Result result = client.Get("/healthz");
    if (result && result->status == 200) break;
    ASSERT_LT(NowMs(), begun_ms + 60'000);
  }
  for (const int sender : senders) close(sender);
}

TEST_F(HttpServerTest, APortThatIsTakenIsAnError) {
  const auto second = HttpServer::Start("127.0.0.1", server_->port(), &board_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpHosts, AreAddressesThisMachineAndThoseListed) {
  const HttpHosts hosts({"coordinator", "Status.Example.org"});
  std::array<char, 256> own = {};
  ASSERT_EQ(gethostname(own.data(), own.size() - 1), 0);
  for (const std::string& host : std::vector<std::string>{
           "127.0.0.1", "127.0.0.1:7078", "[::1]", "[::1]:7078", "10.1.2.3:80", "localhost:7078", "LOCALHOST",
           "localhost.:7078", "host.docker.internal:7078", "coordinator:7078", "status.example.org", own.data()}) {
    EXPECT_TRUE(hosts.Allows(host)) << host;
  }
  for (const char* host : {"", ":7078", "elsewhere.example:7078", "127.0.0.1.elsewhere.example", "[]:7078",
                           "coordinator.elsewhere.example", "localhost.elsewhere.example:7078", "1.2.3"}) {
    EXPECT_FALSE(hosts.Allows(host)) << host;
  }
}

class EventStreamsTest : public ::testing::Test {
 protected:
  // The milliseconds since the first full second, and the text that the stream sends then.
  std::pair<int64_t, std::string> Next() {
    std::string said;
    EXPECT_TRUE(stream_->Next([&](std::string_view text) {
      said += text;
      return true;
    }));
    return {(time_.Now() - begin_) / std::chrono::milliseconds(1), said};
  }

  core::VirtualTime time_;
  const core::Clock::TimePoint begin_ = time_.Now();  // a full second, and an even one
  StatusBoard board_{{.version = "1.2.3", .host = {}}};
  EventStreams streams_{&board_, 1};
  const std::unique_ptr<EventStreams::Stream> stream_ = streams_.Open();
};

TEST_F(EventStreamsTest, PagesGoAtOnceAndThenAtEachFullSecondATimelineAtEachEvenOne) {
  core::SleepUntil(begin_ + std::chrono::milliseconds(300));
  board_.Publish({.state = "training"});
  const auto [first_ms, first] = Next();
  EXPECT_EQ(first_ms, 300);
  EXPECT_THAT(first, StartsWith("retry: 2000\n\nevent: status\ndata: {"));
  EXPECT_THAT(first, HasSubstr("event: timeline"));
  for (const int64_t ms : {1'000, 2'000, 3'000, 4'000}) {
    board_.Publish({.state = "training"});
    const auto [at_ms, said] = Next();
    EXPECT_EQ(at_ms, ms);
    EXPECT_THAT(said, StartsWith("event: status\ndata: {"));
    EXPECT_EQ(said.find("event: timeline") != std::string::npos, ms % 2'000 == 0) << ms;
  }
}

TEST_F(EventStreamsTest, WithNothingNewItSaysEachSecondThatItIsThere) {
  board_.Publish({.state = "training"});
  Next();
  for (const int64_t ms : {1'000, 2'000, 3'000}) EXPECT_EQ(Next(), std::pair(ms, std::string(":\n\n")));
}

}  // namespace
}  // namespace causeway::server
