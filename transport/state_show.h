// Shows this site's state to a coordinator that has lost its own and rebuilds it from the sites'.
//
//   Holdings (versions, digests) ──► ◄── a fragment is wanted       W and v of it, in pieces ──► …
//
// One call at a time. Thread-safe.
#pragma once

#include <memory>

#include "core/fragment_map.h"
#include "core/mutex.h"
#include "transport/bulk_streams.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"
#include "transport/wire.h"

namespace causeway::transport {

class StateShow {
 public:
  // Both outlive it.
  StateShow(Wire* wire, Pacer* up) : wire_(*wire), up_(*up) {}

  // Does nothing while a show is in progress, or if the site holds nothing. `listener` outlives End.
  void Begin(const v1::Context& context, const core::Manifest& manifest, LinkListener* listener);
  void End();  // ends it permanently: cancels a show in progress, and waits for it

 private:
  class Stream;

  void Start(const v1::Holdings& holdings, LinkListener* listener);
  void OnEnded(const grpc::Status& status);

  Wire& wire_;
  Pacer& up_;
  core::Mutex mutex_;
  core::Condition changed_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::transport
