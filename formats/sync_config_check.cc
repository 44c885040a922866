#include "formats/sync_config_check.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/fragment_map.h"
#include "core/limits.h"
#include "core/model_manifest.h"
#include "formats/config_names.h"

namespace causeway::formats {
namespace {

using core::FragmentAssignment;
using core::ModelKind;

constexpr int64_t kMaxSyncEvery = 1'000'000'000;  // beyond it is a typing error
constexpr int kTensorsPerLlamaLayer = 9;

// A list with an item for each fragment, or none.
void CheckLength(const std::string& path, int length, int num_fragments, FieldCheck& check) {
  check.Expect(length == 0 || length == num_fragments, path,
               absl::StrCat(num_fragments, " items, one for each of num_fragments"), absl::StrCat(length));
}

std::vector<core::Step> ReadOffsets(const v1::Sync& sync, const core::SyncConfig& config, FieldCheck& check) {
  CheckLength("sync.fragment_offsets", sync.fragment_offsets_size(), config.num_fragments, check);
  std::vector<core::Step> offsets;
  for (int p = 0; p < sync.fragment_offsets_size(); ++p) {
    offsets.push_back(check.Integer(absl::StrCat("sync.fragment_offsets[", p, "]"), sync.fragment_offsets(p), 0,
                                    config.sync_every - 1, "less than sync_every"));
  }
  return offsets;
}

// Two lists with the same prefix would both claim a tensor.
std::vector<std::vector<std::string>> ReadFragments(const v1::Sync& sync, const v1::Sync& given, int num_fragments,
                                                    FieldCheck& check) {
  if (sync.fragments().empty()) return {};
  CheckLength("sync.fragments", sync.fragments_size(), num_fragments, check);
  check.Expect(!given.has_fragment_assignment(), "sync.fragment_assignment", "it only without sync.fragments",
               "it beside them");
  std::vector<std::vector<std::string>> fragments;
  std::set<std::string> seen;
  for (int p = 0; p < sync.fragments_size(); ++p) {
    const std::string path = absl::StrCat("sync.fragments[", p, "]");
    const auto& prefixes = sync.fragments(p).prefixes();
    check.Expect(!prefixes.empty(), path, "a list of prefixes of tensor names", "none");
    for (int i = 0; i < prefixes.size(); ++i) {
      const std::string at = absl::StrCat(path, "[", i, "]");
      check.Expect(prefixes[i].size() <= core::kMaxTensorNameBytes, at,
                   absl::StrCat("at most ", core::kMaxTensorNameBytes, " bytes"),
                   absl::StrCat(prefixes[i].size(), " bytes"));
      check.Expect(seen.insert(prefixes[i]).second, at, "each prefix once", absl::StrCat(prefixes[i], " again"));
    }
    fragments.emplace_back(prefixes.begin(), prefixes.end());
  }
  return fragments;
}

}  // namespace

core::SyncConfig ReadSync(const v1::Sync& sync, const v1::Sync& given, FieldCheck& check) {
  core::SyncConfig result;
  result.mode = check.OneOf("sync.mode", sync.mode(), kSyncModes);
  result.sync_every = check.Integer("sync.sync_every", sync.sync_every(), 1, kMaxSyncEvery);
  check.Integer("sync.num_fragments", sync.num_fragments(), 1, core::kMaxFragments);
  result.num_fragments = static_cast<int>(
      check.Integer("sync.num_fragments", sync.num_fragments(), 1, result.sync_every, "at most sync_every"));
  result.parts = static_cast<int>(check.Integer(
      "sync.parts", sync.parts(), 1, core::kMaxFragments / std::max(1, result.num_fragments), "1024 fragments in all"));
  result.device_memory = check.OneOf("sync.device_memory", sync.device_memory(), kSyncMemories);
  result.fragment_assignment = check.OneOf("sync.fragment_assignment", sync.fragment_assignment(), kAssignments);
  if (sync.fragment_sync_delay() == core::kAutoDelay) {
    // Quorum mode applies an update at the first step boundary after it is there: there is nothing to choose.
    check.Expect(result.mode == core::SyncMode::kSynchronous, "sync.fragment_sync_delay",
                 "a number of steps (auto is for mode: synchronous)", "auto");
    result.fragment_sync_delay = core::kAutoDelay;
  } else {
    result.fragment_sync_delay = check.Integer("sync.fragment_sync_delay", sync.fragment_sync_delay(), 0,
                                               result.sync_every - 1, "less than sync_every");
  }
  result.fragment_update_alpha =
      static_cast<float>(check.Share("sync.fragment_update_alpha", sync.fragment_update_alpha()));
  result.first_send = check.OneOf("sync.first_send", sync.first_send(), kFirstSends);
  result.fragment_offsets = ReadOffsets(sync, result, check);
  result.fragments = ReadFragments(sync, given, result.num_fragments, check);
  return result;
}

void CheckFragmentsFit(const core::RunConfig& config, FieldCheck& check) {
  if (config.model_kind == ModelKind::kExternal) return;  // its tensors are known when a site joins
  if (!config.sync.fragments.empty()) {
    check.Ok("sync.fragments", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
    return;
  }
  const bool balanced = config.sync.fragment_assignment == FragmentAssignment::kBalanced;
  int64_t most = static_cast<int64_t>(config.synthetic.tensors.size());
  std::string reason = "the model's tensors";
  if (config.model_kind == ModelKind::kLlama && balanced) {
    const int head = config.llama.tie_word_embeddings ? 0 : 1;
    most = config.llama.num_hidden_layers * kTensorsPerLlamaLayer + 2 + head;
  } else if (config.model_kind == ModelKind::kLlama) {
    most = config.llama.num_hidden_layers + 1;
    reason = "num_hidden_layers, and one for embeddings and head";
  }
  check.Integer("sync.num_fragments", config.sync.num_fragments, 1, most, reason);
  if (config.sync.parts == 1 || !check.status().ok()) return;
  check.Ok("sync.parts", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
}

}  // namespace causeway::formats
