#include "transport/byte_meter.h"

namespace causeway::transport {

void ByteMeter::Sample(int64_t now_ms) {
  constexpr double kNewShare = 0.3;  // weight of the newest second: a burst shows at once and fades over about five
  constexpr double kLeast = 0.5;     // bytes a second; a value that fades for hours would become denormal
  const int64_t total = this->total();
  if (sampled_at_ms_ != 0 && now_ms > sampled_at_ms_) {
    const double newest =
        1000.0 * static_cast<double>(total - sampled_total_) / static_cast<double>(now_ms - sampled_at_ms_);
    const double rate = kNewShare * newest + (1 - kNewShare) * bytes_per_s();
    rate_.store(rate < kLeast ? 0 : rate, std::memory_order_relaxed);
  }
  sampled_total_ = total;
  sampled_at_ms_ = now_ms;
}

}  // namespace causeway::transport
