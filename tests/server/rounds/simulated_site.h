// A site as the rules see it, which does no arithmetic but counts: each inner step adds 1 to the outer gradient of each
// fragment (`outstanding`), and a contribution that was merged takes out what it held. So whatever is lost or counted
// twice shows as a sum that is off. Follows docs/architecture.md: one unresolved contribution for each fragment, a send
// that is due meanwhile is skipped, and only an update that merged this site's contribution takes work out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule.h"
#include "server/rounds/round_table.h"

namespace causeway::server {

struct Unresolved {
  core::Version base = 0;
  int64_t work = 0;
  // What the simulation knows and the site does not.
  bool admitted = false;
  bool merged = false;
};

struct SimulatedSite {
  enum class Where { kOut, kJoining, kIn };

  core::SiteId name;
  core::SessionId session;
  int64_t step_ms = 0;
  int64_t latency_ms = 0;
  int64_t straggle = 1;  // by how much its steps take longer for the time being

  bool running = false;   // the process
  int64_t start_ms = -1;  // when the process starts, if it does not run; -1 = not before there is peace
  uint64_t life = 0;      // events of an earlier one are void
  Where where = Where::kOut;
  bool cut = false;       // neither sends nor receives
  bool stepping = false;  // a step is under way; otherwise it waits, for an update or for the operator
  bool draining = false;
  bool completing = false;
  int64_t heard_steps = 0;  // the coordinator heard of, one after the other
  bool estimated = false;   // … so that it knows how long they take
  core::Step target = 0;    // after which it has finished; 0 = never

  core::Step step = 0;
  std::vector<core::Version> versions;
  std::vector<core::Version> first_versions;
  std::vector<int64_t> outstanding;
  std::vector<std::optional<Unresolved>> unresolved;

  bool AnyUnresolved() const {
    for (const auto& one : unresolved) {
      if (one) return true;
    }
    return false;
  }

  std::vector<core::Version> Held() const { return where == Where::kIn ? versions : std::vector<core::Version>(); }

  void Enter(const core::Entry& entry) {
    where = Where::kIn;
    step = entry.step;
    versions = entry.versions;
    first_versions = entry.first_versions;
    outstanding.resize(versions.size());
    unresolved.resize(versions.size());
    draining = completing = false;
  }

  // The contribution of fragment p that is due at the end of this step, if any.
  std::optional<core::Version> Due(const core::FragmentSchedule& schedule, core::FragmentId p, bool synchronous) const {
    const core::Version base = schedule.SendsAt(p, step);
    const core::Version sent = synchronous ? base : versions[p];
    if (base < 0 || sent < first_versions[p] || unresolved[p]) return std::nullopt;
    return sent;
  }

  void Apply(core::FragmentId p, const std::vector<CloseRound::Contributor>& merged) {
    ++versions[p];
    for (const CloseRound::Contributor& contributor : merged) {
      if (contributor.site != name || !unresolved[p] || unresolved[p]->base != contributor.base) continue;
      outstanding[p] -= unresolved[p]->work;
      unresolved[p].reset();
    }
  }

  // It joins anew and keeps what it has not contributed: of what was admitted, merged or not, another copy would be
  // merged twice. False if the coordinator tells something else than what it did.
  bool ForgetAdmitted(const std::vector<core::Version>& last_admitted) {
    for (size_t p = 0; p < unresolved.size(); ++p) {
      if (!unresolved[p]) continue;
      if ((last_admitted[p] >= unresolved[p]->base) != unresolved[p]->admitted) return false;
      if (unresolved[p]->admitted) outstanding[p] -= unresolved[p]->work;
      unresolved[p].reset();
    }
    return true;
  }
};

}  // namespace causeway::server
