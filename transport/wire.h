// The carrier of a link's calls to one coordinator: gRPC's channels, or a simulated network (tests/sim).
//
//   ControlStream, UploadStream, DownloadStream ── Prepare ──► Wire ══► the coordinator's reactors
//
// Thread-safe. A prepared call notifies its reactor as gRPC does: one completion for each operation, OnDone last.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/ids.h"
#include "transport/channel.h"

namespace causeway::transport {

using ControlCall = grpc::ClientBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>;
using BulkCall = grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using FollowCall = grpc::ClientReaderWriterInterface<v1::FollowMessage, v1::MembershipUpdate>;

class Wire {
 public:
  // A delayed call. Cancel brings the call forward, without waiting for it.
  class Timer {
   public:
    virtual ~Timer() = default;
    virtual void Cancel() = 0;
  };

  virtual ~Wire() = default;

  // Finds where the coordinator is, if there is no connection. May take seconds; call it before a call is prepared, and
  // with no lock that others wait for.
  virtual void Dial() {}
  // It has welcomed this site: one of the standbys that it names may lead when it is dialled next. `later` is called
  // once one leads in a later epoch.
  virtual void Welcomed(const v1::Welcome& /*welcome*/, std::function<void()> /*later*/) {}
  // Asks for the run's description, in one attempt of at most five seconds; gives up if cancelled.
  virtual grpc::Status Describe(const core::SiteId& site, absl::FunctionRef<bool()> cancelled,
                                v1::RunDescription& description) = 0;
  // Tries to make a connection for control until that time, if there is none; returns whether there is one.
  virtual bool AwaitConnected(core::Clock::TimePoint until) = 0;

  // Binds a call to its reactor, which starts it. `context` lives as long as the reactor. `channel` counts from 0: each
  // is a TCP connection, opened on first use.
  virtual void Prepare(grpc::ClientContext& context, ControlCall& call) = 0;
  virtual void Prepare(int channel, const std::string& method, grpc::ClientContext& context, BulkCall& call) = 0;
  virtual std::unique_ptr<FollowCall> Follow(grpc::ClientContext& context) = 0;  // its calls block
  virtual void Cancel(grpc::ClientContext& context) = 0;
  // Calls that are prepared from here on go over a new connection; those before stay on theirs.
  virtual void Redial(int channel) = 0;

  virtual std::unique_ptr<Timer> After(core::Clock::Duration time, std::function<void()> call) = 0;
};

// `all`: of a coordinator with standbys, its address and theirs.
std::unique_ptr<Wire> MakeGrpcWire(const Address& coordinator, const ChannelOptions& options,
                                   const std::vector<Address>& all = {});

}  // namespace causeway::transport
