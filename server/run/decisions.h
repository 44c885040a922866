// Decided rounds on their way to the merge: what the journal keeps of them, and what their members hear of in the
// status. One owner at a time.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/run_config.h"
#include "server/rounds/run_rules.h"
#include "server/run/members.h"
#include "server/run/open_uploads.h"
#include "server/run/run_codecs.h"
#include "server/run/run_figures.h"
#include "server/run/run_model.h"
#include "server/run/run_parts.h"

namespace causeway::server {

class Decisions {
 public:
  // The arguments outlive this object.
  Decisions(const core::RunSettings& settings, const core::Clock& clock, RunModel& model, RunCodecs& codecs,
            OpenUploads& uploads, RunFigures& figures)
      : settings_(settings), clock_(clock), model_(model), codecs_(codecs), uploads_(uploads), figures_(figures) {}

  // Takes the round's contributions; they are merged once the decision is durable.
  void Carry(const CloseRound& action, RunParts& run);
  void Forget(const core::SiteId& site) { figures_.Forget(site); }  // the run has forgotten the site
  int64_t count() const { return closed_; }                         // rounds decided in this life

 private:
  std::optional<RoundCodecs> DecideCodecs(const CloseRound& round, RunParts& run);
  void NoteMembers(const CloseRound& action, RunParts& run);
  std::string WhyMissed(const CloseRound& action, const core::SiteId& site, const core::SiteRecord& record,
                        const Member& member) const;

  const core::RunSettings& settings_;
  const core::Clock& clock_;
  RunModel& model_;
  RunCodecs& codecs_;
  OpenUploads& uploads_;
  RunFigures& figures_;
  int64_t closed_ = 0;
  std::map<core::FragmentId, std::string> noted_reasons_;  // last written to the log, without their numbers
};

}  // namespace causeway::server
