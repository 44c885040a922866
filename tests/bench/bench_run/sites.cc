// Several sites without parameters in one process (light_site.h), timed.
//
//   without --holder   free: as fast as the coordinator goes, then they leave
//   --holder=z         by rounds: for each line on stdin, the sites send one contribution to each fragment, timed from
//                      the first chunk to the last verdict, while z holds the rounds open; then z sends its own, and
//                      they merge
//
// Prints a JSON line for each round, or for the whole.
#include <spdlog/spdlog.h>

#include <iostream>
#include <span>
#include <thread>

#include "core/check.h"
#include "core/clock.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/light_site.h"
#include "tests/bench/bench_run/wire.h"

namespace causeway::bench {
namespace {

using Sites = std::span<const std::unique_ptr<LightSite>>;

absl::StatusOr<std::shared_ptr<LightRun>> MakeRun(const std::string& site) {
  ASSIGN_OR_RETURN(const auto link, LinkOf(site));
  auto run = std::make_shared<LightRun>();
  DescribedRun& described = *run;
  ASSIGN_OR_RETURN(described, Describe(*link));
  for (const core::Fragment& fragment : run->map.fragments()) {
    run->contributions.push_back(MakeContribution(fragment, run->config));
    run->initial_digests.push_back(Given<bool>("own_initial") ? InitialDigest(fragment) : 0);
  }
  run->rounds = Given<int64_t>("rounds");
  run->in_flight = Given<int>("in_flight");
  return run;
}

void PrintSpeed(double seconds, int64_t bytes, Sites sites) {
  int64_t received = 0;
  for (const auto& site : sites) received += site->received_bytes();
  Print({{"seconds", seconds},
         {"contribution_bytes", bytes},
         {"megabytes_per_s", static_cast<double>(bytes) * 1e-6 / seconds},
         {"received_bytes", received}});
}

void ByRounds(Sites sites, LightSite& holder, const LightRun& run, int64_t bytes_of_site) {
  std::string line;
  for (core::Version round = 0; round < run.rounds && std::getline(std::cin, line); ++round) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    for (const auto& site : sites) site->Allow(round + 1);
    for (const auto& site : sites) site->WaitAdmitted((round + 1) * run.map.num_fragments());
    const double seconds = core::SystemClock().SecondsSince(begin);
    holder.Allow(round + 1);
    for (const auto& site : sites) site->WaitHolds(round + 1);
    holder.WaitHolds(round + 1);
    holder.WaitAdmitted((round + 1) * run.map.num_fragments());
    PrintSpeed(seconds, bytes_of_site * static_cast<int64_t>(sites.size()), sites);
  }
}

}  // namespace

absl::Status PlaySites() {
  std::vector<std::string> names = NamesOfSites();
  const std::string holder = Given<std::string>("holder");
  if (!holder.empty()) names.push_back(holder);
  ASSIGN_OR_RETURN(const std::shared_ptr<LightRun> run, MakeRun(names.front()));
  std::vector<std::unique_ptr<LightSite>> sites;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto link, LinkOf(name));
    RETURN_IF_ERROR(link->Describe([] { return false; }).status());
    sites.push_back(std::make_unique<LightSite>(run, std::move(link)));
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
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    for (const auto& site : sites) site->Allow(run->rounds);
    for (const auto& site : sites) site->WaitHolds(run->rounds);
    PrintSpeed(core::SystemClock().SecondsSince(begin), bytes * static_cast<int64_t>(sites.size()) * run->rounds,
               sites);
  }
  heart.request_stop();
  heart.join();
  for (const auto& site : sites) site->Leave();
  return absl::OkStatus();
}

}  // namespace causeway::bench
