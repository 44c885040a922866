#include "worker/site/site_state_parts.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "worker/site/checkpoint_json.h"
#include "worker/site/site_transfers.h"

namespace causeway::worker {
namespace {

constexpr char kJson[] = "site.json";
constexpr char kThetaDigest[] = "theta_sum";  // core/digest.h

class PartsWriter {
 public:
  void Add(const std::string& name, std::span<const std::byte> bytes) {
    core::AlignedFloats& stored = parts_.storage.emplace_back((bytes.size() + sizeof(float) - 1) / sizeof(float));
    std::memcpy(stored.data(), bytes.data(), bytes.size());
    parts_.parts.emplace_back(name, std::span(reinterpret_cast<const std::byte*>(stored.data()), bytes.size()));
  }
  SiteStateParts Finish() { return std::move(parts_); }

 private:
  SiteStateParts parts_;
};

std::string Joined(const std::vector<core::Bytes>& chunks) {
  std::string joined;
  const absl::Status appended = WriteChunks(chunks, [&](std::span<const std::byte> bytes) {
    joined.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  });
  CHECK(appended.ok());
  return joined;
}

absl::StatusOr<Chunks> Split(const std::string& name, std::span<const std::byte> joined) {
  absl::StatusOr<Chunks> chunks =
      ReadChunks(absl::StrCat("state: ", name), std::ssize(joined), [&](int64_t at, std::span<std::byte> bytes) {
        std::ranges::copy(joined.subspan(at, bytes.size()), bytes.begin());
        return absl::OkStatus();
      });
  if (!chunks.ok()) return absl::InvalidArgumentError(chunks.status().message());
  return chunks;
}

}  // namespace

SiteStateParts ToParts(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint, uint64_t theta_digest) {
  nlohmann::json json = nlohmann::json::parse(CheckpointToJson(identity, checkpoint));
  json[kThetaDigest] = core::DigestText(theta_digest);
  PartsWriter writer;
  const std::string text = json.dump(1);
  writer.Add(kJson, std::as_bytes(std::span(text)));
  for (size_t p = 0; p < checkpoint.arrays.size(); ++p) {
    VisitArrays(p, checkpoint.arrays[p], [&](const std::string& name, std::span<const float> values) {
      if (!values.empty()) writer.Add(name, std::as_bytes(values));
    });
    if (checkpoint.chunks[p] == nullptr) continue;
    const std::string joined = Joined(*checkpoint.chunks[p]);
    writer.Add(absl::StrCat(p, ".chunks"), std::as_bytes(std::span(joined)));
  }
  return writer.Finish();
}

absl::StatusOr<RestoredParts> FromParts(std::span<const SiteStateParts::Part> parts) {
  const std::map<std::string, std::span<const std::byte>> by_name(parts.begin(), parts.end());
  const auto text = by_name.find(kJson);
  if (text == by_name.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state: expected a part ", kJson, " among ", parts.size(), " parts, got none"));
  }
  RestoredParts restored;
  const std::string json(reinterpret_cast<const char*>(text->second.data()), text->second.size());
  absl::StatusOr<LoadedCheckpoint> loaded = CheckpointFromJson(json);
  if (!loaded.ok()) return absl::InvalidArgumentError(absl::StrCat("state: ", kJson, " ", loaded.status().message()));
  restored.checkpoint = *std::move(loaded);
  const nlohmann::json values = nlohmann::json::parse(json);
  if (const auto digest = values.find(kThetaDigest); digest != values.end() && digest->is_string()) {
    restored.theta_digest = std::strtoull(digest->get<std::string>().c_str(), nullptr, 16);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("state: ", kJson, ": expected the digest ", kThetaDigest, " of θ, got none"));
  }
  auto storage = std::make_shared<std::vector<core::AlignedFloats>>();
  SiteCheckpoint& site = restored.checkpoint.site;
  for (size_t p = 0; p < site.arrays.size(); ++p) {
    VisitArrays(p, site.arrays[p], [&](const std::string& name, std::span<const float>& values) {
      const auto part = by_name.find(name);
      if (part == by_name.end()) return;
      core::AlignedFloats& stored = storage->emplace_back(part->second.size() / sizeof(float));
      std::memcpy(stored.data(), part->second.data(), stored.size() * sizeof(float));
      values = stored;
    });
    if (site.arrays[p].anchor.empty() || site.arrays[p].momentum.size() != site.arrays[p].anchor.size()) {
      return absl::InvalidArgumentError(absl::StrCat("state: expected parts ", p, ".anchor and ", p,
                                                     ".momentum of one size, got ", site.arrays[p].anchor.size(),
                                                     " and ", site.arrays[p].momentum.size(), " values"));
    }
    const std::optional<SentFacts>& sent = site.facts.fragments[p].sent;
    if (!sent || sent->admitted) continue;
    const std::string name = absl::StrCat(p, ".chunks");
    const auto chunks = by_name.find(name);
    if (chunks == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat("state: expected a part ", name, ", got none"));
    }
    ASSIGN_OR_RETURN(site.chunks[p], Split(name, chunks->second));
  }
  site.storage = storage;
  return restored;
}

}  // namespace causeway::worker
