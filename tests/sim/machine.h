// The machine that a simulated service runs on: processes, their threads as fibers, virtual time, and the log of what
// happened.
//
//   seed ─► order of threads, delays, faults
//   events (network, timers, faults) in the order of virtual time ─► fibers run until all of them wait ─► next event
//
// One OS thread. A fiber switches only inside the calls of core::Simulation, so between two of them nothing else runs.
// A process that is killed is abandoned as it stands: none of its destructors runs, as none does after `kill -9`.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/simulation.h"

namespace causeway::sim {

using core::Clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Random numbers of the simulation, a function of the seed and of how many were drawn.
class Chance {
 public:
  explicit Chance(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool OneIn(int64_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

class Fiber;

// One life of a program: from its start until it is killed or has ended.
class Process {
 public:
  explicit Process(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }

 private:
  friend class Machine;
  const std::string name_;
  bool alive_ = true;
  Clock::TimePoint stalled_until_{};
  std::vector<Fiber*> fibers_;
};

class Machine final : public core::Simulation {
 public:
  explicit Machine(uint64_t seed);
  ~Machine() override;

  Chance& chance() { return chance_; }

  // ---- For the simulation's own code ----
  std::shared_ptr<Process> Begin(std::string name, std::function<void()> main);
  void Spawn(const std::shared_ptr<Process>& process, std::function<void()> body);  // another thread of it
  void Kill(Process& process);                                                      // not by one of its own threads
  void Stall(Process& process, Clock::Duration time);
  void KeepPunctual() { punctual_ = true; }  // from here on no thread is slow, as one is now and then
  void At(Clock::TimePoint time, std::function<void()> event);
  void After(Clock::Duration delay, std::function<void()> event) { At(Now() + delay, std::move(event)); }
  // Runs events until that time, that many more of them, or until `enough` after one.
  void Run(Clock::TimePoint until, int64_t events, const std::function<bool()>& enough = nullptr);
  std::shared_ptr<Process> current() const;  // whose thread runs; none between fibers

  // A line of the log. Its hash tells whether two runs were the same.
  void Log(std::string_view line);
  void ShowLog() { show_log_ = true; }
  uint64_t log_hash() const { return log_hash_; }
  int64_t events() const { return events_; }

  // Runs a part of the simulation that belongs to no process: no other thread runs meanwhile, and it must not wait.
  template <typename Body>
  void Alone(Body body) {
    const bool before = std::exchange(alone_, true);
    body();
    alone_ = before;
  }

  // ---- core::Simulation ----
  Clock::TimePoint Now() override { return now_; }
  Clock::CalendarTime Calendar() override;
  uint64_t Random() override { return chance_.Next(); }
  void Start(std::function<void()> body) override;
  const void* CurrentThread() override;
  bool Block(const void* on, std::optional<Clock::TimePoint> deadline) override;
  void WakeOne(const void* on) override;
  void WakeAll(const void* on) override;
  void Yield() override;

 private:
  struct Event {
    Clock::TimePoint time;
    uint64_t number;
    std::function<void()> run;
    bool operator>(const Event& other) const { return std::tie(time, number) > std::tie(other.time, other.number); }
  };

  void RunFibers();
  void SwitchTo(Fiber* fiber);
  void SwitchBack(Fiber* fiber);
  void Wake(Fiber* fiber, bool in_time);
  void MakeReady(Fiber* fiber);
  void Remove(Fiber* fiber);
  static void Enter(unsigned low, unsigned high);

  Chance chance_;
  Clock::TimePoint now_{std::chrono::hours(1)};
  uint64_t numbered_ = 0;
  int64_t events_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> pending_;
  std::vector<Fiber*> ready_;
  std::map<const void*, std::vector<Fiber*>> blocked_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<void*> free_stacks_;
  Fiber* running_ = nullptr;
  ucontext_t scheduler_{};
  const void* scheduler_stack_ = nullptr;  // for AddressSanitizer
  size_t scheduler_stack_bytes_ = 0;
  uint64_t log_hash_ = 0;
  bool show_log_ = false;
  bool alone_ = false;
  bool punctual_ = false;
};

// The one of this program.
Machine& TheMachine();

}  // namespace causeway::sim
