#include "formats/run_advice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/schedule.h"

namespace causeway::formats {

using core::FragmentId;
using core::Step;

namespace {

using core::CodecId;

// For `auto`, judges the best codec that it may choose: the leg was not configured for the fallback on a slow link.
void AdviseLeg(const char* leg, CodecId chosen, const std::vector<CodecId>& allowed, float feedback,
               std::vector<std::string>& advice) {
  const CodecId codec = allowed.empty() ? chosen : allowed.front();
  const std::string what = absl::StrCat("codec.feedback_", leg, " is ", feedback, " with ", core::CodecName(codec));
  if ((codec == CodecId::kSign || codec == CodecId::kRotatedSign) && feedback > 0) {
    advice.push_back(absl::StrCat(what, ": at 1 bit 0 trains better (docs/codecs.md)"));
  }
  if (core::TopkEntries(codec) > 0 && feedback == 0) {
    advice.push_back(absl::StrCat(what, ": it drops most values, and without feedback they are lost; 1 keeps them"));
  }
}

}  // namespace

std::vector<std::string> CodecAdvice(const core::CodecConfig& codec) {
  std::vector<std::string> advice;
  AdviseLeg("up", codec.up, codec.allow_up, codec.feedback_up, advice);
  AdviseLeg("down", codec.down, codec.allow_down, codec.feedback_down, advice);
  if (!codec.exempt.empty() && (codec.up == CodecId::kFloat32 || codec.down == CodecId::kFloat32)) {
    advice.push_back(
        "codec.exempt lowers its kinds of tensors from float32 to bfloat16; leave it empty to keep all bits");
  }
  return advice;
}

std::vector<std::string> RunAdvice(const core::RunConfig& config) {
  std::vector<std::string> advice = CodecAdvice(config.codec);
  for (std::string& sentence : StepsAdvice(config)) advice.push_back(std::move(sentence));
  return advice;
}

void CheckSteps(const core::RunConfig& config, FieldCheck& check) {
  if (config.steps == 0) return;
  const core::FragmentSchedule schedule = config.sync.Schedule();
  FragmentId last = 0;
  for (FragmentId p = 1; p < schedule.num_fragments(); ++p) {
    if (schedule.SendStep(p, 0) > schedule.SendStep(last, 0)) last = p;
  }
  const Step needed = schedule.SendStep(last, 0);
  check.Expect(
      config.steps >= needed, "run.steps",
      absl::StrCat("at least ", needed, ", when fragment ", last, " is sent for the first time (sync.sync_every is ",
                   config.sync.sync_every, "), or 0, without an end"),
      absl::StrCat(config.steps));
}

std::vector<std::string> StepsAdvice(const core::RunConfig& config) {
  const core::FragmentSchedule schedule = config.sync.Schedule();
  Step last = 0;
  for (FragmentId p = 0; p < schedule.num_fragments(); ++p) {
    last = std::max(last, schedule.SendStep(p, schedule.FirstBaseAfter(p, config.steps) - 1));
  }
  if (config.steps == 0 || last >= config.steps) return {};
  return {absl::StrCat(
      "run.steps is ", config.steps, ": the last ", config.steps - last, " steps come after the last send, at step ",
      last, ", and are in no update; a multiple of sync.sync_every (", config.sync.sync_every, ") leaves none out")};
}

}  // namespace causeway::formats
