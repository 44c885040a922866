// Proofs of the coordinator's statements to a site about its state, sent along with them (docs/wire_format.md, Proofs):
// for an epoch, versions, admissions. The site shows them when it joins: only a proven claim of more than the
// coordinator has can stop the run. Opaque here; the newest few of each fragment are kept. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "core/mutex.h"

namespace causeway::transport {

class ShownProofs {
 public:
  static constexpr size_t kKept = 4;  // per fragment: the version held, the one on its way, and those of a checkpoint

  struct Epoch {
    uint64_t epoch = 0;  // 0: none
    uint64_t life = 0;   // of the coordinator with that epoch
  };
  void HasEpoch(const Epoch& epoch, const std::string& proof);  // the latest of the coordinator's
  Epoch epoch() const;
  void HasVersion(core::FragmentId fragment, core::Version version, const std::string& proof);
  void HasAdmitted(core::FragmentId fragment, core::Version base, const std::string& proof);
  void AddTo(v1::Join* join) const;  // adds the proofs of what `join` claims; empty where there is none

  // All of it as text, for a checkpoint, and back.
  std::string Text() const;
  void Restore(const std::string& text);  // text that is not from Text() is left out

 private:
  using Proofs = std::map<core::FragmentId, std::map<core::Version, std::string>>;
  static void Keep(Proofs& proofs, core::FragmentId fragment, core::Version version, const std::string& proof);
  static std::string Find(const Proofs& proofs, core::FragmentId fragment, core::Version version);

  mutable core::Mutex mutex_;
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);
  std::string epoch_proof_ ABSL_GUARDED_BY(mutex_);
  Proofs versions_ ABSL_GUARDED_BY(mutex_), admissions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::transport
