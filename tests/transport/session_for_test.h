// A site's session, and what its coordinator says.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "core/limits.h"
#include "tests/transport/least_wait.h"
#include "transport/control_session.h"
#include "transport/messages.h"

namespace causeway::transport {

inline constexpr int64_t kFirstWaitMs = core::kFirstBackoffMs * 8 / 10;
inline const grpc::Status kLost(grpc::StatusCode::UNAVAILABLE, "the connection is lost");

inline v1::Welcome WelcomeOf(const std::string& lineage, uint64_t epoch, std::optional<uint64_t> generation,
                             bool resumed) {
  v1::Welcome welcome;
  welcome.set_lineage(lineage);
  welcome.set_epoch(epoch);
  welcome.set_resumed(resumed);
  if (generation) welcome.set_generation(*generation);
  return welcome;
}

inline v1::Refused RefusedFor(int64_t retry_after_ms) {
  v1::Refused refused;
  refused.set_retry_after_ms(retry_after_ms);
  refused.set_reason("not yet");
  return refused;
}

class ControlSessionTest : public ::testing::Test {
 protected:
  v1::Join Join(bool joining = false) {
    v1::Join join;
    session_.Join(joining, &join);
    return join;
  }
  Welcome Take(const v1::Welcome& welcome) { return session_.Take(welcome, {}); }
  void JoinAndEnter() {
    Join();
    Take(WelcomeOf("l", 1, 1, false));
    session_.Enter();
  }
  // A stream that is lost before its welcome.
  void JoinAndLose(int64_t now_ms) {
    Join();
    session_.Ended(kLost, now_ms);
  }
  // A stream that the coordinator refuses for now, and then ends.
  void JoinAndBeRefused(int64_t retry_after_ms, int64_t now_ms = 1) {
    Join();
    session_.Refused(RefusedFor(retry_after_ms), now_ms);
    session_.Ended(grpc::Status::OK, now_ms + 1);
  }
  // From that millisecond on.
  bool GivesUpAt(int64_t now_ms) const { return !session_.GivesUp(now_ms - 1) && session_.GivesUp(now_ms); }
  bool Pings(int64_t now_ms) {
    v1::Progress report;
    return session_.Report(now_ms, &report);
  }
  int64_t NextWaitMs() { return session_.TakeWait(kLeast).ms; }

  ControlSession session_{"eu", {1, 3}, /*connect_timeout_s=*/10, "s1"};
};

}  // namespace causeway::transport
