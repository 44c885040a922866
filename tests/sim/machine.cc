#include "tests/sim/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

#include "core/check.h"
#include "core/random.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace causeway::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 2 << 20;  // its frames are larger

// AddressSanitizer has to know on which stack the program runs. `from` is null where that stack is left for ever.
void BeforeSwitch(void** from, const void* stack, size_t bytes) { __sanitizer_start_switch_fiber(from, stack, bytes); }
void AfterSwitch(void* from, const void** left, size_t* bytes) { __sanitizer_finish_switch_fiber(from, left, bytes); }
// A thread that was killed has left its frames' marks on the stack that the next one takes.
void ForgetFrames(const void* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }
#else
constexpr size_t kStackBytes = 512 << 10;

void BeforeSwitch(void**, const void*, size_t) {}
void AfterSwitch(void*, const void**, size_t*) {}
void ForgetFrames(const void*) {}
#endif

constexpr int64_t kSwitchOneIn = 6;   // at a lock that is free
constexpr int64_t kSlowOneIn = 4000;  // a thread that the machine does not run for a while
constexpr int64_t kSlowMs = 40;
constexpr auto kCalendarBegin = std::chrono::hours(24) * 20'000;  // since 1970

Machine* machine = nullptr;

}  // namespace

class Fiber {
 public:
  ucontext_t context{};
  void* stack = nullptr;
  std::shared_ptr<Process> process;
  std::function<void()> body;
  const void* blocked_on = nullptr;
  uint64_t block = 0;  // counts: which one a deadline is for
  bool in_time = true;
  bool ready = false;
  bool ended = false;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

uint64_t Chance::Next() {
  state_ += 0x9e3779b97f4a7c15;
  return core::SplitMix64(state_);
}

Machine& TheMachine() { return *machine; }

Machine::Machine(uint64_t seed) : chance_(seed) {
  CHECK(machine == nullptr);
  machine = this;
  core::SetSimulation(this);
}

Machine::~Machine() {
  core::SetSimulation(nullptr);
  machine = nullptr;
}

Clock::CalendarTime Machine::Calendar() {
  return Clock::CalendarTime(kCalendarBegin) +
         std::chrono::duration_cast<Clock::CalendarTime::duration>(now_.time_since_epoch());
}

void Machine::Log(std::string_view line) {
  ++events_;
  const int64_t at = std::chrono::duration_cast<microseconds>(now_.time_since_epoch()).count();
  log_hash_ = core::HashCombine(core::HashCombine(log_hash_, static_cast<uint64_t>(at)), line);
  if (show_log_) {
    std::printf("%12.6f %.*s\n", static_cast<double>(at) * 1e-6 - 3600, static_cast<int>(line.size()), line.data());
  }
}

// ---- Processes and fibers ----

std::shared_ptr<Process> Machine::Begin(std::string name, std::function<void()> main) {
  auto process = std::make_shared<Process>(std::move(name));
  Spawn(process, std::move(main));
  return process;
}

void Machine::Spawn(const std::shared_ptr<Process>& process, std::function<void()> body) {
  if (!process->alive_) return;
  auto fiber = std::make_unique<Fiber>();
  fiber->process = process;
  fiber->body = std::move(body);
  if (free_stacks_.empty()) {
    fiber->stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(fiber->stack != MAP_FAILED);
    CHECK(mprotect(fiber->stack, 4096, PROT_NONE) == 0);  // an overflow is seen
  } else {
    fiber->stack = free_stacks_.back();
    free_stacks_.pop_back();
    ForgetFrames(fiber->stack);
  }
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(fiber.get());
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Machine::Enter), 2, static_cast<unsigned>(address),
              static_cast<unsigned>(address >> 32));
  process->fibers_.push_back(fiber.get());
  MakeReady(fiber.get());
  all_.push_back(std::move(fiber));
}

void Machine::Start(std::function<void()> body) { Spawn(current(), std::move(body)); }

std::shared_ptr<Process> Machine::current() const { return running_ == nullptr ? nullptr : running_->process; }

const void* Machine::CurrentThread() { return running_; }

void Machine::Enter(unsigned low, unsigned high) {
  auto* const fiber = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32);
  AfterSwitch(nullptr, &machine->scheduler_stack_, &machine->scheduler_stack_bytes_);
  fiber->body();
  fiber->ended = true;
  BeforeSwitch(nullptr, machine->scheduler_stack_, machine->scheduler_stack_bytes_);
  setcontext(&machine->scheduler_);
}

void Machine::SwitchTo(Fiber* fiber) {
  running_ = fiber;
  void* own = nullptr;
  BeforeSwitch(&own, fiber->stack, kStackBytes);
  swapcontext(&scheduler_, &fiber->context);
  AfterSwitch(own, nullptr, nullptr);
  running_ = nullptr;
  if (fiber->ended) Remove(fiber);
}

// The running fiber waits; returns when it is its turn again.
void Machine::SwitchBack(Fiber* fiber) {
  BeforeSwitch(&fiber->fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  swapcontext(&fiber->context, &scheduler_);
  AfterSwitch(fiber->fake_stack, nullptr, nullptr);
}

void Machine::Remove(Fiber* fiber) {
  std::erase(fiber->process->fibers_, fiber);
  free_stacks_.push_back(fiber->stack);
  const auto found = std::ranges::find_if(all_, [&](const auto& each) { return each.get() == fiber; });
  std::swap(*found, all_.back());
  all_.pop_back();
}

void Machine::MakeReady(Fiber* fiber) {
  CHECK(!fiber->ready);
  fiber->ready = true;
  ready_.push_back(fiber);
}

void Machine::RunFibers() {
  while (!ready_.empty()) {
    const auto index = static_cast<size_t>(chance_.Below(static_cast<int64_t>(ready_.size())));
    Fiber* const fiber = ready_[index];
    ready_[index] = ready_.back();
    ready_.pop_back();
    fiber->ready = false;
    if (fiber->process->stalled_until_ > now_) {
      At(fiber->process->stalled_until_, [this, process = fiber->process, fiber] {
        if (process->alive_ && std::ranges::count(process->fibers_, fiber) > 0 && !fiber->ready) MakeReady(fiber);
      });
      continue;
    }
    SwitchTo(fiber);
  }
}

void Machine::Kill(Process& process) {
  CHECK(running_ == nullptr || running_->process.get() != &process);
  process.alive_ = false;
  for (Fiber* fiber : process.fibers_) {
    std::erase(ready_, fiber);
    if (fiber->blocked_on != nullptr) std::erase(blocked_[fiber->blocked_on], fiber);
    // Others may still refer to its stack, which is not used again.
    const auto found = std::ranges::find_if(all_, [&](const auto& each) { return each.get() == fiber; });
    found->release();
    std::swap(*found, all_.back());
    all_.pop_back();
  }
  process.fibers_.clear();
}

void Machine::Stall(Process& process, Clock::Duration time) { process.stalled_until_ = now_ + time; }

// ---- Waiting ----

bool Machine::Block(const void* on, std::optional<Clock::TimePoint> deadline) {
  Fiber* const fiber = running_;
  CHECK(fiber != nullptr && !alone_);
  fiber->blocked_on = on;
  fiber->in_time = true;
  fiber->block = ++numbered_;
  blocked_[on].push_back(fiber);
  if (deadline) {
    At(*deadline, [this, process = fiber->process, fiber, block = fiber->block] {
      if (!process->alive_ || std::ranges::count(process->fibers_, fiber) == 0) return;
      if (fiber->block == block && fiber->blocked_on != nullptr) Wake(fiber, /*in_time=*/false);
    });
  }
  SwitchBack(fiber);
  return fiber->in_time;
}

void Machine::Wake(Fiber* fiber, bool in_time) {
  std::erase(blocked_[fiber->blocked_on], fiber);
  if (blocked_[fiber->blocked_on].empty()) blocked_.erase(fiber->blocked_on);
  fiber->blocked_on = nullptr;
  fiber->in_time = in_time;
  MakeReady(fiber);
}

void Machine::WakeOne(const void* on) {
  const auto found = blocked_.find(on);
  if (found == blocked_.end() || found->second.empty()) return;
  Wake(found->second[static_cast<size_t>(chance_.Below(static_cast<int64_t>(found->second.size())))], true);
}

void Machine::WakeAll(const void* on) {
  const auto found = blocked_.find(on);
  if (found == blocked_.end()) return;
  const std::vector<Fiber*> waiting = found->second;
  for (Fiber* fiber : waiting) Wake(fiber, true);
}

void Machine::Yield() {
  if (running_ == nullptr || alone_ || !chance_.OneIn(kSwitchOneIn)) return;
  if (!punctual_ && chance_.OneIn(kSlowOneIn / kSwitchOneIn)) {
    Block(running_, now_ + milliseconds(chance_.Between(1, kSlowMs)));
    return;
  }
  if (ready_.empty()) return;
  MakeReady(running_);
  SwitchBack(running_);
}

// ---- Events ----

void Machine::At(Clock::TimePoint time, std::function<void()> event) {
  pending_.push({std::max(time, now_), ++numbered_, std::move(event)});
}

void Machine::Run(Clock::TimePoint until, int64_t events, const std::function<bool()>& enough) {
  RunFibers();
  for (const int64_t end = events_ + events; events_ < end && !pending_.empty() && pending_.top().time <= until;) {
    // The queue gives its top as constant; what runs is taken out of it first.
    Event event = std::move(const_cast<Event&>(pending_.top()));
    pending_.pop();
    now_ = event.time;
    const int64_t before = events_;
    event.run();
    RunFibers();
    if (events_ > before && enough && enough()) return;
  }
  if (pending_.empty() || pending_.top().time > until) now_ = std::max(now_, until);
}

}  // namespace causeway::sim
