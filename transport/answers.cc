#include "transport/answers.h"

#include <spdlog/spdlog.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"

namespace causeway::transport {
namespace {

constexpr char kForeign[] = "not a coordinator, but a proxy in front of it or another server answers: ";

// gRPC's words for an answer with an HTTP status of its own.
constexpr std::string_view kHttpStatus = "http2 header with status: ";

std::string HttpWords(const std::string& status) {
  if (status == "413") return "HTTP 413, a request is larger than it takes (nginx: client_max_body_size 0)";
  if (status == "401" || status == "403" || status == "407")
    return absl::StrCat("HTTP ", status, ", it asks for a login");
  return absl::StrCat("HTTP ", status);
}

const char* NameOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNAUTHENTICATED: return "UNAUTHENTICATED";
    case grpc::StatusCode::PERMISSION_DENIED: return "PERMISSION_DENIED";
    case grpc::StatusCode::UNIMPLEMENTED: return "UNIMPLEMENTED";
    case grpc::StatusCode::FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case grpc::StatusCode::INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case grpc::StatusCode::NOT_FOUND: return "NOT_FOUND";
    default: return nullptr;  // this end may have made it
  }
}

class AnswerInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit AnswerInterceptor(Answers* answers) : answers_(answers) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) {
      const auto* const trailers = methods->GetRecvTrailingMetadata();
      const auto found = trailers->find(kAnswerTrailer);
      if (found == trailers->end()) {
        *methods->GetRecvStatus() = OfNoCoordinator(*methods->GetRecvStatus());
      } else if (answers_ != nullptr) {
        answers_->Heard({found->second.data(), found->second.size()}, core::SystemClock().NowMs());
      }
    }
    methods->Proceed();
  }

 private:
  Answers* const answers_;  // the factory's
};

class AnswerInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AnswerInterceptorFactory(std::shared_ptr<Answers> answers) : answers_(std::move(answers)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new AnswerInterceptor(answers_.get());
  }

 private:
  const std::shared_ptr<Answers> answers_;
};

}  // namespace

void Answers::Heard(const std::string& lineage, int64_t now_ms) {
  if (lineage.empty()) return;
  core::MutexLock lock(mutex_);
  std::erase_if(by_lineage_, [now_ms](const auto& one) { return now_ms - one.second.last_ms > kKeptMs; });
  Times& times = by_lineage_[lineage];
  times.last = ++answers_;
  times.last_ms = now_ms;
  if (times.first == 0) times.first = answers_;
}

void Answers::Heard(const v1::CoordinatorMessage& message, int64_t now_ms) {
  if (message.has_refused()) return;  // by one that has not welcomed this site; the call's end says which
  std::string lineage;
  {
    core::MutexLock lock(mutex_);
    if (message.has_welcome()) welcomed_ = message.welcome().lineage();
    lineage = welcomed_;
  }
  Heard(lineage, now_ms);
}

std::string Answers::Report(const std::string& address, int64_t now_ms) {
  std::string two = TwoInTurn(now_ms);
  core::MutexLock lock(mutex_);
  if (std::exchange(told_, two) != two && !two.empty()) {
    spdlog::error("two coordinators answer at {}: those of lineage {}; stop one of them, or give each its own address",
                  address, two);
  }
  return two;
}

std::string Answers::TwoInTurn(int64_t now_ms) const {
  core::MutexLock lock(mutex_);
  for (const auto& [lineage, times] : by_lineage_) {
    for (const auto& [other, its] : by_lineage_) {
      const bool recent = now_ms - std::min(times.last_ms, its.last_ms) <= kKeptMs;
      if (recent && times.first < its.first && times.last > its.first) return absl::StrCat(lineage, " and ", other);
    }
  }
  return "";
}

grpc::Status OfNoCoordinator(const grpc::Status& status) {
  if (status.ok()) return status;
  const std::string& text = status.error_message();
  std::string words;
  if (const size_t at = text.find(kHttpStatus); at != std::string::npos) {
    const size_t begin = at + kHttpStatus.size();
    words = HttpWords(text.substr(begin, text.find_first_not_of("0123456789", begin) - begin));
  } else if (const char* const name = NameOf(status.error_code())) {
    words = absl::StrCat("gRPC status ", static_cast<int>(status.error_code()), " (", name, ")",
                         text.empty() ? "" : ": ", text);
  } else {
    return status;
  }
  return {grpc::StatusCode::UNAVAILABLE, absl::StrCat(kForeign, words)};
}

bool IsOfNoCoordinator(const std::string& error) { return absl::StrContains(error, kForeign); }

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface> WatchAnswers(std::shared_ptr<Answers> answers) {
  return std::make_unique<AnswerInterceptorFactory>(std::move(answers));
}

}  // namespace causeway::transport
