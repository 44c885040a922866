// The effects of an event until they are published: rows for the journal, and what follows once those are durable.
//
//   rules' actions ── Note, Store, Then ──► Outbox ── Publish ──► Journal ── durable ──► messages, verdicts, merges
//
// Nothing leaves before it is durable, in the order of the events, so no other object sends. etcd's raft does the same
// with its Ready: persist, then send. One owner at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/store/journal.h"
#include "server/store/records.h"

namespace causeway::server {

class Outbox {
 public:
  // Adds an event to the history; `fragment` −1 and `site` "": none. The text is clipped to core::kMaxEventTextBytes.
  void Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment, const std::string& text);
  void Note(const std::string& kind, const std::string& text) { Note(kind, "", -1, text); }

  void StateChanged() { state_changed_ = true; }  // the rules' state goes to the journal
  void Store(const ModelRecord& model) { entry_.model = model; }
  void Store(const core::DataOfSites& data) { entry_.data = data; }
  void Store(const EvalLoss& loss) { entry_.eval_loss = loss; }
  void Store(core::SettingsRevision revision) { entry_.settings.revisions.push_back(std::move(revision)); }
  void Store(ContributionRecord admitted) { entry_.admitted.push_back(std::move(admitted)); }
  void Store(RoundRecord decided) { entry_.decided.push_back(std::move(decided)); }

  void Then(std::function<void()> effect) { effects_.push_back(std::move(effect)); }  // on the journal's thread

  // Commits all of it, as one entry; does nothing if there is nothing.
  void Publish(const core::RoundState& state, Journal& journal);

 private:
  JournalEntry entry_;
  bool state_changed_ = false;
  std::vector<std::function<void()>> effects_;
};

}  // namespace causeway::server
