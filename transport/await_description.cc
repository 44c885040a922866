#include "transport/await_description.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/control_session.h"
#include "transport/describe_call.h"
#include "transport/tls_probe.h"

namespace causeway::transport {

std::string Explain(const LinkOptions& options, bool unconnected, const std::string& error) {
  return unconnected ? ExplainFailure(error, options.coordinator, options.channel) : error;
}

absl::StatusOr<RunDescription> AwaitDescription(Wire& wire, const LinkOptions& options,
                                                const std::function<bool()>& stops,
                                                const std::function<bool(int64_t backoff_ms)>& wait) {
  const core::Clock& clock = core::SystemClock();
  const int64_t since_ms = clock.NowMs();
  for (int attempt = 0;; ++attempt) {
    v1::RunDescription description;
    const grpc::Status status = wire.Describe(options.site, stops, description);
    const absl::Status meaning = MeaningOf(status, description, options.shard, options.coordinator);
    if (meaning.ok()) return RunDescription{description.run_id(), description.run_config()};
    if (!absl::IsUnavailable(meaning)) return meaning;
    const bool unconnected = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const std::string error = Explain(options, unconnected, status.error_message());
    if (UnreachableTooLong(options.connect_timeout_s, since_ms, clock.NowMs())) {
      return absl::UnavailableError(absl::StrCat("no coordinator at ", options.coordinator.Text(), " within ",
                                                 options.connect_timeout_s, " s: ", error));
    }
    const int64_t backoff_ms = BackoffMs(attempt, core::DeviceRandom());
    spdlog::warn("no coordinator at {} ({}); trying again in {} ms", options.coordinator.Text(), error, backoff_ms);
    if (wait(backoff_ms)) return absl::CancelledError("stopped while connecting");
  }
}

}  // namespace causeway::transport
