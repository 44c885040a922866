// Changes of the run's settings, on the wire.
#pragma once

#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/run_settings.h"

namespace causeway::transport {

void ToProto(const core::SettingsRevision& revision, v1::SettingsRevision* message);
core::SettingsRevision FromProto(const v1::SettingsRevision& message);
std::vector<core::SettingsRevision> FromProto(const google::protobuf::RepeatedPtrField<v1::SettingsRevision>& messages);

}  // namespace causeway::transport
