// Marks a function that is compiled once for each x86-64 level, the best chosen at start; GNU vector types of 16 lanes
// in it are split by the compiler for narrower sets. For passes over rows; kernels have folders of their own.
#pragma once

#if defined(__clang__)
#define TIE_VECTORIZE
#else
#define TIE_VECTORIZE optimize("O3")
#endif
#if defined(__x86_64__) && !defined(TIE_SANITIZED)
#define TIE_EACH_SET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), TIE_VECTORIZE))
#else
#define TIE_EACH_SET __attribute__((TIE_VECTORIZE))
#endif
