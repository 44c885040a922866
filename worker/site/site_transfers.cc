#include "worker/site/site_transfers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

// The maximum for an update, in any codec.
size_t MostChunks(const core::Fragment& fragment, const core::RunConfig& config) {
  const codecs::LegCodec leg = codecs::DownLeg(config);
  const std::vector<core::CodecId>& allowed = config.codec.allow_down;
  return codecs::PlanChunks(fragment, allowed.empty() ? leg : leg.With(allowed.front())).size();
}

event::Fetched EventOf(const Tag& tag, const absl::Status& status, const Payload& payload, const core::SiteId& site) {
  const transport::DownloadHeader& header = payload.header;
  event::Fetched fetched{.tag = tag,
                         .status = status,
                         .version = header.version,
                         .merged = std::nullopt,
                         .sites = header.sites,
                         .evaluates = !header.merged.empty() && header.merged.front() == site,
                         .begun_us = payload.begun_us,
                         .run_tokens = header.run_tokens};
  // A contribution of an earlier stay of this site in a round has a different base from the one it waits for.
  if (const auto own = std::ranges::lower_bound(header.merged, site); own != header.merged.end() && *own == site) {
    const size_t index = own - header.merged.begin();
    fetched.merged = index < header.merged_bases.size() ? header.merged_bases[index] : header.version - 1;
  }
  return fetched;
}

}  // namespace

absl::Status WriteChunks(const std::vector<core::Bytes>& chunks,
                         absl::FunctionRef<absl::Status(std::span<const std::byte>)> append) {
  for (const core::Bytes& chunk : chunks) {
    const uint64_t size = chunk.size();
    RETURN_IF_ERROR(append(std::as_bytes(std::span(&size, 1))));
    RETURN_IF_ERROR(append(std::as_bytes(std::span(chunk))));
  }
  return absl::OkStatus();
}

absl::StatusOr<Chunks> ReadChunks(const std::string& name, int64_t size,
                                  absl::FunctionRef<absl::Status(int64_t at, std::span<std::byte> bytes)> read) {
  std::vector<core::Bytes> chunks;
  for (int64_t at = 0; at < size;) {
    uint64_t bytes = 0;
    if (size - at < int64_t{sizeof bytes}) return absl::DataLossError(absl::StrCat(name, " is cut off"));
    RETURN_IF_ERROR(read(at, std::as_writable_bytes(std::span(&bytes, 1))));
    at += sizeof bytes;
    if (bytes > static_cast<uint64_t>(size - at)) {
      return absl::DataLossError(absl::StrCat(name, ": expected a chunk of ", bytes, " bytes, got ", size - at));
    }
    std::string chunk(bytes, '\0');
    RETURN_IF_ERROR(read(at, std::as_writable_bytes(std::span(chunk))));
    at += static_cast<int64_t>(bytes);
    chunks.emplace_back(std::move(chunk));
  }
  return std::make_shared<const std::vector<core::Bytes>>(std::move(chunks));
}

void SiteTransfers::Upload(const action::Upload& upload, Chunks chunks) {
  link_->Upload({.stay = upload.stay,
                 .fragment = upload.tag.fragment,
                 .base = upload.base,
                 .tokens = upload.weight.tokens,
                 .steps = upload.weight.steps,
                 .chunks = std::move(chunks),
                 .done = [this, tag = upload.tag](const absl::Status& verdict) {
                   listener_->OnVerdict({tag, verdict});
                 }});
}

void SiteTransfers::UploadInitial(core::FragmentId fragment, Chunks chunks) {
  link_->Upload(
      {.initial = true, .fragment = fragment, .chunks = std::move(chunks), .done = [this](const absl::Status& verdict) {
         if (verdict.ok() || absl::IsCancelled(verdict)) return;
         listener_->OnTransferFailed(
             absl::InternalError(absl::StrCat("initial parameters refused: ", std::string(verdict.message()))));
       }});
}

void SiteTransfers::FetchAnchor(const action::FetchAnchor& fetch, const core::Fragment& fragment,
                                uint64_t held_digest) {
  Fetch(fetch.tag, {.kind = transport::DownloadKind::kAnchor,
                    .fragment = fragment.id,
                    .version = fetch.at_least,
                    .held_digest = held_digest,
                    .num_chunks = 2 * codecs::PlanChunks(fragment, codecs::Unencoded()).size()});
}

void SiteTransfers::FetchUpdate(const action::FetchUpdate& fetch, const core::Fragment& fragment) {
  Fetch(fetch.tag, {.kind = transport::DownloadKind::kUpdate,
                    .fragment = fragment.id,
                    .version = fetch.base,
                    .num_chunks = MostChunks(fragment, settings_.AtVersion(fragment.id, fetch.base))});
}

void SiteTransfers::Fetch(const Tag& tag, transport::DownloadRequest request) {
  auto payload = std::make_shared<Payload>();
  request.revision = settings_.revision();
  request.on_header = [this, tag, payload](const transport::DownloadHeader& header) {
    listener_->OnBegan({tag}, header.revisions);
    payload->header = header;
    payload->begun_us = clock_.NowUs();
    payload->chunks.assign(std::max(0, header.num_chunks), "");
  };
  request.on_chunk = [payload](int index, std::string chunk) { payload->chunks[index] = std::move(chunk); };
  request.done = [this, tag, payload](const absl::Status& status, uint64_t digest) {
    payload->digest = digest;
    listener_->OnFetched(EventOf(tag, status, *payload, site_), payload);
  };
  link_->Download(std::move(request));
}

}  // namespace causeway::worker
