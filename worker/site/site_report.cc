#include "worker/site/site_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

template <typename Chunk>
int64_t BytesOf(const std::vector<Chunk>& chunks) {
  int64_t bytes = 0;
  for (const Chunk& chunk : chunks) bytes += static_cast<int64_t>(chunk.size());
  return bytes;
}

}  // namespace

SiteReport::SiteReport(const core::RunConfig& config, core::SiteId site, const core::Clock* clock)
    : site_(std::move(site)), clock_(clock), totals_{.codec_up = config.codec.up, .codec_down = config.codec.down} {}

void SiteReport::Trained(const TrainingReport& report) {
  new_tokens_ += report.tokens - std::exchange(trained_tokens_, report.tokens);
  progress_.step = report.step;
  progress_.loss = report.loss;
  progress_.lr = report.lr;
  progress_.tokens_per_s = report.tokens_per_s;
  progress_.compute_s = report.compute_s;
  progress_.offload = report.offload;
}

void SiteReport::Evaluated(double loss, std::vector<core::Version> versions) {
  progress_.eval_loss = loss;
  progress_.eval_versions = std::move(versions);
}

void SiteReport::HeardEvaluation(const core::Progress& progress) {
  if (progress.eval_loss && progress_.eval_versions == progress.eval_versions) progress_.eval_loss.reset();
}

void SiteReport::Sends(core::FragmentId fragment, const std::vector<core::Bytes>& contribution,
                       const std::string& encoded_on) {
  totals_.up_bytes += BytesOf(contribution);
  encoded_on_[fragment] = encoded_on;
}

void SiteReport::Takes(const transport::DownloadHeader& header, const std::vector<std::string>& update) {
  totals_.down_bytes += BytesOf(update);
  totals_.codec_down = core::CodecFromNumber(header.codec).value_or(totals_.codec_down);
  totals_.codec_up = core::CodecFromNumber(header.up_codec).value_or(totals_.codec_up);
  const auto own = std::ranges::find(header.merged, site_) - header.merged.begin();
  const double weight = own < std::ssize(header.merged_weights) ? header.merged_weights[own] : 0;
  totals_.merged_weight += (weight - totals_.merged_weight) / static_cast<double>(++totals_.updates);
}

core::Progress SiteReport::Make(const SiteRules& rules, const core::LinkProgress& link) {
  const SiteState& state = rules.state();
  if (entered_ != state.counts.entered && state.entered()) {
    entered_ = state.counts.entered;
    entered_at_ = clock_->Now();
    progress_.step = state.step;
    progress_.compute_s = 0;
  }
  if (state.entered()) progress_.wall_s = clock_->SecondsSince(entered_at_);
  progress_.compute_s = std::min(progress_.compute_s, progress_.wall_s);  // two clocks' readings, apart
  progress_.step = std::max(progress_.step, state.step);
  progress_.tokens = state.trained.tokens + new_tokens_;
  progress_.run_tokens = state.RunTokens();
  progress_.stall_s = state.counts.stall_s;
  progress_.contributions_sent = state.counts.sent;
  progress_.contributions_merged = state.counts.merged;
  progress_.contributions_skipped = state.counts.skipped;
  progress_.completing = state.stay.stage == Stage::kCompleting || state.stay.stage == Stage::kCompleted;
  progress_.in_flight.clear();
  for (const FragmentRules& fragment : state.fragments) {
    const core::FragmentProgress progress = fragment.progress();
    const bool first = fragment.id() == 0;
    progress_.slack_s = first ? progress.slack_s : std::min(progress_.slack_s, progress.slack_s);
    progress_.fragments[fragment.id()] = progress;
    if (const auto on = encoded_on_.find(fragment.id()); on != encoded_on_.end()) {
      progress_.fragments[fragment.id()].encoded_on = on->second;
    }
    if (!state.entered() || !fragment.facts().sent) continue;
    progress_.in_flight.push_back(
        absl::StrCat(fragment.id(), fragment.facts().sent->admitted ? ":waiting" : ":sending"));
  }
  progress_.link = link;
  return progress_;
}

}  // namespace causeway::worker
