// light_sites: several sites without parameters in one process (light_site.h).
//
//   light_sites --coordinator=HOST:PORT[,…] --sites=a,b,c --rounds=N   free: as fast as the coordinator goes, then they
//                                                                      leave
//   light_sites … --holder=z                                           by rounds: for each line on stdin, the sites
//                                                                      send one contribution to each fragment, timed
//                                                                      from the first chunk to the last verdict, while
//                                                                      z holds the rounds open; then z sends its own,
//                                                                      and they merge
//
// Prints a JSON line for each round, or for the whole.
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <span>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "ctl/program.h"
#include "formats/run_yaml.h"
#include "nlohmann/json.hpp"
#include "tests/bench/ingest_run/light_site.h"
#include "transport/sharded_link.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7077", "HOST:PORT of the coordinator, or of each shard");
ABSL_FLAG(std::string, sites, "a", "names, separated by commas");
ABSL_FLAG(std::string, holder, "", "name of one more site, which holds rounds open while they are timed");
ABSL_FLAG(int64_t, rounds, 1, "of each fragment");
ABSL_FLAG(bool, own_initial, true, "offer the digest of the initial parameters; without, all anchors are downloaded");
ABSL_FLAG(int, in_flight, 2, "uploads of one site at a time");

namespace causeway::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Sites = std::span<const std::unique_ptr<LightSite>>;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::unique_ptr<transport::SessionLink> LinkOf(const std::string& site) {
  const std::vector<std::string> texts = absl::StrSplit(absl::GetFlag(FLAGS_coordinator), ',');
  std::vector<transport::LinkOptions> shards;
  for (const std::string& text : texts) {
    transport::LinkOptions& shard = shards.emplace_back();
    shard.coordinator = *transport::ParseAddress(text);
    shard.site = site;
  }
  return transport::MakeLink(std::move(shards));
}

absl::StatusOr<std::shared_ptr<LightRun>> MakeRun(transport::SessionLink& link) {
  ASSIGN_OR_RETURN(const transport::RunDescription description, link.Describe([] { return false; }));
  auto run = std::make_shared<LightRun>();
  ASSIGN_OR_RETURN(run->config, formats::ParseRunConfig(description.run_config));
  ASSIGN_OR_RETURN(run->map, MapOf(run->config));
  for (const core::Fragment& fragment : run->map.fragments()) {
    run->contributions.push_back(MakeContribution(fragment, run->config));
    run->initial_digests.push_back(absl::GetFlag(FLAGS_own_initial) ? InitialDigest(fragment) : 0);
  }
  run->rounds = absl::GetFlag(FLAGS_rounds);
  run->in_flight = absl::GetFlag(FLAGS_in_flight);
  return run;
}

void Print(double seconds, int64_t bytes, Sites sites) {
  int64_t received = 0;
  for (const auto& site : sites) received += site->received_bytes();
  const nlohmann::ordered_json row = {{"seconds", seconds},
                                      {"contribution_bytes", bytes},
                                      {"megabytes_per_s", static_cast<double>(bytes) * 1e-6 / seconds},
                                      {"received_bytes", received}};
  std::cout << row.dump() << std::endl;
}

void ByRounds(Sites sites, LightSite& holder, const LightRun& run, int64_t bytes_of_site) {
  std::string line;
  for (core::Version round = 0; round < run.rounds && std::getline(std::cin, line); ++round) {
    const Clock::time_point begin = Clock::now();
    for (const auto& site : sites) site->Allow(round + 1);
    for (const auto& site : sites) site->WaitAdmitted((round + 1) * run.map.num_fragments());
    const double seconds = SecondsSince(begin);
    holder.Allow(round + 1);
    for (const auto& site : sites) site->WaitHolds(round + 1);
    holder.WaitHolds(round + 1);
    Print(seconds, bytes_of_site * static_cast<int64_t>(sites.size()), sites);
  }
}

int Run() {
  std::vector<std::string> names = absl::StrSplit(absl::GetFlag(FLAGS_sites), ',');
  const std::string holder = absl::GetFlag(FLAGS_holder);
  if (!holder.empty()) names.push_back(holder);
  std::shared_ptr<LightRun> run;
  {
    auto made = MakeRun(*LinkOf(names.front()));
    if (!made.ok()) return ctl::Fail(ctl::kBadInput, made.status());
    run = *std::move(made);
  }
  std::vector<std::unique_ptr<LightSite>> sites;
  for (const std::string& name : names) {
    sites.push_back(std::make_unique<LightSite>(run, LinkOf(name)));
    const auto description = sites.back()->link().Describe([] { return false; });
    if (!description.ok()) return ctl::Fail(ctl::kUnreachable, description.status());
  }
  for (const auto& site : sites) site->Start();
  std::jthread heart([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const auto& site : sites) site->ReportProgress();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  });
  for (const auto& site : sites) site->WaitEntered();
  spdlog::info("{} sites have entered", sites.size());
  int64_t bytes = 0;  // of one site in one round
  for (const Chunks& chunks : run->contributions) bytes += PayloadBytes(*chunks);
  if (!holder.empty()) {
    ByRounds(std::span(sites).first(sites.size() - 1), *sites.back(), *run, bytes);
  } else {
    const Clock::time_point begin = Clock::now();
    for (const auto& site : sites) site->Allow(run->rounds);
    for (const auto& site : sites) site->WaitHolds(run->rounds);
    Print(SecondsSince(begin), bytes * static_cast<int64_t>(sites.size()) * run->rounds, sites);
  }
  heart.request_stop();
  heart.join();
  for (const auto& site : sites) site->Leave();
  return ctl::kDone;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::StartProgram(argc, argv, "light_sites --coordinator=HOST:PORT --sites=a,b --rounds=N [--holder=z]\n");
  return bench::Run();
}
