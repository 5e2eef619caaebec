// The instructions of wgmma, TMA, mbarrier and tcgen05 as methods of a block: what the kernels of this folder call, and
// what the emulator has under the same names (emulator/block_emulator.h). nvcc alone. Source: PTX ISA 9.0.
// Addresses are 32-bit addresses of shared memory.
#pragma once
#include "inference/bones/kernels/cuda/tensor_core/descriptors.h"

namespace tie::bones::cuda {

// The registers of d in the text of an instruction, and as operands.
#define TIE_D32                                             \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define TIE_D64                                                      \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define TIE_OUT8(d, i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define TIE_OUT32(d, i) TIE_OUT8(d, i), TIE_OUT8(d, i + 8), TIE_OUT8(d, i + 16), TIE_OUT8(d, i + 24)
#define TIE_OUT64(d) TIE_OUT32(d, 0), TIE_OUT32(d, 32)

// d = a b, or d += a b: a and b in shared memory, both K-major.
#define TIE_WGMMA_SS(n, type, registers, a, b, add, ...)                                                       \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add                                                         \
               ", 0;\n"                                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " registers ", %" #a ", %" #b \
               ", p, 1, 1, 0, 0; }\n"                                                                          \
               : __VA_ARGS__                                                                                   \
               : "l"(a_at), "l"(b_at), "r"(uint32_t{add_to}))
// d += a b: a in registers, b in shared memory, MN-major.
#define TIE_WGMMA_RS(n, type, registers, a, b, ...)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " registers ", {" a "}, %" #b \
               ", 1, 1, 1, 1;\n"                                                                               \
               : __VA_ARGS__                                                                                   \
               : "r"(a_is[0]), "r"(a_is[1]), "r"(a_is[2]), "r"(a_is[3]), "l"(b_at))

struct AsyncBlock : Block {
  // The first address of the block's shared memory that is a multiple of kAtomBytes.
  TIE_DEVICE uint32_t shared_base() const {
    extern __shared__ __align__(16) unsigned char tie_shared[];
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(tie_shared));
    return (at + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  }
  TIE_DEVICE void store_16(uint32_t to, const Bytes16& v) const {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3])
                 : "memory");
  }
  TIE_DEVICE uint32_t load_word(uint32_t from) const {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
  }
  // What threads have stored becomes visible to TMA and to the matrix units.
  TIE_DEVICE void publish_stores() const { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  // Threads that waited one by one come together again, for what a warp does as one.
  TIE_DEVICE void sync_warp() const { __syncwarp(); }
  // The 128 threads of a warpgroup; id 1 to 15.
  TIE_DEVICE void sync_group(uint32_t id) const {
    __syncwarp();  // a barrier wants its warps whole
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
  }

  // ---- barriers in shared memory: a phase ends when all have arrived and all announced bytes are there ----
  TIE_DEVICE void barrier_init(uint32_t at, uint32_t arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
  }
  // Before the block's sync after which barriers are used.
  TIE_DEVICE void publish_barriers() const {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    publish_stores();
  }
  TIE_DEVICE void barrier_arrive(uint32_t at) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
  }
  TIE_DEVICE void barrier_expect(uint32_t at, uint32_t bytes) const {  // arrives, too
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  // Waits for the end of the phase of this parity: a second or so. The kernel is wrong then, and must end with a wrong
  // result rather than hang: this thread waits no more. (A way out of the caller's loop instead would make the compiler
  // serialise wgmma.)
  TIE_DEVICE void barrier_wait(uint32_t at, uint32_t parity) {
    constexpr long long kGiveUpCycles = 2000000000;
    const long long began = clock64();
    for (uint32_t done = late_; done == 0;) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(at), "r"(parity)
                   : "memory");
      if (done == 0 && clock64() - began > kGiveUpCycles) done = late_ = 1;
    }
  }

  // ---- TMA: a tile of global memory to shared memory; its bytes count for the barrier ----
  TIE_DEVICE void load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y) const {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
  }
  TIE_DEVICE void load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y, uint32_t z,
                            uint32_t w) const {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
  }

  // ---- wgmma: products of a warpgroup, 64 rows; fragments of d as those of mma, 16 rows for each warp ----
  TIE_DEVICE void begin_products() const { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  TIE_DEVICE void commit_products() const { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  // Until at most kLeft groups are under way.
  template <uint32_t kLeft>
  TIE_DEVICE void wait_products() const {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
  }
  // Registers that products write or read are touched by nothing before this point that stands after it, and the other
  // way round: to the compiler the instructions above move no registers. Before begin_products and after wait_products.
  template <uint32_t kN>
  TIE_DEVICE void hold(float (&d)[kN]) const {
    TIE_UNROLL
    for (uint32_t i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
  }
  template <uint32_t kN>
  TIE_DEVICE void hold(uint32_t (&a)[kN][4]) const {
    TIE_UNROLL
    for (uint32_t i = 0; i < kN * 4; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  }
  template <bool kBf16>
  TIE_DEVICE void multiply(float (&d)[32], uint64_t a_at, uint64_t b_at, bool add_to) const {
    if constexpr (kBf16)
      TIE_WGMMA_SS(64, "bf16", TIE_D32, 32, 33, 34, TIE_OUT32(d, 0));
    else
      TIE_WGMMA_SS(64, "f16", TIE_D32, 32, 33, 34, TIE_OUT32(d, 0));
  }
  template <bool kBf16>
  TIE_DEVICE void multiply(float (&d)[64], uint64_t a_at, uint64_t b_at, bool add_to) const {
    if constexpr (kBf16)
      TIE_WGMMA_SS(128, "bf16", TIE_D64, 64, 65, 66, TIE_OUT64(d));
    else
      TIE_WGMMA_SS(128, "f16", TIE_D64, 64, 65, 66, TIE_OUT64(d));
  }
  template <bool kBf16>
  TIE_DEVICE void multiply_rows(float (&d)[32], const uint32_t (&a_is)[4], uint64_t b_at) const {
    if constexpr (kBf16)
      TIE_WGMMA_RS(64, "bf16", TIE_D32, "%32,%33,%34,%35", 36, TIE_OUT32(d, 0));
    else
      TIE_WGMMA_RS(64, "f16", TIE_D32, "%32,%33,%34,%35", 36, TIE_OUT32(d, 0));
  }
  template <bool kBf16>
  TIE_DEVICE void multiply_rows(float (&d)[64], const uint32_t (&a_is)[4], uint64_t b_at) const {
    if constexpr (kBf16)
      TIE_WGMMA_RS(128, "bf16", TIE_D64, "%64,%65,%66,%67", 68, TIE_OUT64(d));
    else
      TIE_WGMMA_RS(128, "f16", TIE_D64, "%64,%65,%66,%67", 68, TIE_OUT64(d));
  }

  // ---- tcgen05: products of one thread into tensor memory; row r of d is lane r, column c a word of it ----
  // One warp: takes columns of tensor memory and writes their address to shared memory.
  TIE_DEVICE void take_tensor_memory(uint32_t to, uint32_t columns) const {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  }
  TIE_DEVICE void give_tensor_memory(uint32_t at, uint32_t columns) const {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns) : "memory");
  }
  // Around a barrier that orders tensor memory's users.
  TIE_DEVICE void before_sync() const { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
  TIE_DEVICE void after_sync() const { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
  TIE_DEVICE void multiply_tile(uint32_t d_at, uint64_t a_at, uint64_t b_at, uint32_t instruction, bool add_to) const {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }\n" ::"r"(d_at),
        "l"(a_at), "l"(b_at), "r"(instruction), "r"(uint32_t{add_to})
        : "memory");
  }
  // The barrier is arrived at when this thread's products so far are done.
  TIE_DEVICE void arrive_after_products(uint32_t barrier) const {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
  }
  // 32 columns of this lane's row; warp w of its four reads rows 32 w and on (part of the address).
  TIE_DEVICE void read_tensor_memory(float (&d)[32], uint32_t from) const {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 " TIE_D32
                 ", [%32];\n"
                 "tcgen05.wait::ld.sync.aligned;\n"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                   "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]),
                   "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]),
                   "=f"(d[30]), "=f"(d[31])
                 : "r"(from)
                 : "memory");
  }

 private:
  uint32_t late_ = 0;
};

}  // namespace tie::bones::cuda
