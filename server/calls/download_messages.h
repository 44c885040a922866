// The messages of one download, in order: header, chunks of the stripe, end. One owner at a time.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "server/run/chunk_source.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

class DownloadMessages {
 public:
  // Both outlive it.
  DownloadMessages(RunExchange* exchange, const v1::DownloadRequest* request)
      : exchange_(exchange), request_(request) {}

  // The next message; nothing if the reader has to wait: the waiter of `ask_again` is called when one may be there. An
  // error ends the download.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Next(absl::FunctionRef<Waiter()> ask_again);

  bool complete() const { return complete_; }     // the end was among them
  int64_t begun_ms() const { return begun_ms_; }  // when the header was there; of the run's clock

 private:
  std::optional<grpc::ByteBuffer> Header(absl::FunctionRef<Waiter()> ask_again);
  size_t Stripes() const { return std::max(1, request_->num_stripes()); }

  RunExchange* const exchange_;
  const v1::DownloadRequest* const request_;
  std::shared_ptr<ChunkSource> source_;
  uint64_t generation_ = 0;
  bool header_sent_ = false;
  size_t next_ = 0;  // the chunk after those taken
  int64_t begun_ms_ = 0;
  bool complete_ = false;
};

}  // namespace causeway::server
