// The coordinator's gRPC interface.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/calls/model_files.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

// Answers every method of causeway.v1.Coordinator (reactors.h); without `files`, all but those about model files.
// `coordinator`, `gate`, `files` and everything that `status_json` refers to outlive the server.
std::unique_ptr<CallService> NewGrpcService(RunExchange* exchange, std::function<std::string()> status_json,
                                            Gate* gate = Gate::Open(), ModelFiles* files = nullptr);

}  // namespace causeway::server
