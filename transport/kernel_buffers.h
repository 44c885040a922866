// Whether the kernel's buffers of TCP hold a site's link back, and what to say then.
//
//   rate × round trip ÷ connections = what each has in flight ─► buffer it takes ─► above the kernel's maximum? say so
//
// A connection has in flight what its sender may keep unacknowledged (tcp_wmem) and its receiver may take (tcp_rmem),
// of which a part goes to the kernel's bookkeeping. Pure but for ReadKernelBuffers and
// BufferAdviser.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/membership.h"

namespace causeway::transport {

// The three numbers of net.ipv4.tcp_wmem and tcp_rmem, in bytes; 0: not known (not Linux).
struct BufferSizes {
  int64_t least = 0, initial = 0, most = 0;
};
struct KernelBuffers {
  BufferSizes write, read;
};

// "4096 16384 4194304"; zeros if it is something else.
BufferSizes ParseBufferSizes(const std::string& text);
KernelBuffers ReadKernelBuffers();

// Which sysctl to raise and to what, for a link as it was measured; empty if there is nothing to raise.
std::string BufferAdvice(const core::LinkProgress& link, const KernelBuffers& buffers);

// Says so in the log, once for each link. Thread-safe.
class BufferAdviser {
 public:
  void Look(const core::LinkProgress& link);

 private:
  std::atomic<bool> advised_ = false;
};

}  // namespace causeway::transport
