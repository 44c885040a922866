// The flags of a program that calls a coordinator, worker and causewayctl alike: how to reach it, and who one is.
#pragma once

#include "absl/status/statusor.h"
#include "transport/channel.h"

namespace causeway::ctl {

// The options that the flags give for a channel to a coordinator at `address`. INVALID_ARGUMENT as
// transport::ReadClientFlags.
absl::StatusOr<transport::ChannelOptions> ReadChannelOptions(const transport::Address& address);

}  // namespace causeway::ctl
