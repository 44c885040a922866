// Converts between the messages of proto/causeway/v1 and the plain structs that the rest of the program uses.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/membership.h"
#include "core/run_settings.h"
#include "transport/coordinator_link.h"
#include "transport/progress_message.h"

namespace causeway::transport {

inline constexpr uint32_t kProtocol = 1;  // raised when an older peer would misunderstand us

// FAILED_PRECONDITION names what differs: the protocol, with the version to use, or the run.
absl::Status CheckCaller(const v1::Context& context, const core::RunId& run_id);
extern const char kVersion[];  // version of the programs: "0.1.0"

void ToProto(const core::Manifest& manifest, v1::Manifest* message);
void ToProto(const core::FragmentMap& map, google::protobuf::RepeatedPtrField<v1::FragmentTensors>* message);
void ToProto(const core::SiteData& data, v1::Join* message);
void ToProto(const Standing& standing, v1::Join* message);
void ToProto(const core::Entry& entry, v1::Entry* message);
void ToProto(const DownloadHeader& header, v1::DownloadHeader* message);
v1::CoordinatorMessage NoticeOf(const std::string& reason);  // tells a site why it waits

// INVALID_ARGUMENT for values that no honest peer sends: invalid manifests, tensors that are missing or in two
// fragments.
absl::StatusOr<core::Manifest> FromProto(const v1::Manifest& message);
absl::StatusOr<core::FragmentMap> FromProto(const v1::Manifest& manifest,
                                            const google::protobuf::RepeatedPtrField<v1::FragmentTensors>& fragments);
absl::StatusOr<core::SiteData> DataFromProto(const v1::Join& message);
core::Entry FromProto(const v1::Entry& message);
DownloadHeader FromProto(const v1::DownloadHeader& message);

// Changes of the run's settings, on the wire.

void ToProto(const core::SettingsRevision& revision, v1::SettingsRevision* message);
core::SettingsRevision FromProto(const v1::SettingsRevision& message);
std::vector<core::SettingsRevision> FromProto(const google::protobuf::RepeatedPtrField<v1::SettingsRevision>& messages);

// Converts between the messages among shards and the plain structs of core/membership.h.

void ToProto(const core::Membership& membership, v1::MembershipUpdate* message);  // sets the message's fields

// INVALID_ARGUMENT for an unknown site state.
absl::StatusOr<core::Membership> FromProto(const v1::MembershipUpdate& message);

}  // namespace causeway::transport
