#include "transport/settings_messages.h"

namespace causeway::transport {

void ToProto(const core::SettingsRevision& revision, v1::SettingsRevision* message) {
  message->set_number(revision.number);
  message->set_step(revision.step);
  message->mutable_versions()->Assign(revision.versions.begin(), revision.versions.end());
  message->set_run_config(revision.run_config);
  message->mutable_changes()->Assign(revision.changes.begin(), revision.changes.end());
  message->set_unix_ms(revision.unix_ms);
  message->set_nonce(revision.nonce);
  message->set_digest(revision.digest);
}

core::SettingsRevision FromProto(const v1::SettingsRevision& message) {
  return {.number = message.number(),
          .step = message.step(),
          .versions = {message.versions().begin(), message.versions().end()},
          .run_config = message.run_config(),
          .changes = {message.changes().begin(), message.changes().end()},
          .unix_ms = message.unix_ms(),
          .nonce = message.nonce(),
          .digest = message.digest()};
}

std::vector<core::SettingsRevision> FromProto(
    const google::protobuf::RepeatedPtrField<v1::SettingsRevision>& messages) {
  std::vector<core::SettingsRevision> revisions;
  for (const v1::SettingsRevision& message : messages) revisions.push_back(FromProto(message));
  return revisions;
}

}  // namespace causeway::transport
