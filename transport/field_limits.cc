#include "transport/field_limits.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/run_settings.h"
#include "transport/progress_message.h"

namespace causeway::transport {
namespace {

constexpr int64_t kCount =
    int64_t{1} << 53;  // steps, versions, tokens: the largest integer that a double counts exactly
constexpr int64_t kAnyCount = std::numeric_limits<int64_t>::max();
constexpr int64_t kRate = 1'000'000'000'000'000'000;  // bytes or tokens a second
constexpr int64_t kExtents = 64;                      // of a tensor's shape; torch has the same
constexpr int64_t kFragments = core::kMaxFragments;
constexpr int64_t kFiles = 64;                        // of a model, beside its weights
constexpr int64_t kStateFiles = 100'000;              // of a state directory
constexpr int64_t kName = core::kMaxSiteTextBytes;    // valid names are shorter; longer ones get a message
constexpr int64_t kWords = core::kMaxEventTextBytes;  // cut where they are kept
constexpr int64_t kSettings = 200;                    // there are fewer keys
constexpr int64_t kProof = 64;                        // today's have 16
constexpr int64_t kTensorName = core::kMaxTensorNameBytes;

constexpr FieldLimit Anything(std::string_view field) { return {field}; }
constexpr FieldLimit Integer(std::string_view field, int64_t least, int64_t most) {
  return {field, Holds::kInteger, least, most};
}
constexpr FieldLimit Number(std::string_view field, int64_t least, int64_t most) {
  return {field, Holds::kNumber, least, most};
}
constexpr FieldLimit Text(std::string_view field, int64_t bytes) { return {field, Holds::kText, 0, bytes}; }
constexpr FieldLimit Many(int64_t items, FieldLimit each) {
  each.items = items;
  return each;
}

constexpr FieldLimit kLimits[] = {
    Integer("Context.protocol", 0, kCount),
    Text("Context.run_id", kName),
    Text("Context.site", kName),
    Text("Context.session", kName),
    Anything("Context.epoch"),
    Text("Context.lineage", kName),
    Integer("Context.shard", -1, core::kMaxFragments),
    Integer("Context.num_shards", 0, core::kMaxFragments),
    Integer("Context.rank", 0, core::kMaxRanks - 1),
    Integer("Context.world", 0, core::kMaxRanks),
    Anything("Context.life"),
    Integer("Context.stay", 0, kCount),

    Anything("DescribeRequest.context"),
    Anything("DescribeRequest.starts"),
    Anything("DescribeRequest.who_leads"),
    Anything("KeepFileRequest.context"),
    Many(kFiles, Anything("KeepFileRequest.files")),
    Text("KeepFileRequest.name", kName),
    Text("KeepFileRequest.contents", core::kMaxControlMessageBytes),
    Text("ModelFile.name", kName),
    Integer("ModelFile.bytes", 0, kCount),
    Anything("ModelFile.digest"),
    Anything("GetFileRequest.context"),
    Text("GetFileRequest.name", kName),

    Many(core::kMaxTensors, Anything("Manifest.tensors")),
    Text("TensorSpec.name", kTensorName),
    Many(kExtents, Integer("TensorSpec.shape", 0, core::kMaxParameters)),
    Integer("TensorSpec.kind", 0, kCount),
    Integer("TensorSpec.layer", -1, core::kMaxTensors),
    Integer("TensorSpec.dtype", 0, kCount),
    Text("TensorSpec.alias_of", kTensorName),
    Anything("TensorSpec.frozen"),
    Anything("TensorSpec.values_digest"),

    Anything("SiteMessage.join"),
    Anything("SiteMessage.ready"),
    Anything("SiteMessage.progress"),
    Anything("SiteMessage.leave"),
    Anything("SiteMessage.ping"),

    Anything("Join.context"),
    Anything("Join.manifest"),
    Many(core::kMaxCodecs, Integer("Join.codecs", 0, kCount)),
    Many(kFragments, Integer("Join.versions", -1, kCount)),
    Text("Join.software_version", kWords),
    Anything("Join.from_checkpoint"),
    Text("Join.process", kName),
    Integer("Join.stay", 0, kCount),
    Anything("Join.data"),
    Anything("Join.held_out"),
    Many(kFragments, Integer("Join.admitted", -1, kCount)),
    Text("Join.epoch_proof", kProof),
    Many(kFragments, Text("Join.version_proofs", kProof)),
    Many(kFragments, Text("Join.admission_proofs", kProof)),
    Integer("DataFingerprint.tokens", 0, kCount),
    Anything("DataFingerprint.digest"),

    Integer("Progress.unheard_ms", 0, kCount),
    Anything("Leave.finished"),
    Text("Leave.reason", kWords),
    Anything("Ping.sent_us"),

    Anything("UploadMessage.header"),
    Text("UploadMessage.chunk", core::kMaxChunkBytes),
    Anything("UploadHeader.context"),
    Anything("UploadHeader.initial"),
    Integer("UploadHeader.fragment", 0, kFragments - 1),
    Integer("UploadHeader.base_version", 0, kCount),
    Integer("UploadHeader.tokens", 0, kAnyCount),  // more than its steps allow: a refused contribution, which counts
    Integer("UploadHeader.steps", 0, kCount),
    Integer("UploadHeader.stripe", 0, core::kMaxStripes - 1),
    Integer("UploadHeader.num_stripes", 0, core::kMaxStripes),
    Anything("UploadHeader.sends_all"),
    Anything("UploadHeader.generation"),
    Anything("UploadHeader.wants_beats"),
    Anything("UploadHeader.wants_proof"),

    Anything("DownloadRequest.context"),
    Integer("DownloadRequest.fragment", 0, kFragments - 1),
    Integer("DownloadRequest.update_base", 0, kCount),
    Integer("DownloadRequest.anchor_version", 0, kCount),
    Integer("DownloadRequest.first_chunk", 0, std::numeric_limits<int32_t>::max()),
    Integer("DownloadRequest.held_version", -1, kCount),
    Anything("DownloadRequest.held_digest"),
    Integer("DownloadRequest.stripe", 0, core::kMaxStripes - 1),
    Integer("DownloadRequest.num_stripes", 0, core::kMaxStripes),
    Anything("DownloadRequest.generation"),
    Anything("DownloadRequest.wants_weights"),
    Anything("DownloadRequest.wants_run_tokens"),
    Anything("DownloadRequest.wants_beats"),
    Anything("DownloadRequest.wants_proof"),
    Integer("DownloadRequest.revision", 0, kCount),

    Anything("ShowMessage.holdings"),
    Text("ShowMessage.piece", core::kMaxChunkBytes),
    Anything("Holdings.context"),
    Anything("Holdings.manifest"),
    Many(kFragments, Anything("Holdings.fragments")),
    Many(core::SettingsChain::kMost, Anything("Holdings.revisions")),
    Anything("Holdings.settings_before"),
    Integer("SettingsRevision.number", 0, kCount),
    Integer("SettingsRevision.step", 0, kCount),
    Many(kFragments, Integer("SettingsRevision.versions", 0, kCount)),
    Text("SettingsRevision.run_config", core::kMaxSettingsBytes),
    Many(kSettings, Text("SettingsRevision.changes", kWords)),
    Anything("SettingsRevision.unix_ms"),
    Anything("SettingsRevision.nonce"),
    Anything("SettingsRevision.digest"),
    Integer("HeldFragment.fragment", 0, kFragments - 1),
    Integer("HeldFragment.version", 0, kCount),
    Anything("HeldFragment.anchor_digest"),
    Anything("HeldFragment.momentum_digest"),
    Anything("HeldFragment.before"),
    Integer("HeldFragment.run_tokens", 0, kCount),
    Integer("HeldBefore.version", 0, kCount),
    Anything("HeldBefore.anchor_digest"),
    Anything("HeldBefore.momentum_digest"),

    Anything("StatusRequest.context"),
    Anything("DrainRequest.context"),
    Text("DrainRequest.site", kName),
    Anything("ChangeRunRequest.context"),
    Anything("ChangeRunRequest.change"),
    Anything("ChangeSettingsRequest.context"),
    Many(kSettings, Anything("ChangeSettingsRequest.changes")),
    Integer("ChangeSettingsRequest.at_step", 0, kCount),
    Anything("ChangeSettingsRequest.dry_run"),
    Anything("ChangeSettingsRequest.cancel"),
    Anything("ChangeSettingsRequest.yes"),
    Text("SettingChange.key", kWords),
    Text("SettingChange.value", kWords),
    Anything("ReleaseRequest.context"),
    Text("ReleaseRequest.site", kName),
    Anything("RollbackRequest.context"),
    Integer("RollbackRequest.version", -1, kCount),
    Anything("HistoryRequest.context"),
    Integer("HistoryRequest.after_id", 0, kAnyCount),
    Integer("HistoryRequest.limit", 0, std::numeric_limits<int32_t>::max()),
    Text("HistoryRequest.kind", kName),

    Anything("FollowMessage.context"),
    Anything("FollowMessage.report"),
    Anything("ShardReport.seeded"),
    Many(kFragments, Integer("ShardReport.versions", 0, kCount)),
    Text("ShardReport.stranded", kName),
    Integer("ShardReport.stranded_stay", 0, kCount),
    Anything("ShardReport.generation"),
    Many(kFragments, Anything("ShardReport.fragments")),
    Many(core::kMaxSites, Anything("ShardReport.traffic")),
    Integer("ShardFragment.fragment", 0, kFragments - 1),
    Integer("ShardFragment.version", 0, kCount),
    Anything("ShardFragment.digest"),
    Text("ShardFragment.state", kName),
    Text("ShardFragment.reason", kWords),
    Many(core::kMaxSites, Text("ShardFragment.contributors", kName)),
    Text("ShardTraffic.site", kName),
    Integer("ShardTraffic.up_bytes", 0, kAnyCount),
    Integer("ShardTraffic.down_bytes", 0, kAnyCount),
    Number("ShardTraffic.up_bytes_per_s", 0, kRate),
    Number("ShardTraffic.down_bytes_per_s", 0, kRate),

    Anything("ReplicateMessage.context"),
    Text("ReplicateMessage.address", kName),
    Text("ReplicateMessage.software_version", kWords),
    Many(kStateFiles, Anything("ReplicateMessage.files")),
    Anything("ReplicateMessage.mirrored"),
    Anything("ReplicateMessage.wants_to_lead"),
    Text("ReplicateMessage.formerly", kName),
    Text("ReplicateMessage.unfit", kWords),
    Text("MirrorFile.name", kName),
    Integer("MirrorFile.bytes", 0, kAnyCount),
    Anything("MirrorFile.digest"),
    Anything("PromoteRequest.context"),
    Anything("PromoteRequest.leader_is_stopped"),
    Anything("ForgetStandbyRequest.context"),
    Text("ForgetStandbyRequest.address", kName),
};

}  // namespace

std::span<const FieldLimit> FieldLimits() {
  static const auto* const kAll = [] {
    auto* const all = new std::vector<FieldLimit>(std::begin(kLimits), std::end(kLimits));
    std::ranges::copy(ProgressLimits(), std::back_inserter(*all));
    return all;
  }();
  return *kAll;
}

}  // namespace causeway::transport
