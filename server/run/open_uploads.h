// The contributions to the open round of each fragment: those that arrive, and those that were admitted. Here are their
// bytes; the rules' facts about them are in core::RoundState.
//
//   header ─ Begin ─► chunks arrive ─ Complete ─► the rules admit or refuse ─► journal ─► verdict
//                                                                    a round closes ─ Take ─► merge
//
// One owner at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/ids.h"
#include "core/membership.h"
#include "server/merge/contribution.h"
#include "server/run/members.h"
#include "server/run/run_codecs.h"
#include "server/run/run_figures.h"
#include "server/run/run_model.h"
#include "server/run/run_parts.h"

namespace causeway::server {

// A contribution, or initial parameters, that is being received.
struct Upload {
  std::shared_ptr<Contribution> contribution;  // nullptr: the verdict needs no chunk
  std::shared_ptr<SiteMeters> meters;
};
v1::Verdict AdmittedVerdict();

class OpenUploads {
 public:
  struct Arriving {
    std::shared_ptr<Contribution> contribution;
    core::Version base = 0;
    int64_t begun_ms = 0;  // on the monotonic clock
  };
  using Perform = absl::FunctionRef<void(const Actions&)>;

  // The arguments outlive this object.
  OpenUploads(const RunModel& model, const RunCodecs& codecs, RunFigures& figures, const core::Clock& clock)
      : model_(model), codecs_(codecs), figures_(figures), clock_(clock) {}

  void Reset(int num_fragments) { open_.assign(num_fragments, {}); }  // for another model
  int num_fragments() const { return static_cast<int>(open_.size()); }

  // ABORTED: the header is of an earlier stay. A contribution that the rules refuse needs no chunk.
  absl::StatusOr<Upload> Begin(const v1::UploadHeader& header, RunParts& run);
  // Every chunk is here, or none is needed. `perform` carries out the rules' actions.
  void Complete(const v1::UploadHeader& header, const Upload& upload, const std::shared_ptr<UploadPeer>& peer,
                RunParts& run, Perform perform);

  // Refuses an upload whose chunks cannot be taken; the round does not expect it any more.
  void Refuse(const v1::UploadHeader& header, const Upload& upload, const std::string& why,
              const std::shared_ptr<UploadPeer>& peer, RunParts& run, Perform perform);

  const Arriving* Find(core::FragmentId fragment, const core::SiteId& site) const;  // null: none
  // Restores the contributions that an earlier life had admitted to the open round. DATA_LOSS names the segment.
  absl::Status Restore(core::FragmentId fragment, const std::vector<StoredContribution>& stored,
                       const core::RoundState& state, int64_t now_ms);
  // Hands a contribution to the round that merges it. REQUIRES: it is there.
  std::shared_ptr<Contribution> Take(core::FragmentId fragment, const core::SiteId& site);
  void Clear(core::FragmentId fragment) { open_[fragment].clear(); }
  void Forget(const core::SiteId& site, const core::RoundState& state);  // drops its uploads that were not admitted

 private:
  void Refuse(const v1::UploadHeader& header, ContributionRefused refused, RunParts& run, Perform perform);
  void Forget(core::FragmentId fragment, const core::SiteId& site, const Upload& upload, const core::RoundState& state);

  const RunModel& model_;
  const RunCodecs& codecs_;
  RunFigures& figures_;
  const core::Clock& clock_;
  std::vector<std::map<core::SiteId, Arriving>> open_;
};

}  // namespace causeway::server
