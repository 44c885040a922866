// One rank of two, as a process of nccl_test.cc: nccl_process RANK SOCKET sum|"rank 1 ends". The socket leads to the
// other. Prints what it has summed, or why it has not (exit 1).
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/check.h"
#include "tests/worker/ranks/fake_stream.h"
#include "worker/ranks/gloo_wire.h"
#include "worker/ranks/nccl_collectives.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {
namespace {

constexpr std::chrono::seconds kTimeout{60};

absl::StatusOr<std::vector<RankContact>> Exchange(int rank, int socket, const RankContact& mine) {
  std::vector<char> theirs(65536);
  const ssize_t sent = send(socket, mine.addresses.data(), mine.addresses.size(), 0);
  const ssize_t received = recv(socket, theirs.data(), theirs.size(), 0);
  if (sent < 0 || received <= 0) return absl::UnavailableError("the other process is gone");
  std::vector<RankContact> all(2, mine);
  all[1 - rank].addresses.assign(theirs.data(), static_cast<size_t>(received));
  return all;
}

absl::Status Run(int rank, int socket, const std::string& what) {
  ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  ASSIGN_OR_RETURN(std::shared_ptr<Wire> wire,
                   ConnectByGloo({.rank = rank, .world = 2, .host = "here", .address = "127.0.0.1"},
                                 [&](const RankContact& mine) { return Exchange(rank, socket, mine); }));
  OrderedCollectives control(std::move(wire));
  ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> collectives,
                   MakeNcclCollectives(*nccl, control, std::make_shared<FakeStreamHooks>(), kTimeout));
  if (what == "rank 1 ends" && rank == 1) _exit(0);
  std::vector<float> values(100000, static_cast<float>(rank + 1));
  RETURN_IF_ERROR(collectives->Await(collectives->AllReduce(values), kTimeout));
  std::printf("%g %g %g\n", values.front(), values[50000], values.back());
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status = causeway::worker::Run(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
  if (!status.ok()) std::printf("%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
