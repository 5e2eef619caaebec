// The feed-forward of a mixture of experts on the GPU (kernels/cuda/experts.h): few rows go pair by pair through
// matrix-vector products, more are grouped by expert. No choice ever comes to the CPU.
#include "inference/bones/cuda/cuda_state.h"

namespace tie::bones::cuda {

Result<void> CudaModel::State::expert_feed_forward(const GpuLayer& w, uint32_t rows) {
  const ModelConfig& c = config;
  // The router in float, whatever the number of rows: a rounding could choose another expert.
  TIE_CHECK_OK(gemv(w.router, nullptr, hidden, w.ffn_norm, b.router_logits, c.n_experts, rows, false));
  const RouteArgs route{b.router_logits, b.chosen,         b.expert_weight,    c.n_experts,
                        c.n_experts,     c.n_experts_used, c.normalise_experts};
  TIE_CHECK_OK(launcher->launch("tie_route", route, {rows, 1, 1}, kRowThreads, kRouteSharedBytes));
  const bool few = rows <= kGemvRows && w.expert_gates.format == w.expert_ups.format;
  TIE_CHECK_OK(few ? few_experts(w, rows) : grouped_experts(w, rows));
  const CombineArgs combine{.x = hidden,
                            .outputs = b.expert_out,
                            .weight = b.expert_weight,
                            .slot = few ? nullptr : b.slot,
                            .n = c.n_embd,
                            .used = c.n_experts_used,
                            .add = adds(nullptr)};
  TIE_CHECK_OK(launcher->launch("tie_combine_experts", combine, {rows, 1, 1}, kRowThreads, 0));
  return add_ranks(hidden, uint64_t{rows} * c.n_embd);  // each has the same part of every expert
}

Result<void> CudaModel::State::few_experts(const GpuLayer& w, uint32_t rows) {
  const ModelConfig& c = config;
  const uint32_t pairs = rows * c.n_experts_used;
  ExpertGemvArgs in{.product = {.w = w.expert_gates.m,
                                .up = w.expert_ups.m,
                                .x = hidden,
                                .norm = w.ffn_norm,
                                .y = b.ffn,
                                .x_stride = c.n_embd,
                                .y_stride = c.n_ff,
                                .epsilon = c.norm_epsilon,
                                .gate = gate()},
                    .chosen = b.chosen,
                    .n = c.n_ff,
                    .pairs_of_row = c.n_experts_used};
  TIE_CHECK_OK(launcher->launch_for("tie_gemv_expert", w.expert_gates.format, in, {gemv_blocks(c.n_ff, true), pairs, 1},
                                    kGemvThreads, kGemvSharedBytes));
  const ExpertGemvArgs down{
      .product = {.w = w.expert_downs.m, .x = b.ffn, .y = b.expert_out, .x_stride = c.n_ff, .y_stride = c.n_embd},
      .chosen = b.chosen,
      .n = c.n_embd};
  return launcher->launch_for("tie_gemv_expert", w.expert_downs.format, down, {gemv_blocks(c.n_embd, false), pairs, 1},
                              kGemvThreads, kGemvSharedBytes);
}

Result<void> CudaModel::State::gemm_expert(const GpuMatrix& stack, uint32_t n, const uint16_t* x, const uint32_t* x_row,
                                           float* y, uint32_t rows) {
  const ExpertGemmArgs args{
      .product = {.w = stack.m, .x = x, .x_row = x_row, .y = y, .y_stride = n}, .tiles = b.expert_tiles, .n = n};
  const uint32_t tiles = most_expert_tiles(rows * config.n_experts_used, config.n_experts);
  return launcher->launch_for("tie_gemm_expert", stack.format, args, {(n + kGemmTile - 1) / kGemmTile, tiles, 1},
                              kGemmThreads, kGemmSharedBytes);
}

Result<void> CudaModel::State::grouped_experts(const GpuLayer& w, uint32_t rows) {
  const ModelConfig& c = config;
  const uint32_t pairs = rows * c.n_experts_used;
  const GroupArgs group{b.chosen, b.slot,           b.slot_row,  b.expert_tiles,
                        pairs,    c.n_experts_used, c.n_experts, most_expert_tiles(pairs, c.n_experts)};
  TIE_CHECK_OK(launcher->launch("tie_group_experts", group, {}, kGroupThreads, kGroupSharedBytes));
  TIE_CHECK_OK(narrow(hidden, w.ffn_norm, b.narrow, c.n_embd, rows));
  TIE_CHECK_OK(gemm_expert(w.expert_gates, c.n_ff, b.narrow, b.slot_row, b.ffn, rows));
  TIE_CHECK_OK(gemm_expert(w.expert_ups, c.n_ff, b.narrow, b.slot_row, b.up, rows));
  TIE_CHECK_OK(launcher->launch("tie_gate_to_bf16", GateArgs{b.ffn, b.up, b.narrow_ffn, c.n_ff, gate()}, {pairs, 1, 1},
                                kRowThreads, kRowSharedBytes));
  return gemm_expert(w.expert_downs, c.n_embd, b.narrow_ffn, nullptr, b.expert_out, rows);
}

}  // namespace tie::bones::cuda
