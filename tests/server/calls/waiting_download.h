// A download of an anchor that waits at the coordinator until there is one. One that hangs ends with DEADLINE_EXCEEDED.
#pragma once

#include <memory>
#include <string>

#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {

class WaitingDownload {
 public:
  // Returns when the coordinator has the request, as far as a second call on the same connection tells.
  WaitingDownload(CoordinatorForTest& run, const std::string& site, int fragment,
                  std::optional<uint64_t> generation = std::nullopt) {
    context_.set_deadline(std::chrono::system_clock::now() + CoordinatorForTest::kHang);
    v1::DownloadRequest request;
    *request.mutable_context() = ContextForTest(site);
    request.set_fragment(fragment);
    request.set_anchor_version(0);
    if (generation) request.set_generation(*generation);
    reader_ = run.stub->Download(&context_, request);
    grpc::ClientContext context;
    v1::RunDescription description;
    run.stub->Describe(&context, {}, &description);
  }

  grpc::Status Finish() {
    for (v1::DownloadMessage message; reader_->Read(&message);) {
      if (message.has_header()) header_ = message.header();
    }
    return reader_->Finish();
  }
  const v1::DownloadHeader& header() const { return header_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::DownloadMessage>> reader_;
  v1::DownloadHeader header_;
};

}  // namespace causeway::server
