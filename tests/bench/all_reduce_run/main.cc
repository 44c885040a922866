// One rank of a native site, which all-reduces float32 values with the others over Gloo. Rank 0 prints the seconds of
// each, a line of JSON.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "core/check.h"
#include "core/clock.h"
#include "worker/loop/site_ranks.h"

ABSL_FLAG(int, rank, 0, "this rank");
ABSL_FLAG(int, world, 2, "number of ranks");
ABSL_FLAG(std::string, rendezvous, "", "HOST:PORT or unix:PATH");
ABSL_FLAG(int64_t, values, 1 << 24, "of an all-reduce");
ABSL_FLAG(int, repeats, 10, "all-reduces that are timed, after one that is not");

namespace causeway::worker {
namespace {

absl::Status Run() {
  const SiteRanksOptions options{.place = {.rank = absl::GetFlag(FLAGS_rank),
                                           .world = absl::GetFlag(FLAGS_world),
                                           .rendezvous = absl::GetFlag(FLAGS_rendezvous)},
                                 .identity = "all_reduce_run",
                                 .timeout_s = 60};
  ASSIGN_OR_RETURN(const std::unique_ptr<SiteRanks> site, SiteRanks::Open(options));
  Collectives& ranks = *site->ForTrainer({}).values;
  std::vector<float> values(absl::GetFlag(FLAGS_values), 1.0f);
  std::vector<double> seconds;
  for (int i = 0; i <= absl::GetFlag(FLAGS_repeats); ++i) {
    RETURN_IF_ERROR(ranks.Await(ranks.Barrier(), TimeoutOf(60)));
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    RETURN_IF_ERROR(ranks.Await(ranks.AllReduce(values), TimeoutOf(60)));
    if (i > 0) seconds.push_back(core::SystemClock().SecondsSince(begin));
    std::fill(values.begin(), values.end(), 1.0f);
  }
  if (options.place.rank > 0) return absl::OkStatus();
  std::printf("{\"seconds\": [");
  for (size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("]}\n");
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = causeway::worker::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "all_reduce_run: %s\n", std::string(status.message()).c_str());
  return 1;
}
