#include "plan/round_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace causeway::plan {
namespace {

// Rounds until queues are as long as they get, and rounds that are then averaged. A queue holds P fragments at most and
// each waits for itself, so that a few rounds are enough; different sizes may alternate over several.
constexpr int kFirstRounds = 16;
constexpr int kSteadyRounds = 16;

constexpr double kNoStall = 1e-6;  // of a round: rounding

// Bytes that crossed at an even rate.
struct Crossing {
  double begin_s, end_s, bytes;
};

// A resource that serves one fragment after the other.
struct Queue {
  double free_s = 0;

  // Begins at `arrival_s` or when the previous one is done. Returns when this one is done; no sooner than `input_s`,
  // when the last of its input has arrived.
  double Serve(double arrival_s, double service_s, double input_s = 0) {
    begin_s = std::max(arrival_s, free_s);
    served_s += service_s;
    free_s = std::max(begin_s + service_s, input_s);
    return free_s;
  }
  double begin_s = 0;   // of the one served last
  double served_s = 0;  // all together
};

class Simulation {
 public:
  explicit Simulation(const RoundTimeInput& input, int64_t delay);
  // Seconds of a steady round. Once.
  double Run();
  RoundTime Summarise() const;  // after Run

 private:
  // A SEND or APPLY of the round, in the order of the schedule.
  struct Event {
    int64_t step;  // after which it happens, 0 … H − 1
    bool is_apply;
    core::FragmentId fragment;
    auto operator<=>(const Event&) const = default;
  };

  void Send(core::FragmentId p);
  void Apply(core::FragmentId p);

  const RoundTimeInput& input_;
  const int64_t delay_;
  std::vector<Event> events_;
  bool steady_ = false;
  double now_s_ = 0, round_s_ = 0;
  int64_t skipped_ = 0;
  Queue encode_, site_up_, hub_in_, merge_, hub_out_, site_down_, decode_;
  // With shards at the sites a link's two directions serve both, with (M − 1)/M of each payload.
  bool at_sites() const { return input_.shards_at_sites; }
  double share_of_remote() const { return at_sites() ? 1 - 1.0 / input_.sites : 1; }
  std::vector<double> sent_s_, ready_s_;  // of each fragment's latest round
  std::vector<FragmentTime> times_;
  std::vector<Crossing> up_, down_, held_;  // of the steady rounds; held: contributions at the coordinator
};

Simulation::Simulation(const RoundTimeInput& input, int64_t delay)
    : input_(input), delay_(delay), sent_s_(input.fragments.size()), ready_s_(input.fragments.size()) {
  const auto num_fragments = static_cast<int>(input.fragments.size());
  const core::FragmentSchedule schedule(input.sync_every, num_fragments, delay, input.offsets);
  for (core::FragmentId p = 0; p < num_fragments; ++p) {
    events_.push_back({schedule.Offset(p), false, p});
    events_.push_back({(schedule.Offset(p) + delay) % input.sync_every, true, p});
  }
  std::ranges::sort(events_);
  times_.assign(num_fragments, {0, kUnlimited});
}

void Simulation::Send(core::FragmentId p) {
  if (!input_.waits && ready_s_[p] > now_s_) {
    skipped_ += steady_;
    return;
  }
  const FragmentTraffic& fragment = input_.fragments[p];
  const auto values = static_cast<double>(fragment.parameters);
  const auto up = static_cast<double>(fragment.up_bytes), down = static_cast<double>(fragment.down_bytes);
  const double share = input_.payload_share;

  const double encoded_s = encode_.Serve(now_s_, values * input_.codec_s_per_value);
  double arrived_s = 0, left_s = 0, returned_s = 0, merged_s = 0;
  if (at_sites()) {
    const double remote = share_of_remote() / share;
    const double uploaded_s = site_up_.Serve(encoded_s, up * remote / input_.site_link.up_bytes_per_s);
    arrived_s = site_down_.Serve(site_up_.begin_s, up * remote / input_.site_link.down_bytes_per_s, uploaded_s);
    merged_s = merge_.Serve(arrived_s + input_.round_trip_s / 2, values * input_.merge_s_per_value / input_.sites);
    left_s = site_up_.Serve(merged_s, down * remote / input_.site_link.up_bytes_per_s);
    returned_s = site_down_.Serve(site_up_.begin_s, down * remote / input_.site_link.down_bytes_per_s, left_s);
  } else {
    const double uploaded_s = site_up_.Serve(encoded_s, up / (share * input_.site_link.up_bytes_per_s));
    arrived_s =
        hub_in_.Serve(site_up_.begin_s, input_.sites * up / (share * input_.hub_link.up_bytes_per_s), uploaded_s);
    merged_s = merge_.Serve(arrived_s + input_.round_trip_s / 2, values * input_.merge_s_per_value);
    left_s = hub_out_.Serve(merged_s, input_.sites * down / (share * input_.hub_link.down_bytes_per_s));
    returned_s = site_down_.Serve(hub_out_.begin_s, down / (share * input_.site_link.down_bytes_per_s), left_s);
  }
  ready_s_[p] = decode_.Serve(returned_s + input_.round_trip_s / 2, values * input_.codec_s_per_value);
  sent_s_[p] = now_s_;
  if (!steady_) return;
  const double arrives_s = at_sites() ? encoded_s : hub_in_.begin_s;
  up_.push_back({arrives_s, arrived_s, up});
  down_.push_back({site_down_.begin_s, returned_s, down});
  held_.push_back({arrives_s, merged_s, at_sites() ? up : up * input_.sites});
}

void Simulation::Apply(core::FragmentId p) {
  if (steady_) {
    times_[p].in_flight_s = std::max(times_[p].in_flight_s, ready_s_[p] - sent_s_[p]);
    times_[p].slack_s = std::min(times_[p].slack_s, now_s_ - ready_s_[p]);
  }
  if (input_.waits) now_s_ = std::max(now_s_, ready_s_[p]);
}

// The most bytes in any window of kPeakWindowS. It begins with a crossing or ends with one.
double Peak(const std::vector<Crossing>& crossings) {
  const auto bytes_within = [&](double begin_s, double end_s, size_t around) {
    double bytes = 0;
    const auto add = [&](const Crossing& c) {
      const double overlap_s = std::min(c.end_s, end_s) - std::max(c.begin_s, begin_s);
      if (c.end_s <= c.begin_s)
        bytes += c.begin_s >= begin_s && c.begin_s <= end_s ? c.bytes : 0;
      else if (overlap_s > 0)
        bytes += c.bytes * overlap_s / (c.end_s - c.begin_s);
    };
    for (size_t i = around; i < crossings.size() && crossings[i].begin_s <= end_s; ++i) add(crossings[i]);
    for (size_t i = around; i-- > 0 && crossings[i].end_s >= begin_s;) add(crossings[i]);
    return bytes;
  };
  double most = 0;
  for (size_t i = 0; i < crossings.size(); ++i) {
    most = std::max(most, bytes_within(crossings[i].begin_s, crossings[i].begin_s + kPeakWindowS, i));
    most = std::max(most, bytes_within(crossings[i].end_s - kPeakWindowS, crossings[i].end_s, i));
  }
  return most / kPeakWindowS;
}

// The most bytes whose intervals overlap.
double MostAtOnce(const std::vector<Crossing>& intervals) {
  std::vector<std::pair<double, double>> changes;  // when, bytes; at one time, what ends goes first
  for (const Crossing& interval : intervals) {
    changes.emplace_back(interval.begin_s, interval.bytes);
    changes.emplace_back(std::max(interval.end_s, std::nextafter(interval.begin_s, kUnlimited)), -interval.bytes);
  }
  std::ranges::sort(changes);
  double bytes = 0, most = 0;
  for (const auto& change : changes) most = std::max(most, bytes += change.second);
  return most;
}

RoundTime Simulation::Summarise() const {
  RoundTime result;
  const auto sum = [](const std::vector<Crossing>& crossings) {
    double bytes = 0;
    for (const Crossing& crossing : crossings) bytes += crossing.bytes;
    return bytes / kSteadyRounds;
  };
  const auto sends = static_cast<double>(input_.fragments.size() * kSteadyRounds);
  result.delay = delay_;
  result.compute_s = static_cast<double>(input_.sync_every) * input_.step_s;
  result.round_s = round_s_;
  result.stall_s = round_s_ - result.compute_s;
  result.utilization = result.compute_s / result.round_s;
  result.sent_share = 1 - static_cast<double>(skipped_) / sends;
  result.up_bytes = sum(up_);
  result.down_bytes = sum(down_);
  result.up_bytes_per_s = result.up_bytes / result.round_s;
  result.down_bytes_per_s = result.down_bytes / result.round_s;
  // A round shorter than the window would count for less than its mean at the ends of the simulated time.
  result.up_peak_bytes_per_s = std::max(Peak(up_), result.up_bytes_per_s);
  result.down_peak_bytes_per_s = std::max(Peak(down_), result.down_bytes_per_s);
  result.contributions_bytes = MostAtOnce(held_);
  // At the sites a link has both legs in each direction.
  const double both = (result.up_bytes + result.down_bytes) * share_of_remote();
  const double up = at_sites() ? both : result.up_bytes, down = at_sites() ? both : result.down_bytes;
  result.site_up_busy_s = up / (input_.payload_share * input_.site_link.up_bytes_per_s);
  result.site_down_busy_s = down / (input_.payload_share * input_.site_link.down_bytes_per_s);
  if (!at_sites()) {
    result.hub_in_busy_s = input_.sites * result.up_bytes / (input_.payload_share * input_.hub_link.up_bytes_per_s);
    result.hub_out_busy_s =
        input_.sites * result.down_bytes / (input_.payload_share * input_.hub_link.down_bytes_per_s);
  }
  const double busiest_s =
      std::max({result.site_up_busy_s, result.site_down_busy_s, result.hub_in_busy_s, result.hub_out_busy_s});
  result.bound = std::min(1.0, result.compute_s / busiest_s);
  if (!input_.waits) result.bound = 1;
  result.fragments = times_;
  return result;
}

double Simulation::Run() {
  double steady_from_s = 0;
  for (int round = 0; round < kFirstRounds + kSteadyRounds; ++round) {
    if (round == kFirstRounds) {
      steady_ = true;
      steady_from_s = now_s_;
    }
    int64_t step = 0;
    for (const Event& event : events_) {
      now_s_ += static_cast<double>(event.step - step) * input_.step_s;
      step = event.step;
      event.is_apply ? Apply(event.fragment) : Send(event.fragment);
    }
    now_s_ += static_cast<double>(input_.sync_every - step) * input_.step_s;
  }
  const double compute_s = static_cast<double>(input_.sync_every) * input_.step_s;
  round_s_ = (now_s_ - steady_from_s) / kSteadyRounds;
  // Where links are a little too slow and τ is large, queues still grow after the first rounds: the stall is to come.
  for (const Queue* queue : {&encode_, &site_up_, &hub_in_, &merge_, &hub_out_, &site_down_, &decode_}) {
    if (input_.waits) round_s_ = std::max(round_s_, queue->served_s / (kFirstRounds + kSteadyRounds));
  }
  if (round_s_ < compute_s * (1 + kNoStall)) round_s_ = compute_s;
  return round_s_;
}

void CheckInput(const RoundTimeInput& input) {
  CHECK(input.sites >= 1 && input.step_s > 0 && input.round_trip_s >= 0);
  CHECK(!input.fragments.empty() && static_cast<int64_t>(input.fragments.size()) <= input.sync_every);
  CHECK(!input.delay.has_value() || (*input.delay >= 0 && *input.delay < input.sync_every));
  for (const LinkRate& link : {input.site_link, input.hub_link}) {
    CHECK(link.up_bytes_per_s > 0 && link.down_bytes_per_s > 0);
  }
  CHECK(input.payload_share > 0 && input.codec_s_per_value >= 0 && input.merge_s_per_value >= 0);
}

}  // namespace

RoundTime PredictRound(const RoundTimeInput& input) {
  CheckInput(input);
  Simulation simulation(input, input.delay.has_value() ? *input.delay : LeastDelay(input));
  simulation.Run();
  return simulation.Summarise();
}

int64_t LeastDelay(const RoundTimeInput& input) {
  CheckInput(input);
  RoundTimeInput waiting = input;
  waiting.waits = true;  // in quorum mode, what a synchronous run would need
  const auto round_s = [&](int64_t delay) { return Simulation(waiting, delay).Run(); };
  int64_t too_small = -1, enough = input.sync_every - 1;
  const double least_s = round_s(enough) * (1 + kNoStall);
  while (enough - too_small > 1) {
    const int64_t middle = (too_small + enough) / 2;
    (round_s(middle) <= least_s ? enough : too_small) = middle;
  }
  return enough;
}

std::optional<double> LeastRate(const RoundTimeInput& input, PlannedLink link, double utilization) {
  CheckInput(input);
  RoundTimeInput tried = input;
  const int64_t delay = input.delay.value_or(input.sync_every - 1);
  const double longest_s = static_cast<double>(input.sync_every) * input.step_s / utilization;
  LinkRate& rate = link == PlannedLink::kSite ? tried.site_link : tried.hub_link;
  const auto reaches = [&](double bytes_per_s) {
    rate = {bytes_per_s, bytes_per_s};
    return Simulation(tried, delay).Run() <= longest_s;
  };
  if (!reaches(kUnlimited)) return std::nullopt;
  double too_slow = 1, enough = 1e15;  // bytes/s: slower and faster than any link
  while (enough / too_slow > 1.001) {
    const double middle = std::sqrt(too_slow * enough);
    (reaches(middle) ? enough : too_slow) = middle;
  }
  return enough;
}

}  // namespace causeway::plan
