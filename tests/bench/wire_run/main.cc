// wire_run: ends of the wire for benchmarks. None of them holds parameters.
//
//   wire_run sites --coordinator=HOST:PORT[,…] --sites=a,b,c --rounds=N [--holder=z]   sites.cc
//   wire_run receiver --config=run.yaml [--listen=HOST:PORT] [--nocheck]               receiver.cc
//   wire_run uploads --coordinator=HOST:PORT --sites=a [--channels=N] [--in_flight=2]  uploads.cc
#include <map>

#include "absl/flags/flag.h"
#include "ctl/program.h"
#include "tests/bench/wire_run/wire_run.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7077", "HOST:PORT of the coordinator, or of each shard");
ABSL_FLAG(std::string, sites, "a", "names, separated by commas");
ABSL_FLAG(int, in_flight, 2, "uploads of one site at a time");
ABSL_FLAG(int, channels, 0, "TCP connections that an upload is spread over; 0: as the link chooses");
ABSL_FLAG(std::string, holder, "", "sites: name of one more, which holds rounds open while they are timed");
ABSL_FLAG(int64_t, rounds, 1, "sites: of each fragment");
ABSL_FLAG(bool, own_initial, true, "sites: offer the digest of the initial parameters, or download all anchors");
ABSL_FLAG(std::string, config, "", "receiver: run.yaml");
ABSL_FLAG(std::string, listen, "127.0.0.1:0", "receiver: HOST:PORT; port 0 takes a free one");
ABSL_FLAG(bool, check, true, "receiver: hash, validate and spool chunks; without, they are dropped unseen");

int main(int argc, char** argv) {
  using namespace causeway;
  if (argc > 1 && argv[1] == std::string_view("receiver")) ctl::SetUpHeap();
  const auto arguments = ctl::StartProgram(argc, argv, "wire_run sites | receiver | uploads [--flag=value …]\n");
  const std::map<std::string, absl::Status (*)()> modes = {
      {"sites", bench::PlaySites}, {"receiver", bench::Receive}, {"uploads", bench::Upload}};
  const auto mode = modes.find(arguments.size() == 1 ? arguments.front() : "");
  if (mode == modes.end()) {
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("expected one of sites, receiver and uploads"));
  }
  const absl::Status status = mode->second();
  return status.ok() ? ctl::kDone : ctl::Fail(ctl::kFailed, status);
}
