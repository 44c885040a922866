// The held-out losses that sites report: the run's, where all evaluate on the same text, or each site's own. One owner
// at a time.
#pragma once

#include "core/membership.h"
#include "core/progress.h"
#include "server/rounds/data_fact.h"
#include "server/run/outbox.h"
#include "server/store/records.h"

namespace causeway::server {

class Evaluations {
 public:
  void Restore(EvalLoss loss) { loss_ = std::move(loss); }
  void Heard(const core::SiteId& site, const core::Progress& progress, const DataFact& data, Outbox& outbox) {
    if (!progress.eval_loss) return;
    if (data.EvaluatesForAll(site)) {
      loss_.latest = progress.eval_loss;
      loss_.versions = progress.eval_versions;
      if (!loss_.start) loss_.start = loss_.latest;
    } else {
      loss_.by_site[site] = {.loss = *progress.eval_loss, .versions = progress.eval_versions};
    }
    outbox.Store(loss_);
  }
  const EvalLoss& loss() const { return loss_; }

 private:
  EvalLoss loss_;
};

}  // namespace causeway::server
