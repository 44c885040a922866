// causeway-worker with --device=fake, a device emulated on the processor with the source text of a GPU's kernels: what a
// GPU would do, for tests on machines without one. Linked with worker/main.cc.
#include <memory>

#include "tests/worker/device/fake_backend.h"
#include "worker/loop/site_trainer.h"

namespace causeway::worker {
namespace {

[[maybe_unused]] const bool added = (AddDevice("fake", std::make_unique<FakeBackend>), true);

}  // namespace
}  // namespace causeway::worker
