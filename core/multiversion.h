// Compiles one loop for several instruction sets; the version is chosen when the program starts.
//
// The arithmetic is written once, with std::fma where a fused multiply-add is meant and contraction off everywhere
// else, so that every version gives the same bits; the wider ones are only faster. (Sanitizers run before the loader
// has resolved such functions, so their builds have only the plain version.)
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(CAUSEWAY_NO_MULTIVERSION)
#define CAUSEWAY_MULTIVERSION __attribute__((target_clones("default", "fma", "avx512f")))
#else
#define CAUSEWAY_MULTIVERSION
#endif
