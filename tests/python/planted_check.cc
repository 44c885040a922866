// A bug inside a gRPC reactor of the library, for tests: the n-th message of all downloads fails a CHECK, where
// $CAUSEWAY_PLANTED_CHECK is n.
//
//   DownloadStream::OnReadDone ─► Guarded ─► TakeChunk ─(linker, --wrap)─► here: CHECK ─► the library's own TakeChunk
#include <atomic>
#include <cstdlib>

#include "core/check.h"
#include "transport/bulk_message.h"

namespace causeway::transport {

// Symbols that --wrap makes of TakeChunk's. The build has its mangled name.
std::optional<std::string> TakeChunkOfTheLibrary(const grpc::ByteBuffer& message) asm("__real_" CAUSEWAY_TAKE_CHUNK);
std::optional<std::string> TakeChunkInPlace(const grpc::ByteBuffer& message) asm("__wrap_" CAUSEWAY_TAKE_CHUNK);

std::optional<std::string> TakeChunkInPlace(const grpc::ByteBuffer& message) {
  static const char* const planted = std::getenv("CAUSEWAY_PLANTED_CHECK");
  static std::atomic<int> messages = 0;
  CHECK(planted == nullptr || ++messages != std::atoi(planted));
  return TakeChunkOfTheLibrary(message);
}

}  // namespace causeway::transport
