#include "formats/text_file.h"

#include <span>
#include <string_view>

#include "core/check.h"
#include "core/text.h"
#include "formats/file_kind.h"
#include "formats/posix_file.h"

namespace causeway::formats {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string contents, ReadFile(path, max_bytes));
  const auto bytes = std::as_bytes(std::span<const char>(contents));
  RETURN_IF_ERROR(RefuseKind(path, RecognizeText(bytes), "text", FileUse::kModel));
  return std::string(core::WithoutByteOrderMark(contents));
}

}  // namespace causeway::formats
