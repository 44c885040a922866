// Detects whether the kernel's TCP buffers limit a site's link, and says what to do then.
//
//   rate × round trip ÷ connections = each one's data in flight ─► buffer needed ─► above the kernel's maximum? say so
//
// The data in flight on a connection is limited by what its sender may keep unacknowledged (tcp_wmem) and its receiver
// may accept (tcp_rmem), part of which goes to the kernel's bookkeeping. Pure, except for ReadKernelBuffers and
// BufferAdviser.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/membership.h"
#include "core/progress.h"

namespace causeway::transport {

// The three numbers of net.ipv4.tcp_wmem and tcp_rmem, in bytes; 0: unknown (not Linux).
struct BufferSizes {
  int64_t least = 0, initial = 0, most = 0;
};
struct KernelBuffers {
  BufferSizes write, read;
};

// "4096 16384 4194304"; zeros for any other text.
BufferSizes ParseBufferSizes(const std::string& text);
KernelBuffers ReadKernelBuffers();

// Names the sysctl to raise and its new value, for a link as measured; empty if there is nothing to raise.
std::string BufferAdvice(const core::LinkProgress& link, const KernelBuffers& buffers);

// Logs the advice, once per link. Thread-safe.
class BufferAdviser {
 public:
  void Look(const core::LinkProgress& link);

 private:
  std::atomic<bool> advised_ = false;
};

}  // namespace causeway::transport
