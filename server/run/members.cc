#include "server/run/members.h"

#include <utility>

namespace causeway::server {

Member* Members::Find(const core::SiteId& site) {
  const auto found = sites_.find(site);
  return found == sites_.end() ? nullptr : &found->second.member;
}

const Member* Members::Find(const core::SiteId& site) const {
  const auto found = sites_.find(site);
  return found == sites_.end() ? nullptr : &found->second.member;
}

void Members::Erase(const core::SiteId& site) {
  Detach(site);
  sites_.erase(site);
}

core::SiteId Members::SiteOf(const SitePeer* peer) const {
  const auto found = site_of_peer_.find(peer);
  return found == site_of_peer_.end() ? "" : found->second;
}

std::shared_ptr<SitePeer> Members::TakePeer(Site& site) {
  site_of_peer_.erase(site.peer.get());
  return std::exchange(site.peer, nullptr);
}

void Members::Join(const core::SiteId& site, const core::SessionId& session, const std::shared_ptr<SitePeer>& peer,
                   bool resumed, int64_t now_ms, Ready& ready) {
  Site& here = sites_[site];
  std::shared_ptr<SitePeer> earlier = TakePeer(here);
  if (earlier != nullptr && earlier != peer) ready.effects.emplace_back(effect::Close{std::move(earlier), site});
  here.peer = peer;
  site_of_peer_[peer.get()] = site;
  here.member.session = session;
  if (!here.member.joined_ms) here.member.joined_ms = now_ms;
  if (!resumed) here.member.joining_ms = now_ms;
  here.member.silent_ms.reset();
}

void Members::Detach(const core::SiteId& site) {
  if (const auto found = sites_.find(site); found != sites_.end()) TakePeer(found->second);
}

void Members::Silent(const core::SiteId& site, int64_t now_ms) {
  Detach(site);
  sites_[site].member.silent_ms = now_ms;
}

void Members::Drop(const core::SiteId& site, Ready& ready) {
  Member& member = sites_[site].member;
  core::Progress progress = *member.progress;
  progress.in_flight.clear();
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  member.silent_ms.reset();
  Close(site, ready);
}

void Members::Restore(const core::RoundState& state, int64_t now_ms) {
  for (const auto& [site, record] : state.sites) {
    Member& member = sites_[site].member;
    member.session = record.session;
    if (record.state != core::SiteState::kGone) member.silent_ms = now_ms;
    member.joining_ms = now_ms;
  }
}

void Members::Sample(int64_t now_ms) const {
  for (const auto& [site, here] : sites_) {
    here.member.meters->up.Sample(now_ms);
    here.member.meters->down.Sample(now_ms);
  }
}

bool Members::Complain(const core::SiteId& site, std::optional<Member::Complaint> Member::*about,
                       const std::string& why, int64_t now_ms) {
  Member* const member = Find(site);
  if (member == nullptr) return false;
  std::optional<Member::Complaint>& complaint = member->*about;
  const bool noted = complaint && now_ms - complaint->noted_ms < kComplaintMs;
  complaint = Member::Complaint{.last_ms = now_ms, .noted_ms = noted ? complaint->noted_ms : now_ms, .why = why};
  return !noted;
}

void Members::Close(const core::SiteId& site, Ready& ready) {
  if (auto peer = TakePeer(sites_[site])) ready.effects.emplace_back(effect::Close{std::move(peer), site});
}

void Members::CloseAll(Ready& ready) {
  for (const auto& [site, here] : sites_) Close(site, ready);
}

void Members::Send(const core::SiteId& site, const v1::CoordinatorMessage& message, Ready& ready) {
  if (const auto& peer = sites_[site].peer) ready.effects.emplace_back(effect::Send{peer, site, message});
}

void Members::SendToAll(const v1::CoordinatorMessage& message, Ready& ready) {
  for (auto& [site, here] : sites_) Send(site, message, ready);
}

}  // namespace causeway::server
