// The flags of a program that calls a coordinator, for both worker and causewayctl: its address, and the caller's
// identity.
#pragma once

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"
#include "transport/channel.h"

ABSL_DECLARE_FLAG(bool, insecure);  // allows plaintext, and ranks on several hosts without a key

namespace causeway::ctl {

// The options that the flags give for a channel to a coordinator at `address`. INVALID_ARGUMENT as
// transport::ReadClientFlags.
absl::StatusOr<transport::ChannelOptions> ReadChannelOptions(const transport::Address& address);

}  // namespace causeway::ctl
