// Messages to all sites about the run as a whole: whether they hold before their next step, and why the run does not
// train. One owner at a time.
#pragma once

#include <string>

#include "server/run/run_parts.h"

namespace causeway::server {

class Notices {
 public:
  // Tells the sites, the log and the history what is news.
  void Note(RunParts& run);

 private:
  bool held_ = false;
  std::string reason_;
};

}  // namespace causeway::server
