#include "core/value_place.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace causeway::core {
namespace {

constexpr char kTensor[] = "causeway/tensor", kIndex[] = "causeway/index";

}  // namespace

absl::Status WithPlace(absl::Status status, const ValuePlace& place) {
  status.SetPayload(kTensor, absl::Cord(place.tensor));
  status.SetPayload(kIndex, absl::Cord(absl::StrCat(place.index)));
  return status;
}

std::optional<ValuePlace> PlaceOf(const absl::Status& status) {
  const auto tensor = status.GetPayload(kTensor), index = status.GetPayload(kIndex);
  ValuePlace place;
  if (!tensor || !index || !absl::SimpleAtoi(std::string(*index), &place.index)) return std::nullopt;
  place.tensor = std::string(*tensor);
  return place;
}

absl::Status WithCode(absl::StatusCode code, const absl::Status& status) {
  const absl::Status changed(code, status.message());
  const std::optional<ValuePlace> place = PlaceOf(status);
  return place ? WithPlace(changed, *place) : changed;
}

}  // namespace causeway::core
