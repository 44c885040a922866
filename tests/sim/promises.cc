#include "tests/sim/promises.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/model_manifest.h"
#include "tests/transport/byte_buffer.h"
#include "transport/bulk_message.h"
#include "transport/messages.h"

namespace causeway::sim {
namespace {

template <typename Message>
bool Parse(const std::string& text, Message* message) {
  return message->ParseFromString(text);
}

}  // namespace

core::Version Promises::newest(core::FragmentId fragment) const {
  const auto after = digests_.lower_bound({fragment + 1, 0});
  if (after == digests_.begin()) return 0;
  const auto last = std::prev(after);
  return last->first.first == fragment ? last->first.second : 0;
}

core::Step Promises::last_step(const std::string& site) const {
  const auto known = steps_.find(site);
  return known == steps_.end() ? 0 : known->second;
}

core::Version Promises::last_merged(const std::string& site, core::FragmentId fragment) const {
  const auto known = last_merged_.find({site, fragment});
  return known == last_merged_.end() ? 0 : known->second;
}

void Promises::Heard(const Call& call, bool to_client, const std::string& message) {
  switch (call.method) {
    case Method::kControl: return HeardControl(call, to_client, message);
    case Method::kUpload: return HeardUpload(call, to_client, message);
    case Method::kDownload: return HeardDownload(call, to_client, message);
    case Method::kFollow:
    case Method::kReplicate:
    case Method::kDescribe: return;
  }
}

void Promises::HeardControl(const Call& call, bool to_client, const std::string& text) {
  v1::SiteMessage from_site;
  if (!to_client && Parse(text, &from_site)) {
    if (from_site.has_progress()) steps_[call.client_node] = from_site.progress().step();
    if (!from_site.has_join()) return;
    for (const Contribution& contribution : acknowledged_) {
      if (contribution.site == call.client_node)
        calls_[call.number].acknowledged[contribution.fragment] = contribution.base;
    }
    return;
  }
  v1::CoordinatorMessage message;
  if (!to_client || !Parse(text, &message) || !message.has_welcome()) return;
  const v1::Welcome& welcome = message.welcome();
  ++joins_;
  const auto rises = [&](auto& known, const std::string& key, auto now, const char* what) {
    auto& last = known[key];
    if (now < last) Break(absl::StrCat(what, " of ", key, " fell from ", last, " to ", now));
    last = now;
  };
  const std::string between =
      absl::StrCat(call.client_node, " at shard ", call.server_node.substr(call.server_node.size() - 1));
  rises(epochs_, between, welcome.epoch(), "the epoch");
  rises(generations_, between, welcome.generation(), "the model's generation");
  rises(stays_, between, welcome.stay(), "the stay");
  if (welcome.generation() > generation_) {
    generation_ = welcome.generation();
    const auto manifest = transport::FromProto(welcome.manifest());
    for (const core::SyntheticConfig& model : offered_) {
      if (manifest.ok() && core::CompareManifests(core::SyntheticManifest(model), *manifest).ok()) ledger_.Begin(model);
    }
  }
  // A contribution that was acknowledged before the site asked stays admitted.
  const auto& acknowledged = calls_[call.number].acknowledged;
  for (const auto& [fragment, base] : acknowledged) {
    const bool owned = fragment % shards_ == call.server_node.back() - '0';
    if (!owned || !welcome.resumed() || welcome.last_admitted(fragment) >= base) continue;
    Break(absl::StrCat(call.server_node, " welcomes ", call.client_node, " back as if it had admitted of fragment ",
                       fragment, " base ", welcome.last_admitted(fragment), ", and had acknowledged ", base));
  }
}

void Promises::HeardUpload(const Call& call, bool to_client, const std::string& text) {
  OpenCall& open = calls_[call.number];
  if (!to_client) {
    v1::UploadMessage message;
    grpc::ByteBuffer bytes = BufferOf(text);
    if (!open.upload.has_context()) {
      if (transport::FromBytes(bytes, &message)) open.upload = message.header();
    } else if (auto chunk = transport::TakeChunk(bytes); chunk && !open.upload.initial()) {
      const std::string& life = call.client->process()->name();
      const std::string sending = absl::StrCat(life, " ", open.upload.steps(), " ", open.upload.tokens());
      Break(ledger_.SentUp(open.upload, life, sending, *std::move(chunk)));
    }
    return;
  }
  v1::UploadReply reply;
  if (!Parse(text, &reply) || !reply.has_verdict() || !reply.verdict().admitted()) return;
  seeded_ = true;  // at least a part of it
  if (open.upload.initial()) return;
  acknowledged_.insert({open.upload.fragment(), open.upload.base_version(), open.upload.context().site()});
}

void Promises::HeardDownload(const Call& call, bool to_client, const std::string& text) {
  OpenCall& open = calls_[call.number];
  if (!to_client) {
    Parse(text, &open.download);
    return;
  }
  grpc::ByteBuffer bytes = BufferOf(text);
  const bool is_update = open.download.source_case() == v1::DownloadRequest::kUpdateBase;
  if (auto chunk = transport::TakeChunk(bytes)) {
    if (is_update) Break(ledger_.SentDown(open.download.fragment(), open.header.version(), *std::move(chunk)));
    return;
  }
  v1::DownloadMessage message;
  if (!Parse(text, &message)) return;
  if (message.has_header()) {
    open.header = message.header();
    HeardHeader(call, open.download, message.header());
  } else if (message.has_end()) {
    HeardDigest(open.download.fragment(), open.header.version(), message.end().digest(), call.server_node);
    if (is_update) Break(ledger_.Digest(open.download.fragment(), open.header.version(), message.end().digest()));
  }
}

void Promises::HeardHeader(const Call& call, const v1::DownloadRequest& request, const v1::DownloadHeader& header) {
  if (request.source_case() != v1::DownloadRequest::kUpdateBase) return;
  const Place place{request.fragment(), header.version()};
  v1::DownloadHeader same = header;
  same.clear_generation();
  same.clear_revisions();  // those that the caller lacks
  const std::string said = same.ShortDebugString();
  const auto [known, is_new] = updates_.emplace(place, said);
  if (!is_new) {
    if (known->second != said) {
      Break(absl::StrCat("fragment ", place.first, " version ", place.second, ": ", call.server_node, " says {", said,
                         "}, before it was {", known->second, "}"));
    }
    return;
  }
  ledger_.Merged(place.first, header);
  for (int i = 0; i < header.merged_size(); ++i) {
    const std::string& site = header.merged(i);
    const core::Version base = header.merged_bases(i);
    core::Version& last = last_merged_[{site, place.first}];
    last = std::max(last, place.second);
    const Contribution contribution{place.first, base, site};
    const auto [merged, first] = merged_.emplace(contribution, place.second);
    if (!first) {
      Break(absl::StrCat("fragment ", place.first, " base ", base, " of ", site, " is merged twice: into version ",
                         merged->second, " and ", place.second));
    }
  }
  if (config_.sync.mode != core::SyncMode::kSynchronous) return;
  for (const Contribution& contribution : acknowledged_) {
    if (contribution.fragment != place.first || contribution.base + 1 != place.second) continue;
    if (!merged_.contains(contribution)) {
      Break(absl::StrCat("fragment ", place.first, " base ", contribution.base, " of ", contribution.site,
                         " was acknowledged, and version ", place.second, " is without it"));
    }
  }
}

void Promises::HeardDigest(core::FragmentId fragment, core::Version version, uint64_t digest, const std::string& from) {
  const auto [known, is_new] = digests_.emplace(Place{fragment, version}, digest);
  if (!is_new && known->second != digest) {
    Break(absl::StrCat("fragment ", fragment, " version ", version, " has another digest at ", from, " than before"));
  }
}

void Promises::CheckAllMerged() {
  for (const Contribution& contribution : acknowledged_) {
    if (merged_.contains(contribution)) continue;
    // Only versions whose updates were all seen can tell.
    const core::Version last = contribution.base + 1 + config_.membership.max_staleness;
    bool seen = newest(contribution.fragment) > last;
    for (core::Version v = contribution.base + 1; v <= last; ++v)
      seen = seen && updates_.contains({contribution.fragment, v});
    if (!seen) continue;
    Break(absl::StrCat("fragment ", contribution.fragment, " base ", contribution.base, " of ", contribution.site,
                       " was acknowledged, and is in no update up to version ", last));
  }
}

}  // namespace causeway::sim
