// Which Host a request may name. A page of elsewhere whose name is made to lead here (DNS rebinding) reads in a browser
// what only this network may; its Host is then its own name, and is refused.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::server {

class HttpHosts {
 public:
  // Besides numeric addresses, `localhost` and this machine's name: `names`, which a proxy or a scraper may use.
  explicit HttpHosts(const std::vector<std::string>& names);

  bool Allows(std::string_view host) const;  // as in the header, with a port or without

 private:
  std::set<std::string> names_;  // lower case
};

}  // namespace causeway::server
