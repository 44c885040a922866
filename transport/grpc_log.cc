#include "transport/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "core/clock.h"
#include "core/limits.h"
#include "core/mutex.h"

namespace causeway::transport {
namespace {

constexpr auto kWindow = std::chrono::seconds(10);

struct Window {
  core::Mutex mutex;
  core::Clock::TimePoint begin ABSL_GUARDED_BY(mutex) = core::SystemClock().Now();
  int lines ABSL_GUARDED_BY(mutex) = 0;
};

void Log(const char* library, bool is_error, const char* text) {
  static Window* const window = new Window;  // gRPC's threads may outlive main
  int left_out = 0;
  {
    core::MutexLock lock(window->mutex);
    if (const core::Clock::TimePoint now = core::SystemClock().Now(); now - window->begin >= kWindow) {
      left_out = std::max(0, window->lines - core::kMaxGrpcLogLines);
      window->begin = now;
      window->lines = 0;
    }
    if (++window->lines > core::kMaxGrpcLogLines) return;
  }
  if (left_out > 0) spdlog::warn("gRPC: {} more lines were left out", left_out);
  spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug, "{}: {}", library, text);
}

void LogOfGrpc(gpr_log_func_args* args) { Log("gRPC", args->severity == GPR_LOG_SEVERITY_ERROR, args->message); }

void LogOfProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& text) {
  Log("protobuf", level >= google::protobuf::LOGLEVEL_ERROR, text.c_str());
}

}  // namespace

void RouteGrpcLog() {
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

}  // namespace causeway::transport
