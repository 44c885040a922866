#include "server/run/open_uploads.h"

#include <utility>

namespace causeway::server {

const OpenUploads::Arriving* OpenUploads::Find(core::FragmentId fragment, const core::SiteId& site) const {
  const auto found = open_[fragment].find(site);
  return found == open_[fragment].end() ? nullptr : &found->second;
}

std::shared_ptr<Contribution> OpenUploads::Take(core::FragmentId fragment, const core::SiteId& site) {
  std::shared_ptr<Contribution> contribution = open_[fragment].at(site).contribution;
  open_[fragment].erase(site);
  return contribution;
}

}  // namespace causeway::server
