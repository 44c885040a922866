// The duration of a round of all fragments, which a planner prints, and by which a codec is chosen.
//
//   step loop      H·step: … SEND p … SEND q … APPLY p (waits for its update) …
//   a site         encode ─► link up ─┐                               ┌─► link down ─► decode, outer step ─► ready
//   coordinator                       └─► hub in ─► merge ─► hub out ─┘
//                  one payload        M of them              M of them      one payload; half a round trip on each leg
//
// A deterministic simulation of a few rounds, of which the steady ones count. All sites are alike, so it follows one.
// Each part of the path serves fragments one after the other, and the chunks of a fragment flow through links in a row,
// so that a leg takes as long as its slowest link. Encoding, merging and decoding begin when a whole fragment is there.
// It ignores TCP slow start, lost packets, the journal's disk, and steps of unequal length. The idea comes from the
// simulator in arXiv 2501.18512, section 3.3, which has one network resource and no return leg. Seconds, bytes and
// bytes/s. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/schedule.h"

namespace causeway::plan {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The share of a link's rate left for payload by Ethernet, IP, TCP, TLS and HTTP/2. Headers of full packets take 5 %
// (1448 of 1538 bytes on Ethernet are left), framing and acknowledgements of the other leg 1 %.
inline constexpr double kPayloadShare = 0.94;

struct LinkRate {
  double up_bytes_per_s = kUnlimited;  // a site: towards the coordinator; the hub: what all sites send
  double down_bytes_per_s = kUnlimited;
};

struct FragmentTraffic {
  int64_t parameters = 0;
  int64_t up_bytes = 0;  // encoded bytes of one site
  int64_t down_bytes = 0;
};

struct RoundTimeInput {
  int sites = 1;                    // M
  int64_t sync_every = 1;           // H
  std::vector<core::Step> offsets;  // t_p of each fragment; empty: spread evenly
  std::optional<int64_t> delay;     // τ; none: the least that costs no stall, see LeastDelay
  bool waits = true;                // APPLY waits for its update; false: quorum mode, where a SEND is skipped instead
  double step_s = 0;                // time of one inner step
  std::vector<FragmentTraffic> fragments;
  LinkRate site_link, hub_link;  // rates on the wire
  // Each site's datacenter has a shard, which merges 1/M of every fragment: there is no hub, and a site's link carries
  // its contributions to the other shards and its own shard's updates, (M − 1)/M of a payload each, in each direction.
  bool shards_at_sites = false;
  double payload_share = kPayloadShare;
  double round_trip_s = 0;
  double codec_s_per_value = 0;  // at a site, once to encode and once to decode and step
  double merge_s_per_value = 0;  // at the coordinator, for all sites' contributions together
};

struct FragmentTime {
  double in_flight_s = 0;  // time from SEND until the update is ready; the longest of the steady rounds
  double slack_s = 0;      // time from then until APPLY is due; negative: the step loop waits; the minimum
};

// Per round: the time in which every fragment is synced once.
struct RoundTime {
  int64_t delay = 0;  // τ
  double compute_s = 0;
  double stall_s = 0;
  double round_s = 0;      // compute + stall
  double utilization = 0;  // compute ÷ round
  double bound = 0;        // upper bound on utilization for any τ: compute ÷ the busiest link's seconds, at most 1
  double sent_share = 1;   // SENDs that were not skipped (waits = false)
  double site_up_busy_s = 0, site_down_busy_s = 0, hub_in_busy_s = 0, hub_out_busy_s = 0;
  double up_bytes = 0, down_bytes = 0;  // payload of one site; the hub has M times as much (shards at sites: no hub)
  // Payload on a site's link, mean over the round, and the most in a window of kPeakWindowS.
  double up_bytes_per_s = 0, down_bytes_per_s = 0, up_peak_bytes_per_s = 0, down_peak_bytes_per_s = 0;
  double contributions_bytes = 0;  // the most bytes of all sites' contributions that the coordinator holds at once
  std::vector<FragmentTime> fragments;
};

inline constexpr double kPeakWindowS = 1;  // like a meter that is read once a second

// CHECKs that the input is sound: a fragment at least and at most H, 0 ≤ τ < H, 0 ≤ t_p < H, positive step time and
// rates.
RoundTime PredictRound(const RoundTimeInput& input);

// The least τ with which the step loop waits as little as with τ = H − 1: not at all, unless links are too slow.
int64_t LeastDelay(const RoundTimeInput& input);

enum class PlannedLink { kSite, kHub };

// The least rate of that link, equal in both directions, that reaches this utilization (synchronous mode), within 0.1
// %; the other link stays as it is. None: no rate does.
std::optional<double> LeastRate(const RoundTimeInput& input, PlannedLink link, double utilization);

}  // namespace causeway::plan
