// Converts between the messages among shards and the plain structs of core/membership.h.
#pragma once

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/membership.h"

namespace causeway::transport {

void ToProto(const core::Membership& membership, v1::MembershipUpdate* message);  // the fields that the message has

// INVALID_ARGUMENT for an unknown site state.
absl::StatusOr<core::Membership> FromProto(const v1::MembershipUpdate& message);

}  // namespace causeway::transport
