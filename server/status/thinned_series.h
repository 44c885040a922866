// A series of (time, value) that holds at most `capacity` points and still spans the whole run: when it is full, every
// second point is dropped, and from then on only every second offer is kept.
//
//   offers  ● ● ● ● ● ● ● ● ● ●       capacity 4
//   kept    ●   ●   ●   ●     + the newest, which moves along
//
// Times are Unix milliseconds. One owner at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"

namespace causeway::server {

template <typename Point>
class ThinnedSeries {
 public:
  // `capacity` is at least 2: a first point and the newest.
  explicit ThinnedSeries(size_t capacity) : capacity_(capacity) { CHECK(capacity >= 2); }

  void Add(const Point& point) {
    newest_.assign(1, point);
    if (offered_++ % stride_ != 0) return;
    // From the first halving on, one place is reserved for the newest.
    if (kept_.size() >= (stride_ == 1 ? capacity_ : capacity_ - 1)) Halve();
    if ((offered_ - 1) % stride_ != 0) return;
    kept_.push_back(point);
    newest_.clear();
  }

  // Oldest first; the last is always the newest offer.
  std::vector<Point> points() const {
    std::vector<Point> points = kept_;
    points.insert(points.end(), newest_.begin(), newest_.end());
    return points;
  }

 private:
  void Halve() {
    for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
    kept_.resize((kept_.size() + 1) / 2);
    stride_ *= 2;
  }

  size_t capacity_;
  std::vector<Point> kept_;    // offers 0, stride, 2 stride, …
  std::vector<Point> newest_;  // the last offer, unless it is among them
  int64_t offered_ = 0;
  int64_t stride_ = 1;
};

// At most `most` of the points, evenly spaced, including the first and the last.
template <typename Point>
std::vector<Point> EvenlyOf(const std::vector<Point>& points, size_t most) {
  if (points.size() <= most || most < 2) return points;
  std::vector<Point> chosen;
  for (size_t i = 0; i < most; ++i) chosen.push_back(points[i * (points.size() - 1) / (most - 1)]);
  return chosen;
}

}  // namespace causeway::server
