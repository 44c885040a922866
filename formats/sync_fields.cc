#include <set>

#include "core/limits.h"
#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using core::SyncMode;
using enum Holds;
using enum Set;

constexpr int64_t kMaxSyncEvery = 1'000'000'000;  // beyond it is a typing error

// A list with an item for each fragment, or none.
void CheckLength(const std::string& path, size_t length, int num_fragments, FieldCheck& check) {
  check.Expect(length == 0 || length == static_cast<size_t>(num_fragments), path,
               absl::StrCat(num_fragments, " items, one for each of num_fragments"), absl::StrCat(length));
}

void CheckOffsets(core::SyncConfig& sync, const Fields& fields, FieldCheck& check) {
  CheckLength(fields.Path("fragment_offsets"), sync.fragment_offsets.size(), sync.num_fragments, check);
  for (size_t p = 0; p < sync.fragment_offsets.size(); ++p) {
    sync.fragment_offsets[p] = check.Integer(fields.Path(absl::StrCat("fragment_offsets[", p, "]")),
                                             sync.fragment_offsets[p], 0, sync.sync_every - 1, "less than sync_every");
  }
}

// Two lists with the same prefix would both claim a tensor.
void CheckFragments(const core::SyncConfig& sync, const Fields& fields, FieldCheck& check) {
  if (sync.fragments.empty()) return;
  CheckLength(fields.Path("fragments"), sync.fragments.size(), sync.num_fragments, check);
  check.Expect(!fields.Given("fragment_assignment"), fields.Path("fragment_assignment"),
               "it only without sync.fragments", "it beside them");
  std::set<std::string> seen;
  for (size_t p = 0; p < sync.fragments.size(); ++p) {
    const std::string path = fields.Path(absl::StrCat("fragments[", p, "]"));
    const std::vector<std::string>& prefixes = sync.fragments[p];
    check.Expect(!prefixes.empty(), path, "a list of prefixes of tensor names", "none");
    for (size_t i = 0; i < prefixes.size(); ++i) {
      const std::string at = absl::StrCat(path, "[", i, "]");
      check.Expect(prefixes[i].size() <= core::kMaxTensorNameBytes, at,
                   absl::StrCat("at most ", core::kMaxTensorNameBytes, " bytes"),
                   absl::StrCat(prefixes[i].size(), " bytes"));
      check.Expect(seen.insert(prefixes[i]).second, at, "each prefix once", absl::StrCat(prefixes[i], " again"));
    }
  }
}

void DelayFields(core::SyncConfig& sync, Fields& fields) {
  fields.Any(
      {"fragment_sync_delay", kByStep,
       "τ, the inner steps between a send and its update; auto: the least that measured transfers allow", kNotYet},
      AutoInteger{&sync.fragment_sync_delay}, "auto | 0 or more, less than sync_every");
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  if (sync.auto_delay()) {
    // Quorum mode applies an update at the first step boundary after it is there: there is nothing to choose.
    check->Expect(sync.mode == SyncMode::kSynchronous, fields.Path("fragment_sync_delay"),
                  "a number of steps (auto is for mode: synchronous)", kAuto);
    return;
  }
  sync.fragment_sync_delay = check->Integer(fields.Path("fragment_sync_delay"), sync.fragment_sync_delay, 0,
                                            sync.sync_every - 1, "less than sync_every");
}

}  // namespace

void SyncFields(core::SyncConfig& sync, Fields& fields) {
  fields.OneOf({"mode", kFixed, "an update merges all active sites, or a quorum of them"}, &sync.mode, kSyncModes);
  fields.Integer({"sync_every", kByStep, "H, inner steps between two sends of a fragment", kNotYet}, &sync.sync_every,
                 1, kMaxSyncEvery);
  fields.Integer({"num_fragments", kFixed, "P, at most sync_every"}, &sync.num_fragments, 1, core::kMaxFragments);
  if (FieldCheck* check = fields.check()) {
    sync.num_fragments = static_cast<int>(
        check->Integer(fields.Path("num_fragments"), sync.num_fragments, 1, sync.sync_every, "at most sync_every"));
  }
  if (fields.Wants(sync.fragments.empty())) {
    fields.OneOf({"fragment_assignment", kFixed, "which layers each fragment has"}, &sync.fragment_assignment,
                 kAssignments);
  }
  DelayFields(sync, fields);
  fields.Share({"fragment_update_alpha", kByStep,
                "α, weight of the site's own value when the update comes; 0 takes the global value", kNotYet},
               &sync.fragment_update_alpha);
  fields.OneOf({"first_send", kFixed, "of each fragment: sync_every steps after its offset, or at its offset"},
               &sync.first_send, kFirstSends);
  fields.Integer({"parts", kFixed, "into which each fragment is cut; placement: sites sets it to the number of shards"},
                 &sync.parts, 1, core::kMaxFragments / std::max(1, sync.num_fragments), "1024 fragments in all");
  fields.OneOf({"device_memory", kByStart, "of anchors and residuals where a GPU encodes"}, &sync.device_memory,
               kSyncMemories);
  fields.Any({"fragment_offsets", kFixed, "each fragment's step within sync_every; none: spread evenly"},
             &sync.fragment_offsets, "a list of steps");
  fields.Any(
      {"fragments", kFixed, "instead of fragment_assignment, for each fragment the prefixes of its tensors' names"},
      &sync.fragments, "a list of lists");
  if (FieldCheck* check = fields.check()) {
    CheckOffsets(sync, fields, *check);
    CheckFragments(sync, fields, *check);
  }
}

}  // namespace causeway::formats
