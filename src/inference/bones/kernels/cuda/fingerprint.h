// SHA-256 of memory where it lies, as a tree that threads compute side by side: a leaf of 16 KiB for each thread, and
// over the 128 leaves of a block the hash of their hashes, one fingerprint for each part of 2 MiB. Whoever knows the
// fingerprints of what was written finds any later change without reading the memory back. Where a leaf or a part
// begins and how long it is follows from the length alone, so leaves and nodes need no marks of their own. Source: FIPS
// 180-4.
#pragma once
#include "inference/bones/kernels/cuda/device.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kFingerprintThreads = 128;
inline constexpr uint32_t kFingerprintLeafBytes = 16 << 10;
inline constexpr uint64_t kFingerprintPartBytes = uint64_t{kFingerprintThreads} * kFingerprintLeafBytes;
inline constexpr uint32_t kFingerprintSharedBytes = kFingerprintThreads * 32;

struct FingerprintArgs {
  const uint8_t* data = nullptr;  // 16-byte aligned
  uint64_t bytes = 0;             // a multiple of 64
  uint32_t* out = nullptr;        // [parts][8]: a fingerprint's words
};

struct Sha256State {
  uint32_t word[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

TIE_DEVICE uint32_t rotated(uint32_t v, uint32_t by) {
  return v >> by | v << (32 - by);
}
TIE_DEVICE uint32_t bytes_turned(uint32_t v) {
  return v << 24 | (v & 0xff00u) << 8 | (v >> 8 & 0xff00u) | v >> 24;
}

// One block of 16 words into the state; the words are used up.
TIE_DEVICE void sha256_block(Sha256State& state, uint32_t (&w)[16]) {
  constexpr uint32_t kRound[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t v[8];
  TIE_UNROLL
  for (uint32_t i = 0; i < 8; ++i) v[i] = state.word[i];
  TIE_UNROLL
  for (uint32_t i = 0; i < 64; ++i) {
    if (i >= 16) {
      const uint32_t older = w[(i + 1) % 16], newer = w[(i + 14) % 16];
      w[i % 16] += w[(i + 9) % 16] + (rotated(older, 7) ^ rotated(older, 18) ^ older >> 3) +
                   (rotated(newer, 17) ^ rotated(newer, 19) ^ newer >> 10);
    }
    const uint32_t e = v[4], a = v[0];
    const uint32_t first =
        v[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + kRound[i] + w[i % 16];
    const uint32_t second =
        (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    v[7] = v[6], v[6] = v[5], v[5] = e, v[4] = v[3] + first;
    v[3] = v[2], v[2] = v[1], v[1] = a, v[0] = first + second;
  }
  TIE_UNROLL
  for (uint32_t i = 0; i < 8; ++i) state.word[i] += v[i];
}

// The end of a message of whole blocks.
TIE_DEVICE void sha256_end(Sha256State& state, uint32_t bytes) {
  uint32_t w[16] = {0x80000000u};
  w[15] = bytes * 8;
  sha256_block(state, w);
}

// Grid: parts.
template <typename Block>
TIE_DEVICE void fingerprint(Block& b, const FingerprintArgs& a) {
  auto leaves = b.template shared<uint32_t>(0, kFingerprintThreads * 8);
  const uint64_t part = b.block_x() * kFingerprintPartBytes, at = part + uint64_t{b.thread()} * kFingerprintLeafBytes;
  if (at < a.bytes) {
    const uint64_t left = a.bytes - at;
    const uint32_t bytes = left < kFingerprintLeafBytes ? static_cast<uint32_t>(left) : kFingerprintLeafBytes;
    Sha256State leaf;
    for (uint32_t i = 0; i < bytes; i += 64) {
      uint32_t w[16];
      TIE_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const auto words = *reinterpret_cast<const Bytes16*>(a.data + at + i + 16 * v);
        TIE_UNROLL
        for (uint32_t j = 0; j < 4; ++j) w[4 * v + j] = bytes_turned(words.word[j]);
      }
      sha256_block(leaf, w);
    }
    sha256_end(leaf, bytes);
    TIE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) leaves[b.thread() * 8 + i] = leaf.word[i];
  }
  b.sync();
  if (b.thread() != 0) return;
  const uint64_t left = a.bytes - part;
  const uint32_t n = left < kFingerprintPartBytes
                         ? static_cast<uint32_t>((left + kFingerprintLeafBytes - 1) / kFingerprintLeafBytes)
                         : kFingerprintThreads;
  Sha256State node;
  for (uint32_t leaf = 0; leaf + 2 <= n; leaf += 2) {
    uint32_t w[16];
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) w[i] = leaves[leaf * 8 + i];
    sha256_block(node, w);
  }
  if (n % 2 == 0) {
    sha256_end(node, n * 32);
  } else {  // the last leaf shares its block with the end
    uint32_t w[16] = {};
    TIE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) w[i] = leaves[(n - 1) * 8 + i];
    w[8] = 0x80000000u;
    w[15] = n * 32 * 8;
    sha256_block(node, w);
  }
  TIE_UNROLL
  for (uint32_t i = 0; i < 8; ++i) a.out[b.block_x() * 8 + i] = node.word[i];
}

}  // namespace tie::bones::cuda
