#include "transport/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
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
  bool over ABSL_GUARDED_BY(mutex) = false;  // the process ends, and its loggers with it
};

Window& TheWindow() {
  static Window* const window = new Window;  // gRPC's threads may outlive main
  return *window;
}

// Loggers that are there now are destroyed after this has run.
bool EndWithTheProcess() {
  (void)spdlog::default_logger_raw();
  return std::atexit([] {
           core::MutexLock lock(TheWindow().mutex);
           TheWindow().over = true;
         }) == 0;
}

void Log(const char* library, bool is_error, const char* text) {
  Window& window = TheWindow();
  core::MutexLock lock(window.mutex);
  if (window.over) return;
  int left_out = 0;
  if (const core::Clock::TimePoint now = core::SystemClock().Now(); now - window.begin >= kWindow) {
    left_out = std::max(0, window.lines - core::kMaxGrpcLogLines);
    window.begin = now;
    window.lines = 0;
  }
  if (++window.lines > core::kMaxGrpcLogLines) return;
  if (left_out > 0) spdlog::warn("gRPC: {} more lines were left out", left_out);
  spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug, "{}: {}", library, text);
}

// gRPC says of a TLS handshake that failed what OpenSSL said, and not whose it was.
struct Cause {
  const char* text;  // of OpenSSL
  const char* words;
};
constexpr Cause kHandshakeCauses[] = {
    {"wrong version number", "it does not speak TLS: give it --tls_ca, --tls_cert and --tls_key"},
    {"http request", "it asks for a page: the status page is at the port of --http"},
    {"peer did not return a certificate", "it showed no certificate: give it --tls_cert and --tls_key"},
    {"certificate verify failed", "its certificate is not of the CA in --tls_ca, or has expired"},
    {"alert unknown ca", "it refuses this coordinator's certificate: give it the ca.pem that was made with it"},
    {"alert bad certificate", "it refuses this coordinator's certificate: does that name the host that it called?"},
    {"alert certificate expired", "it says that this coordinator's certificate has expired: replace it"},
};

// The words for a line about a handshake; empty for other lines.
std::string HandshakeFailure(std::string_view line) {
  if (line.find("Handshake failed") == std::string_view::npos) return "";
  for (const Cause& cause : kHandshakeCauses) {
    if (line.find(cause.text) != std::string_view::npos) {
      return absl::StrCat("a caller's TLS handshake failed: ", cause.words);
    }
  }
  return "";
}

void LogOfGrpc(gpr_log_func_args* args) {
  if (std::string_view(args->message).find("No address added") != std::string_view::npos) return;  // --listen's error
  const std::string handshake = HandshakeFailure(args->message);
  Log("gRPC", args->severity == GPR_LOG_SEVERITY_ERROR, handshake.empty() ? args->message : handshake.c_str());
}

void LogOfProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& text) {
  Log("protobuf", level >= google::protobuf::LOGLEVEL_ERROR, text.c_str());
}

}  // namespace

void RouteGrpcLog() {
  static const bool ends = EndWithTheProcess();
  (void)ends;
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

}  // namespace causeway::transport
