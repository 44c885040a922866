// A snapshot of a run with many sites and fragments, all of whose fields are filled as a long run would fill them.
#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

inline core::SiteId SiteNameForTest(int site) { return absl::StrFormat("datacenter-%02d", site); }

inline SiteStatus LargeSite(int site, int fragments) {
  core::Progress progress{.step = 123'456,
                          .tokens = 987'654'321,
                          .loss = 3.123456789,
                          .tokens_per_s = 12345.678901,
                          .compute_s = 54321.987654,
                          .stall_s = 123.456789,
                          .wall_s = 65432.123456,
                          .slack_s = 1.23456789,
                          .contributions_sent = 400'000,
                          .contributions_merged = 399'999,
                          .residual_norm = 0.123456789};
  for (int p = 0; p < fragments; ++p) {
    progress.digests[p] = {6'000 + p, 0x0123456789abcdef + static_cast<uint64_t>(p)};
    progress.fragments[p] = {p == 11 ? 0.25 : 1.23456789, 3, ""};
  }
  progress.link = {1.23456789e8, 2.3456789e8, 0.0812345, 4};
  progress.offload = {2, 100'000'000, "least predicted time of: cpu 0.333 s, 2: 0.280 s, 1: 0.240 s", 0.24, 0.25, 0.01};
  SiteStatus status{.name = SiteNameForTest(site),
                    .state = core::SiteState::kTraining,
                    .progress = std::make_shared<core::Progress>(progress),
                    .joined_s = 65432,
                    .up_bytes = 123'456'789'012,
                    .down_bytes = 123'456'789'012,
                    .up_bytes_per_s = 1234567.89012,
                    .down_bytes_per_s = 1234567.89012,
                    .merged_weight = 0.0156249876,
                    .contributing = true,
                    .contributing_reason = "open rounds expect it",
                    .cosine = SiteStatus::Cosine{63, 6'000, 0.123456789},
                    .last_merged = SiteStatus::Merged{63, 6'000, 1'763'700'000'000},
                    .missed = SiteStatus::Missed{12, 5'000,
                                                 "it had not begun to send its contribution when the round closed: "
                                                 "quorum of 32, and the grace of 100 ms is over"}};
  status.up_rate = status.down_rate = {1234567.89012, 98765432.1234};
  for (int i = 0; i < 100; ++i) status.loss_history.push_back({1'763'700'000'000 + i * 60'000, 3.0 + i * 0.012345});
  return status;
}

inline StatusSnapshot LargeSnapshot(int sites, int fragments) {
  StatusSnapshot snapshot{.run_id = "large",
                          .protocol = 4,
                          .epoch = 3,
                          .state = "training",
                          .uptime_s = 65432.1,
                          .parameters = 7'000'000'000,
                          .config_json = "{\"run_id\":\"large\"}",
                          .eval_loss_start = 9.5,
                          .eval_loss_latest = 3.25,
                          .eval_loss_versions = std::vector<core::Version>(fragments, 6'000),
                          .unix_ms = 1'763'700'000'000,
                          .min_quorum = 32,
                          .rounds_decided = 400'000};
  for (int i = 0; i < 200; ++i) snapshot.eval_history.push_back({1'763'700'000'000 + i * 60'000, 30 * i, 3.25});
  for (int site = 0; site < sites; ++site) snapshot.sites.push_back(LargeSite(site, fragments));
  for (int p = 0; p < fragments; ++p) {
    FragmentStatus& fragment = snapshot.fragments.emplace_back();
    fragment = {.id = p,
                .parameters = 109'375'000,
                .committed = {6'000 + p, 0x0123456789abcdef + static_cast<uint64_t>(p)},
                .state = "open",
                .reason = "waiting for ",
                .contributors = {},
                .gradient = OuterGradientFigures{0.123456789, 0.123456789, 2.123456789, 2.123456789, 1.23456789}};
    for (int site = 0; site < sites; ++site) {
      fragment.contributors.push_back(SiteNameForTest(site));
      absl::StrAppend(&fragment.reason, SiteNameForTest(site), ", ");
    }
  }
  return snapshot;
}

}  // namespace causeway::server
