// The words of run.yaml for the values of core::RunConfig's enumerations.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/check.h"
#include "core/run_config.h"

namespace causeway::formats {

template <typename T>
using Names = std::initializer_list<std::pair<const char*, T>>;

inline constexpr Names<core::ModelKind> kModelKinds = {{"llama", core::ModelKind::kLlama},
                                                       {"synthetic", core::ModelKind::kSynthetic},
                                                       {"external", core::ModelKind::kExternal}};
inline constexpr Names<core::DataMode> kDataModes = {{"own", core::DataMode::kOwn},
                                                     {"shared", core::DataMode::kShared}};
inline constexpr Names<core::FirstSend> kFirstSends = {{"full", core::FirstSend::kFull},
                                                       {"offset", core::FirstSend::kOffset}};
inline constexpr Names<core::SyntheticGradient> kGradients = {{"constant", core::SyntheticGradient::kConstant},
                                                              {"noise", core::SyntheticGradient::kNoise}};
inline constexpr Names<core::SyntheticApply> kApplies = {{"every_step", core::SyntheticApply::kEveryStep},
                                                         {"on_send", core::SyntheticApply::kOnSend}};
inline constexpr Names<core::InnerOptimizerKind> kInnerOptimizers = {
    {"adamw", core::InnerOptimizerKind::kAdamW},
    {"sgd", core::InnerOptimizerKind::kSgd},
    {"onebit_adam", core::InnerOptimizerKind::kOnebitAdam}};
inline constexpr Names<core::DType> kWarmupCodecs = {{"float32", core::DType::kFloat32},
                                                     {"bfloat16", core::DType::kBfloat16}};
inline constexpr Names<core::InnerSchedule> kInnerSchedules = {{"cosine", core::InnerSchedule::kCosine},
                                                               {"constant", core::InnerSchedule::kConstant}};
inline constexpr Names<core::FragmentAssignment> kAssignments = {{"strided", core::FragmentAssignment::kStrided},
                                                                 {"sequential", core::FragmentAssignment::kSequential},
                                                                 {"balanced", core::FragmentAssignment::kBalanced}};
inline constexpr Names<core::SyncMode> kSyncModes = {{"synchronous", core::SyncMode::kSynchronous},
                                                     {"quorum", core::SyncMode::kQuorum}};
inline constexpr Names<core::SyncMemory> kSyncMemories = {{"auto", core::SyncMemory::kAuto},
                                                          {"fragment", core::SyncMemory::kFragment}};
inline constexpr Names<core::WeightRule> kWeightRules = {
    {"uniform", core::WeightRule::kUniform},
    {"tokens", core::WeightRule::kTokens},
    {"tokens_squared_per_step", core::WeightRule::kTokensSquaredPerStep}};
inline constexpr Names<core::MergeRule> kMergeRules = {{"average", core::MergeRule::kAverage},
                                                       {"radial_directional", core::MergeRule::kRadialDirectional}};
inline constexpr Names<core::JournalMode> kJournalModes = {{"strict", core::JournalMode::kStrict},
                                                           {"relaxed", core::JournalMode::kRelaxed}};
inline constexpr Names<core::Placement> kPlacements = {{"hub", core::Placement::kHub},
                                                       {"sites", core::Placement::kSites}};
inline constexpr Names<core::TensorKind> kTensorKinds = {
    {"matrix", core::TensorKind::kMatrix}, {"embedding", core::TensorKind::kEmbedding},
    {"norm", core::TensorKind::kNorm},     {"head", core::TensorKind::kHead},
    {"expert", core::TensorKind::kExpert}, {"buffer", core::TensorKind::kBuffer}};
inline constexpr char kAuto[] = "auto";
inline constexpr char kSparse[] = "sparse";
inline constexpr char kLlama3[] = "llama3";  // rope_type, also in config.json
// The remedy for a model that the built-in trainer cannot train.
inline constexpr char kUsePython[] = "use the Python package (model: {kind: external})";
inline constexpr char kNesterov[] = "nesterov";
inline constexpr char kSgd[] = "sgd";

template <typename T>
const char* NameOf(T value, const Names<T>& names) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  CHECK(false);
}

// Parses `offload.k` and `offload.resident_share`, in run.yaml and in flags of a worker.

// INVALID_ARGUMENT: "expected …, got …".
absl::Status ReadInterleave(const std::string& text, core::OffloadConfig* offload);
absl::Status ReadShare(const std::string& text, core::OffloadConfig* offload);

}  // namespace causeway::formats
