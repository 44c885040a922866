// A site of a simulated run: the real rules of worker/site, and what their actions do, counted instead of computed.
// Each inner step adds 1 to the outer gradient of each fragment (`outstanding`), and an update that merged a
// contribution takes out what that held. So whatever is lost or counted twice shows as a sum that is off.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/site/site_rules.h"

namespace causeway::server {

// A contribution whose outcome W does not have yet.
struct SentWork {
  core::Version base = 0;
  int64_t work = 0;
  // What the simulation knows and the site does not.
  bool admitted = false;
  bool merged = false;
};

// A download that was asked for and has not come.
struct AskedFor {
  worker::Tag tag;
  bool anchor = false;
  core::Version version = 0;  // the least of an anchor, the base of an update
};

// A fragment's arrays, as far as they are simulated.
struct SimulatedFragment {
  int64_t outstanding = 0;  // W − θ
  int64_t read = 0;         // of it, in the contribution that is being made
  std::optional<SentWork> sent;
  std::optional<AskedFor> asked;
  std::optional<bool> resolves;  // when the update that is being taken is in W
};

struct SimulatedSite {
  core::SiteId name;
  core::SessionId session;
  int64_t step_ms = 0;
  int64_t latency_ms = 0;
  int64_t straggle = 1;  // by how much its steps take longer for the time being

  bool running = false;    // the process
  int64_t start_ms = -1;   // when the process starts, if it does not run; -1: not before there is peace
  uint64_t life = 0;       // of the process; events of an earlier one are void
  uint64_t transfers = 0;  // rises when the link drops its transfers; theirs are void then
  bool connected = false;  // its control stream, which is the …
  uint64_t stream = 0;     // … th
  bool cut = false;        // neither sends nor receives
  bool stepping = false;   // a step is in progress; otherwise it waits, for an update or for the operator
  bool draining = false;
  bool leaves_early = false;  // … when what it sent is admitted, merged or not
  bool completing = false;
  bool may_lose = false;      // θ may start from the anchor: updates that it needs are gone, or it has completed
  int64_t heard_steps = 0;    // the coordinator heard of, one after the other
  core::Step heard_step = 0;  // the last of them
  bool estimated = false;     // … so that it knows how long they take
  core::Step target = 0;      // after which it has finished; 0: never

  std::unique_ptr<worker::SiteRules> rules;  // of the process
  std::deque<worker::SiteAction> step_actions;
  std::vector<SimulatedFragment> fragments;

  bool in() const { return rules != nullptr && rules->state().entered(); }
  core::Step step() const { return rules == nullptr ? 0 : rules->state().step; }
  bool AnySending() const {
    for (const worker::FragmentRules& fragment : rules->state().fragments) {
      const auto& sent = fragment.facts().sent;
      if (sent && !sent->admitted) return true;
    }
    return false;
  }
  bool AnyBusy() const {
    for (const worker::FragmentRules& fragment : rules->state().fragments) {
      if (fragment.busy()) return true;
    }
    return false;
  }
};

}  // namespace causeway::server
