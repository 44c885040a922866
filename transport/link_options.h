// A site's link to one coordinator, as its owner wants it: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "core/ids.h"
#include "core/shard.h"
#include "transport/channel.h"

namespace causeway::transport {

struct LinkOptions {
  Address coordinator;
  ChannelOptions channel;
  core::RunId run;  // empty: as the coordinator describes it
  core::SiteId site;
  core::Shard shard;              // expected at that address
  int64_t connect_timeout_s = 0;  // gives up after being unreached for this long; 0 = never
  double max_up_bytes_per_s = 0;  // of payload; 0 = as fast as it goes
  double max_down_bytes_per_s = 0;
  int channels = 0;  // TCP connections over which a transfer is spread; 0 = by measurement
};

// An error of a call, and what may explain it where there was no connection (tls_probe.h).
std::string Explain(const LinkOptions& options, bool unconnected, const std::string& error);

}  // namespace causeway::transport
