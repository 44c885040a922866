// causewayctl report: a run's status and history as one HTML file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "ctl/client.h"

namespace causeway::ctl {

// A run as one HTML file that needs no network: figures, curves, tables, events, settings, a sample.
//
//   GET /status ─┐
//   history     ─┼─► ReportHtml ─► FILE.html, at most 1 MB, without scripts
//   an export   ─┘

// The newest events of all coordinators about the run as a whole, added in any order.
class ReportEvents {
 public:
  static constexpr size_t kMost = 300;

  // `shard` is the coordinator's number; events of shards above 0 name their shard.
  void Add(v1::HistoryEvent event, int shard = 0);

  // Events by their time; those of the same millisecond in the order of Add.
  const std::multimap<int64_t, v1::HistoryEvent>& newest() const { return newest_; }
  int64_t rounds() const { return rounds_; }    // round events, which are counted, not listed
  int64_t omitted() const { return omitted_; }  // events older than newest()

 private:
  std::multimap<int64_t, v1::HistoryEvent> newest_;
  int64_t rounds_ = 0;
  int64_t omitted_ = 0;
};

struct ReportInput {
  std::string status_json;  // the answer to GET /status
  ReportEvents events;
  int shards = 1;           // coordinators whose events these are
  std::string coordinator;  // their addresses, for the commands that the report names
  std::string model_dir;    // the path of an export of the model; empty: none yet
  std::string sample;       // the model's output; empty: none
};

// INVALID_ARGUMENT: the status is not one of this version.
absl::StatusOr<std::string> ReportHtml(const ReportInput& input);

// `shards` are the run's coordinators in their order, of which the first has the status; `coordinator` has their
// addresses. INVALID_ARGUMENT: `out` is empty or cannot be written, or a file of --sample cannot be read.
absl::Status RunReportCommand(std::span<Client> shards, const std::string& out, const std::string& coordinator);

}  // namespace causeway::ctl
