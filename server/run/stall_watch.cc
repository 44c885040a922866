#include "server/run/stall_watch.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::server {

void StallWatch::Tick(int64_t now_ms, RunParts& run) {
  const bool first = !std::exchange(ticked_, true);
  const int64_t from_ms = std::exchange(ticked_ms_, now_ms);
  if (now_ms - from_ms <= lease_ms_ / 4) return;
  run.rules.Handle(StoodStill{from_ms}, now_ms);
  if (first) return;
  const std::string text = absl::StrCat("this process stood still for ", now_ms - from_ms,
                                        " ms; the sites' leases go on from where they were");
  spdlog::warn("{}", text);
  run.outbox.Note("stall", text);
}

}  // namespace causeway::server
