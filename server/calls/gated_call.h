// The base of every reactor: the gate admits it by the call's headers before it reads.
#pragma once

#include <memory>
#include <utility>

#include "server/calls/gate.h"

namespace causeway::server {

class GatedCall : public Call {
 protected:
  GatedCall(Gate* gate, Peer peer) : gate_(gate), peer_(std::move(peer)) {}

  // Returns false if the gate has refused, and so ended, the call. `self` owns this object.
  bool Arrive(const std::shared_ptr<Call>& self) {
    absl::StatusOr<std::unique_ptr<OpenCalls::Place>> place = gate_->Arrive(peer_, self);
    if (place.ok()) {
      place_ = *std::move(place);
    } else {
      End(place.status());
    }
    return place.ok();
  }
  void Spoke() { place_->Spoke(); }  // the first message has arrived

  Gate* const gate_;
  const Peer peer_;

 private:
  std::unique_ptr<OpenCalls::Place> place_;
};

}  // namespace causeway::server
