#include "transport/shard_messages.h"

#include "absl/strings/str_cat.h"

namespace causeway::transport {

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
