#include "server/calls/download_messages.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/fault_point.h"
#include "transport/bulk_message.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

// The changes of the run's settings that a site may hear of.
std::vector<core::SettingsRevision> Later(RunExchange& exchange, int64_t revision) {
  return exchange.With([revision](Run& run) { return run.SettingsAfter(revision); });
}

}  // namespace

absl::StatusOr<std::optional<grpc::ByteBuffer>> DownloadMessages::Next(absl::FunctionRef<Waiter()> ask_again) {
  if (source_ == nullptr) {
    ASSIGN_OR_RETURN(Transfers::Download download, exchange_->transfers().BeginDownload(*request_, ask_again()));
    source_ = std::move(download.source);
    generation_ = download.generation;
    if (source_ == nullptr) return std::nullopt;
  }
  if (!header_sent_) return Header(ask_again);
  ChunkSource::Item item = source_->Get(next_, ask_again());
  RETURN_IF_ERROR(item.error);
  if (item.chunk != nullptr) {
    next_ += Stripes();
    core::FaultPoint("mid_broadcast");
    return transport::ChunkMessage(std::move(item.chunk));
  }
  if (!item.end) return std::nullopt;
  complete_ = true;
  v1::DownloadMessage message;
  message.mutable_end()->set_digest(*item.end);
  return transport::ToBytes(message);
}

std::optional<grpc::ByteBuffer> DownloadMessages::Header(absl::FunctionRef<Waiter()> ask_again) {
  const auto header = source_->Header(ask_again());
  if (!header) return std::nullopt;
  header_sent_ = true;
  begun_ms_ = exchange_->now_ms();
  // Chunks of another version are useless; the site starts over when it sees the header.
  const bool anchor = request_->source_case() == v1::DownloadRequest::kAnchorVersion;
  const bool goes_on = !anchor || request_->held_version() == header->version;
  next_ = request_->stripe() + (goes_on ? Stripes() * request_->first_chunk() : 0);
  v1::DownloadMessage message;
  transport::ToProto(*header, message.mutable_header());
  if (request_->wants_proof()) {
    message.mutable_header()->set_proof(exchange_->claims().ProofOfVersion(request_->fragment(), header->version));
  }
  // An older site names none, and gets the same bytes as ever.
  if (request_->has_generation()) message.mutable_header()->set_generation(generation_);
  for (const core::SettingsRevision& revision : Later(*exchange_, request_->revision())) {
    transport::ToProto(revision, message.mutable_header()->add_revisions());
  }
  if (!request_->wants_weights()) message.mutable_header()->clear_merged_weights();
  if (!request_->wants_run_tokens()) message.mutable_header()->clear_run_tokens();
  return transport::ToBytes(message);
}

}  // namespace causeway::server
