// Gives the files that belong to a site's model (config.json, the tokenizer's) to the run, on a thread and a connection
// of its own: training does not wait for them.
//
//   Begin ─► KeepFile: which are missing? ─► one call for each ─► again in minutes: they may be lost
//
// If the run has other files of these names, a line in the log names them, and nothing fails. Thread-safe.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "formats/model_directory.h"
#include "transport/channel.h"

namespace causeway::worker {

class FileGiver {
 public:
  FileGiver(transport::LinkOptions link, std::vector<formats::ModelFile> files)
      : link_(std::move(link)), files_(std::move(files)) {}
  ~FileGiver();  // ends a call in progress

  void Begin();  // once the site has joined; a second call does nothing

 private:
  void Run();
  // Returns whether all files are there, or nothing more can be done.
  bool GiveAll(v1::Coordinator::Stub& stub);
  bool Understood(const grpc::Status& status);
  void Compare(const v1::KeptFiles& kept);
  bool WaitFor(std::chrono::nanoseconds time);  // true: the object is being destroyed

  const transport::LinkOptions link_;
  const std::vector<formats::ModelFile> files_;
  bool compared_ = false, useless_ = false;  // used by the thread alone
  core::Mutex mutex_;
  core::Condition changed_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  core::Thread thread_;  // uses everything above
};

}  // namespace causeway::worker
