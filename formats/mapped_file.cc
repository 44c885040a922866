#include "formats/mapped_file.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/posix_file.h"

namespace causeway::formats {

absl::StatusOr<MappedFile> MappedFile::Map(const std::string& path) {
  ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  if (size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": expected tokens, got an empty file"));
  void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return FileError("map", path);
  return MappedFile({static_cast<const std::byte*>(memory), static_cast<size_t>(size)});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace causeway::formats
