#include "tests/sim/residuals.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "codecs/error_feedback.h"
#include "core/check.h"
#include "core/outer_step.h"

namespace causeway::sim {
namespace {

constexpr size_t kReadings = 3;
constexpr size_t kPast = 8;

}  // namespace

void Residuals::Read(const std::string& life, core::FragmentId fragment, std::span<const float> theta) {
  Readings& readings = readings_[{life, fragment}];
  ++unmatched_[{life.substr(0, life.find('#')), fragment}];
  readings.last.push_back({readings.number++, Values(theta.begin(), theta.end())});
  if (readings.last.size() > kReadings) readings.last.pop_front();
}

bool Residuals::Fits(const core::Fragment& fragment, std::span<const float> anchor, const Reading& reading,
                     const Values& residual, const std::map<int64_t, std::string>& chunks, Values* next) {
  Values delta(reading.theta.size());
  for (const core::TensorPlace& place : fragment.tensors) {
    const auto first = static_cast<size_t>(place.first_unit * core::kUnitValues);
    const auto count = static_cast<size_t>(place.values);
    core::OuterGradient(anchor.subspan(first, count), std::span(reading.theta).subspan(first, count),
                        std::span(delta).subspan(first, count));
  }
  codecs::ErrorFeedback feedback(fragment.padded_values(), config_.codec.feedback_up, &pool_);
  if (!residual.empty()) feedback.Restore(residual);
  const auto encoded = feedback.Encode(codecs::PlanChunks(fragment, codecs::UpLeg(config_)), delta);
  if (!encoded.ok() || encoded->size() != chunks.size()) return false;
  if (!std::ranges::equal(*encoded, chunks, {}, {}, [](const auto& each) { return each.second; })) return false;
  next->assign(feedback.next_residual().begin(), feedback.next_residual().end());
  return true;
}

std::string Residuals::Sent(const std::string& life, const std::string& site, const core::Fragment& fragment,
                            std::span<const float> anchor, const std::map<int64_t, std::string>& chunks) {
  Readings& readings = readings_[{life, fragment.id}];
  std::deque<Values>& past = past_[{site, fragment.id}];
  // Others may have been made in between, or, of the first one, the initial parameters read.
  int64_t& unmatched = unmatched_[{site, fragment.id}];
  if (unmatched > (past.empty() ? 2 : 1)) Lose(site, fragment.id);
  for (auto reading = readings.last.rbegin(); reading != readings.last.rend(); ++reading) {
    if (reading->number <= readings.matched) break;
    // Where a codec is coarse several fit, and each leaves another residual behind.
    std::deque<Values> fitting;
    bool sure = true;
    for (size_t i = 0; i <= past.size(); ++i) {
      if (fitting.size() + 2 > kPast) {
        sure = false;
        break;
      }
      const Values residual = i < past.size() ? past[i] : Values();
      Values next;
      if (!Fits(fragment, anchor, *reading, residual, chunks, &next)) continue;
      for (const Values& values : {residual, next}) {
        if (std::ranges::count(fitting, values) == 0) fitting.push_back(values);
      }
    }
    if (fitting.empty()) continue;
    ++verified_;
    unmatched = 0;
    readings.matched = reading->number;
    if (!sure) Lose(site, fragment.id);
    for (const Values& values : past) {
      if (fitting.size() < kPast && std::ranges::count(fitting, values) == 0) fitting.push_back(values);
    }
    past = std::move(fitting);
    return "";
  }
  // Another contribution may have been made in between that was not heard of.
  if (lost_.contains({site, fragment.id}) || readings.matched < 0 || readings.number - 1 != readings.matched + 1)
    return "";
  return absl::StrCat("fragment ", fragment.id, " of ", life,
                      ": what was sent is not the outer gradient and a residual that the site may have");
}

int64_t WatchedStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  const int64_t ticket = store_.BeginRead(ranges, staging);
  reading_[ticket] = {ranges, staging};
  return ticket;
}

absl::Status WatchedStore::AwaitRead(int64_t ticket) {
  RETURN_IF_ERROR(store_.AwaitRead(ticket));
  const auto found = reading_.find(ticket);
  heard_(found->second.first, found->second.second);
  reading_.erase(found);
  return absl::OkStatus();
}

}  // namespace causeway::sim
