// How the cache keeps keys and values. The numbers are part of a layout's name (../kv_layout.h).
#pragma once
#include <cstdint>

namespace tie::bones {

// kQ8: 8 bits, one scale for a token's key and one for its value in each kv head (q8_cache.h); head_dim a multiple of
// 16.
enum class KvType : uint32_t { kF16 = 1, kBf16 = 2, kQ8 = 3 };

}  // namespace tie::bones
