#include "transport/messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::transport {

const char kVersion[] = CAUSEWAY_VERSION;

void ToProto(const core::Manifest& manifest, v1::Manifest* message) {
  for (const core::TensorSpec& tensor : manifest) {
    v1::TensorSpec* spec = message->add_tensors();
    spec->set_name(tensor.name);
    spec->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    spec->set_kind(static_cast<uint32_t>(tensor.kind));
    spec->set_layer(tensor.layer);
    spec->set_dtype(static_cast<uint32_t>(tensor.dtype));
    spec->set_alias_of(tensor.alias_of);
    spec->set_frozen(tensor.frozen);
    spec->set_values_digest(tensor.values_digest);
  }
}

void ToProto(const core::FragmentMap& map, google::protobuf::RepeatedPtrField<v1::FragmentTensors>* message) {
  for (const std::vector<core::TensorPart>& fragment : map.parts()) {
    v1::FragmentTensors* tensors = message->Add();
    bool divided = false;
    for (const core::TensorPart& part : fragment) {
      tensors->add_tensors(part.tensor);
      divided |= !part.whole();
    }
    if (!divided) continue;
    for (const core::TensorPart& part : fragment) {
      tensors->add_begin_units(part.begin_unit);
      tensors->add_num_units(part.num_units);
    }
  }
}

void ToProto(const core::SiteData& data, v1::Join* message) {
  const auto set = [](const core::DataFingerprint& fingerprint, v1::DataFingerprint* out) {
    out->set_tokens(fingerprint.tokens);
    out->set_digest(fingerprint.digest);
  };
  if (data.training) set(*data.training, message->mutable_data());
  if (data.held_out) set(*data.held_out, message->mutable_held_out());
}

void ToProto(const Standing& standing, v1::Join* message) {
  message->mutable_versions()->Assign(standing.versions.begin(), standing.versions.end());
  message->mutable_admitted()->Assign(standing.admitted.begin(), standing.admitted.end());
  message->set_from_checkpoint(standing.from_checkpoint);
  message->set_software_version(kVersion);
  ToProto(standing.data, message);
}

void ToProto(const core::Entry& entry, v1::Entry* message) {
  message->set_step(entry.step);
  message->mutable_versions()->Assign(entry.versions.begin(), entry.versions.end());
  message->mutable_first_versions()->Assign(entry.first_versions.begin(), entry.first_versions.end());
  message->mutable_sites()->Assign(entry.sites.begin(), entry.sites.end());
  message->set_stay(entry.stay);
}

void ToProto(const DownloadHeader& header, v1::DownloadHeader* message) {
  message->set_version(header.version);
  message->set_outer_lr(header.outer.lr);
  message->set_outer_momentum(header.outer.momentum);
  if (header.outer.gain != 1) message->set_outer_gain(header.outer.gain);
  message->mutable_merged()->Assign(header.merged.begin(), header.merged.end());
  message->mutable_merged_bases()->Assign(header.merged_bases.begin(), header.merged_bases.end());
  message->mutable_merged_weights()->Assign(header.merged_weights.begin(), header.merged_weights.end());
  message->mutable_sites()->Assign(header.sites.begin(), header.sites.end());
  message->set_num_chunks(header.num_chunks);
  message->set_already_held(header.already_held);
  message->set_codec(header.codec);
  message->set_up_codec(header.up_codec);
  message->set_run_tokens(header.run_tokens);
  if (header.generation) message->set_generation(*header.generation);
  for (const core::SettingsRevision& revision : header.revisions) ToProto(revision, message->add_revisions());
}

absl::StatusOr<core::Manifest> FromProto(const v1::Manifest& message) {
  core::Manifest manifest;
  for (const v1::TensorSpec& spec : message.tensors()) {
    if (spec.kind() < 1 || spec.kind() > static_cast<uint32_t>(core::TensorKind::kBuffer) ||
        spec.dtype() > static_cast<uint32_t>(core::DType::kFloat16)) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", spec.name(), ": kind ", spec.kind(),
                                                     " or dtype ", spec.dtype(), " is not known to this version"));
    }
    manifest.push_back({.name = spec.name(),
                        .shape = {spec.shape().begin(), spec.shape().end()},
                        .kind = static_cast<core::TensorKind>(spec.kind()),
                        .layer = spec.layer(),
                        .dtype = static_cast<core::DType>(spec.dtype()),
                        .alias_of = spec.alias_of(),
                        .frozen = spec.frozen(),
                        .values_digest = spec.values_digest()});
  }
  RETURN_IF_ERROR(core::ValidateManifest(manifest));
  return manifest;
}

namespace {

// The parts of a fragment, each of a trained tensor, in ascending order.
absl::StatusOr<std::vector<core::TensorPart>> PartsOf(const v1::FragmentTensors& fragment,
                                                      const core::Manifest& manifest) {
  const int count = fragment.tensors_size();
  const bool divided = fragment.begin_units_size() > 0;
  if (count == 0) return absl::InvalidArgumentError("fragment map: a fragment has no tensor");
  if (divided && (fragment.begin_units_size() != count || fragment.num_units_size() != count)) {
    return absl::InvalidArgumentError(absl::StrCat("fragment map: expected units of ", count, " tensors, got ",
                                                   fragment.begin_units_size(), " and ", fragment.num_units_size()));
  }
  std::vector<core::TensorPart> parts;
  for (int i = 0; i < count; ++i) {
    const int tensor = fragment.tensors(i);
    if (tensor < 0 || static_cast<size_t>(tensor) >= manifest.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("fragment map: tensor ", tensor, " of ", manifest.size(), " is not there or placed twice"));
    }
    if (!manifest[tensor].synced()) {
      return absl::InvalidArgumentError(
          absl::StrCat("fragment map: expected tensors that are trained, got ", core::Describe(manifest[tensor])));
    }
    if (i > 0 && tensor < fragment.tensors(i - 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("fragment map: expected the tensors of each fragment in ascending order, got ", tensor,
                       " after ", fragment.tensors(i - 1)));
    }
    const core::TensorPart part{tensor, divided ? fragment.begin_units(i) : 0, divided ? fragment.num_units(i) : 0};
    const int64_t units = core::UnitsFor(manifest[tensor].NumValues());
    if (part.begin_unit < 0 || part.num_units < 0 || part.begin_unit >= units ||
        part.num_units > units - part.begin_unit) {
      return absl::InvalidArgumentError(absl::StrCat("fragment map: expected units of ",
                                                     core::Describe(manifest[tensor]), ", which has ", units, ", got ",
                                                     part.num_units, " from ", part.begin_unit));
    }
    parts.push_back(part);
  }
  return parts;
}

}  // namespace

absl::StatusOr<core::FragmentMap> FromProto(const v1::Manifest& manifest_message,
                                            const google::protobuf::RepeatedPtrField<v1::FragmentTensors>& fragments) {
  ASSIGN_OR_RETURN(core::Manifest manifest, FromProto(manifest_message));
  // Parts of a tensor come in their order, the fragments after one another, so that each begins where the last one
  // has ended.
  std::vector<int64_t> placed(manifest.size(), 0);  // units
  std::vector<std::vector<core::TensorPart>> parts_of_fragment;
  for (const v1::FragmentTensors& fragment : fragments) {
    ASSIGN_OR_RETURN(std::vector<core::TensorPart> parts, PartsOf(fragment, manifest));
    for (const core::TensorPart& part : parts) {
      if (part.begin_unit != placed[part.tensor]) {
        return absl::InvalidArgumentError(absl::StrCat("fragment map: tensor ", part.tensor, " of ", manifest.size(),
                                                       " is not there or placed twice"));
      }
      const int64_t units = core::UnitsFor(manifest[part.tensor].NumValues());
      placed[part.tensor] = part.num_units == 0 ? units : part.begin_unit + part.num_units;
    }
    parts_of_fragment.push_back(std::move(parts));
  }
  size_t synced = 0, whole = 0;
  for (size_t i = 0; i < manifest.size(); ++i) {
    synced += manifest[i].synced() ? 1 : 0;
    whole += manifest[i].synced() && placed[i] == core::UnitsFor(manifest[i].NumValues()) ? 1 : 0;
  }
  if (whole != synced) {
    return absl::InvalidArgumentError(absl::StrCat("fragment map: covers ", whole, " of ", synced, " synced tensors"));
  }
  return core::FragmentMap::FromParts(std::move(manifest), parts_of_fragment);
}

absl::StatusOr<core::SiteData> DataFromProto(const v1::Join& message) {
  core::SiteData data;
  if (message.has_data()) data.training = {message.data().tokens(), message.data().digest()};
  if (message.has_held_out()) data.held_out = {message.held_out().tokens(), message.held_out().digest()};
  for (const auto& fingerprint : {data.training, data.held_out}) {
    if (!fingerprint || fingerprint->tokens > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprint of data: expected 1 or more tokens, got ", fingerprint->tokens));
  }
  return data;
}

core::Entry FromProto(const v1::Entry& message) {
  return {.step = message.step(),
          .versions = {message.versions().begin(), message.versions().end()},
          .first_versions = {message.first_versions().begin(), message.first_versions().end()},
          .sites = {message.sites().begin(), message.sites().end()},
          .stay = message.stay()};
}

DownloadHeader FromProto(const v1::DownloadHeader& message) {
  return {.version = message.version(),
          .outer = {.lr = message.outer_lr(),
                    .momentum = message.outer_momentum(),
                    .gain = message.has_outer_gain() ? message.outer_gain() : 1},
          .merged = {message.merged().begin(), message.merged().end()},
          .merged_bases = {message.merged_bases().begin(), message.merged_bases().end()},
          .merged_weights = {message.merged_weights().begin(), message.merged_weights().end()},
          .sites = {message.sites().begin(), message.sites().end()},
          .num_chunks = message.num_chunks(),
          .already_held = message.already_held(),
          .codec = message.codec(),
          .up_codec = message.up_codec(),
          .run_tokens = message.run_tokens(),
          .generation = message.has_generation() ? std::optional(message.generation()) : std::nullopt,
          .revisions = FromProto(message.revisions())};
}

v1::CoordinatorMessage NoticeOf(const std::string& reason) {
  v1::CoordinatorMessage message;
  message.mutable_notice()->set_reason(reason);
  return message;
}

absl::Status CheckCaller(const v1::Context& context, const core::RunId& run_id) {
  if (context.protocol() != kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("expected protocol ", kProtocol, ", got ", context.protocol(),
                                                      "; this coordinator is Causeway ", kVersion,
                                                      ", use programs of that version"));
  }
  if (context.run_id() == run_id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("expected run ", run_id, ", got ", context.run_id()));
}

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
  std::vector<core::SettingsRevision> revisions;  // at most as many as are sent, whatever comes
  const auto count = std::min<std::ptrdiff_t>(messages.size(), core::SettingsChain::kMost);
  for (auto at = messages.end() - count; at != messages.end(); ++at) revisions.push_back(FromProto(*at));
  return revisions;
}

void ToProto(const core::Membership& membership, v1::MembershipUpdate* message) {
  message->set_started(membership.started);
  message->set_finished(membership.finished);
  message->set_paused(membership.paused);
  message->set_stopped(membership.stopped);
  message->set_seeder(membership.seeder);
  for (const auto& [site, member] : membership.sites) {
    v1::Member* entry = message->add_members();
    entry->set_site(site);
    entry->set_session(member.session);
    entry->set_stay(member.stay);
    entry->set_state(static_cast<uint32_t>(member.state));
    entry->set_ended(static_cast<uint32_t>(member.ended));
    entry->set_reason(member.reason);
    entry->mutable_first_versions()->Assign(member.first_versions.begin(), member.first_versions.end());
    entry->set_releases(member.releases);
  }
}

absl::StatusOr<core::Membership> FromProto(const v1::MembershipUpdate& message) {
  core::Membership membership{.started = message.started(),
                              .finished = message.finished(),
                              .paused = message.paused(),
                              .stopped = message.stopped(),
                              .seeder = message.seeder(),
                              .sites = {}};
  for (const v1::Member& entry : message.members()) {
    if (entry.state() >= core::kSiteStates.size() || entry.ended() >= core::kEnds.size()) {
      return absl::InvalidArgumentError(absl::StrCat("membership: site ", entry.site(), ": state ", entry.state(),
                                                     " and end ", entry.ended(), " are not known to this version"));
    }
    membership.sites[entry.site()] = {.session = entry.session(),
                                      .stay = entry.stay(),
                                      .state = static_cast<core::SiteState>(entry.state()),
                                      .ended = static_cast<core::Ended>(entry.ended()),
                                      .reason = entry.reason(),
                                      .first_versions = {entry.first_versions().begin(), entry.first_versions().end()},
                                      .releases = entry.releases()};
  }
  return membership;
}

}  // namespace causeway::transport
