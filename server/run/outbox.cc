#include "server/run/outbox.h"

#include <utility>

#include "core/limits.h"
#include "core/text.h"

namespace causeway::server {

void Outbox::Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment,
                  const std::string& text) {
  entry_.events.push_back(
      {.kind = kind, .site = site, .fragment = fragment, .text = core::Clipped(text, core::kMaxEventTextBytes)});
}

void Outbox::Publish(const core::RoundState& state, Journal& journal) {
  const bool rows = state_changed_ || entry_.eval_loss || entry_.model || entry_.data || !entry_.admitted.empty() ||
                    !entry_.decided.empty() || !entry_.events.empty();
  if (!rows && effects_.empty()) return;
  if (state_changed_) entry_.state = state;
  entry_.durable = [effects = std::move(effects_)] {
    for (const auto& effect : effects) effect();
  };
  journal.Commit(std::move(entry_));
  entry_ = {};
  effects_ = {};
  state_changed_ = false;
}

}  // namespace causeway::server
