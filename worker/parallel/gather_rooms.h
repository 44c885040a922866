// Memory for stages while they are gathered: equal rooms, taken and returned, as many as are in use at once.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace causeway::worker {

class GatherRooms {
 public:
  // `values`: of the largest stage.
  void SetSize(int64_t values) { values_ = values; }

  std::vector<float> Take() {
    if (free_.empty()) {
      free_.emplace_back(static_cast<size_t>(values_));
      ++made_;
    }
    std::vector<float> room = std::move(free_.back());
    free_.pop_back();
    return room;
  }
  // Empty: nothing was taken. It is empty afterwards.
  void Give(std::vector<float>& room) {
    if (!room.empty()) free_.push_back(std::move(room));
    room.clear();
  }

  int64_t made() const { return made_; }
  int64_t bytes() const { return made_ * values_ * static_cast<int64_t>(sizeof(float)); }

 private:
  int64_t values_ = 0, made_ = 0;
  std::vector<std::vector<float>> free_;
};

}  // namespace causeway::worker
