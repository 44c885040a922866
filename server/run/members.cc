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

void Members::Attach(const core::SiteId& site, const std::shared_ptr<SitePeer>& peer) {
  Site& here = sites_[site];
  const std::shared_ptr<SitePeer> earlier = TakePeer(here);
  if (earlier != nullptr && earlier != peer) earlier->Close();
  here.peer = peer;
  site_of_peer_[peer.get()] = site;
}

void Members::Detach(const core::SiteId& site) {
  if (const auto found = sites_.find(site); found != sites_.end()) TakePeer(found->second);
}

void Members::Close(const core::SiteId& site, Outbox& outbox) {
  if (auto peer = TakePeer(sites_[site])) outbox.Then([peer = std::move(peer)] { peer->Close(); });
}

void Members::CloseAll(Outbox& outbox) {
  for (auto& [site, here] : sites_) {
    if (auto peer = TakePeer(here)) outbox.Then([peer = std::move(peer)] { peer->Close(); });
  }
}

void Members::Send(const core::SiteId& site, const v1::CoordinatorMessage& message, Outbox& outbox) {
  if (const auto& peer = sites_[site].peer) outbox.Then([peer, message] { peer->Send(message); });
}

void Members::SendToAll(const v1::CoordinatorMessage& message, Outbox& outbox) {
  for (auto& [site, here] : sites_) Send(site, message, outbox);
}

}  // namespace causeway::server
