// The addresses of a name that has several, tried 250 ms apart as in RFC 8305, section 5: gRPC tries them one after the
// other, and waits for one that never answers (IPv6 that leads nowhere, a machine that is gone) as long as for a slow
// one.
//
//   getaddrinfo ─► the preferred one, then families in turn ─► connect … 250 ms … connect … ─► the first
//
// And the one of a coordinator's addresses that leads, where it has standbys:
//
//   Describe ─► leader, standby, standby … at once ─► the latest epoch of those that lead, 1 s after the first of them
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/address.h"
#include "transport/channel.h"

namespace causeway::transport {

// The first address that answers, numeric, with the port. `preferred`: the host that is tried first, if the name still
// has it; "": none. Nullopt: the name has one address or none, is an address itself, or no address answers within five
// seconds; gRPC then tries them, and says why. Thread-safe; blocks.
std::optional<core::Address> FirstThatAnswers(const core::Address& address, const std::string& preferred);

// Parses "a:7077|b:7077", a coordinator and its standbys in any order. INVALID_ARGUMENT as core::ParseAddress.
absl::StatusOr<std::vector<Address>> ParseAddresses(const std::string& name, const std::string& text);

struct Asked {
  std::optional<Address> leader;    // none: none of those that answered leads
  uint64_t epoch = 0;               // its
  std::string lineage;              // its
  std::vector<Address> silent;      // without an answer within 5 s, or with one that tells nothing
  std::vector<Address> unreached;   // of these without any: the others wait for the run's sites
  std::optional<Address> furthest;  // the standby that has the latest mark, and that
  uint64_t mark = 0;
  std::map<std::string, uint64_t> marks;  // of each standby that answers, by address
  std::optional<Address> latest;          // the one that has seen the latest epoch, and that
  uint64_t seen = 0;
};
// Adds an answer.
void Note(const Address& address, const v1::RunDescription& run, Asked& asked);
// Answers of other runs than `run` do not count; empty: of any. Joins nowhere. `starts`: see DescribeRequest; then it
// waits for all of them. Thread-safe; blocks.
Asked FindLeader(const std::vector<Address>& addresses, const ChannelOptions& options, const core::RunId& run,
                 bool starts = false);

// Calls `leads`, on gRPC's threads, with the epoch of each that answers and leads. Thread-safe; does not block.
void AskWhoLeads(const std::vector<Address>& addresses, const ChannelOptions& options, const core::RunId& run,
                 const std::function<void(uint64_t epoch)>& leads);

}  // namespace causeway::transport
