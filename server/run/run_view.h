// The run as a reader of the status sees it: everything that the exchange owns, to be read under its lock.
#pragma once

#include <cstdint>

#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/run/admission.h"
#include "server/run/members.h"
#include "server/run/parameters.h"
#include "server/run/run_codecs.h"
#include "server/run/run_options.h"
#include "server/run/seeding.h"
#include "server/run/shard_reports.h"
#include "server/status/status_snapshot.h"
#include "server/store/records.h"

namespace causeway::server {

struct RunView {
  const RunOptions& options;
  const RunRules& rules;
  const ModelFact& model;
  const Parameters* parameters;  // null before there is a model
  const Members& members;
  const Seeding& seeding;
  const Admission& admission;
  const RunCodecs& codecs;
  const core::RunSettings& settings;
  const EvalLoss& eval_loss;
  const ShownShards& shown_shards;
  uint64_t epoch = 0;
  int64_t started_ms = 0;     // on the monotonic clock
  int64_t rounds_closed = 0;  // rounds closed in this life
};

// The status without the figures of rounds (run_figures.h), of the journal and of the scrubber.
StatusSnapshot SnapshotOf(const RunView& run);

}  // namespace causeway::server
