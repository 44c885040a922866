// A request to stop, which may come before there is a site.
#pragma once

#include "core/mutex.h"
#include "worker/site/site.h"

namespace causeway::worker {

// The target of SIGTERM, which passes it to the site, once there is one.
class StopRequest {
 public:
  void Stop() {
    core::MutexLock lock(mutex_);
    stopped_ = true;
    if (site_ != nullptr) site_->RequestStop();
  }
  void Attach(Site* site) {
    core::MutexLock lock(mutex_);
    site_ = site;
    if (stopped_ && site_ != nullptr) site_->RequestStop();
  }
  bool stopped() {
    core::MutexLock lock(mutex_);
    return stopped_;
  }

 private:
  core::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Site* site_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace causeway::worker
