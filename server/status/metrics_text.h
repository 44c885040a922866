// The text of GET /metrics: Prometheus's exposition format, by prometheus-cpp's serializer. docs/operating.md lists the
// metrics.
//
//   StatusSnapshot ─► metric families ─► text
//
// Conventions (prometheus.io/docs/practices/naming): base units, counters end in _total, ratios in _ratio. A site that
// is gone keeps its counters and its state; its other gauges are left out, so that no alert waits for a site that left.
// Pure, thread-safe.
#pragma once

#include <string>

#include "server/status/host_status.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

std::string MetricsText(const StatusSnapshot& snapshot, const ProcessStatus& process, int event_streams);

}  // namespace causeway::server
