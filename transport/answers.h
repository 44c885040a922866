// Who answers at the coordinator's address. A coordinator says so in the trailers of each call, with the lineage of its
// state; whatever ends a call without that is a proxy, or another server, and proves nothing about this site.
//
//   call's end ── trailer kAnswerTrailer? ──► Heard(lineage)                                       ┐
//                 none, and not of this end ─► UNAVAILABLE: "a proxy … answers in its place: HTTP 413" ├► the link
//   Welcome ────────────────────────────────► Heard(lineage)                                       ┘
//
// Thread-safe.
#pragma once

#include <grpcpp/support/client_interceptor.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"

namespace causeway::transport {

inline constexpr char kAnswerTrailer[] = "causeway-lineage";

class Answers {
 public:
  static constexpr int64_t kKeptMs = 60'000;

  void Heard(const std::string& lineage, int64_t now_ms);
  void Heard(const v1::CoordinatorMessage& message, int64_t now_ms);  // a message on the stream of the last Welcome
  // The lineages of several coordinators that have answered in turn, one again after another; empty: none have lately.
  // A new state at the same address does not count.
  std::string TwoInTurn(int64_t now_ms) const;
  std::string Report(const std::string& address, int64_t now_ms);  // TwoInTurn, which it also logs once

 private:
  struct Times {
    int64_t first = 0, last = 0;  // numbers of answers
    int64_t last_ms = 0;
  };
  mutable core::Mutex mutex_;
  int64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Times> by_lineage_ ABSL_GUARDED_BY(mutex_);
  std::string welcomed_, told_ ABSL_GUARDED_BY(mutex_);
};

// The meaning of a `status` without that trailer: unchanged if this end made it or nothing answers; UNAVAILABLE with
// the proxy's words if something other than a coordinator made it.
grpc::Status OfNoCoordinator(const grpc::Status& status);
bool IsOfNoCoordinator(const std::string& error);  // whether `error` is the text of such a status

// `answers` may be nullptr.
std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> WatchAnswers(std::shared_ptr<Answers> answers);

}  // namespace causeway::transport
