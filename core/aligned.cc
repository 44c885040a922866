#include "core/aligned.h"

#include <sys/mman.h>

#include "core/check.h"

namespace causeway::core {

void* AllocatePages(std::size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return pages;
}

void FreePages(void* pages, std::size_t bytes) { CHECK(munmap(pages, bytes) == 0); }

}  // namespace causeway::core
