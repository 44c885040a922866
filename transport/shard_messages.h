// Between what shards tell each other on the wire and the plain structs of core/membership.h.
#pragma once

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/membership.h"

namespace causeway::transport {

void ToProto(const core::Membership& membership, v1::MembershipUpdate* message);  // what it has of it

// INVALID_ARGUMENT for a state of a site that there is not.
absl::StatusOr<core::Membership> FromProto(const v1::MembershipUpdate& message);

}  // namespace causeway::transport
