// The set "amx": AVX-512 (with half-precision attention where the CPU has it), and products of many rows on the AMX
// tile registers. "amx_emulated" is the same body on tiles in software, for tests on machines without them.
#pragma once
#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones {

// Runs where amx::state() is kReady.
const KernelSet& amx_kernels();
// Runs where the AVX-512 set runs.
const KernelSet& amx_emulated_kernels();

namespace amx {

// From this many rows on a batch lies in tiles of kAmxTileRows and its quantised products run on AMX. Unpacking a strip
// costs about as much as 8 rows of AVX-512 products, so fewer gain little. An estimate: docs/performance-model.md.
inline constexpr uint32_t kLeastRows = 32;

uint32_t tile_rows(uint32_t rows);
// Products of quantised weights with rows in tiles of kAmxTileRows.
void matmul(const MatmulJob& job);           // the CPU's tiles
void matmul_emulated(const MatmulJob& job);  // emulated_tiles.h

}  // namespace amx
}  // namespace tie::bones
