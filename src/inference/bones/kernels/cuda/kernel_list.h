// Every kernel: name, argument, threads of a block, body. The one list from which the GPU's entry points (kernels.cu)
// and the emulated ones (emulator/emulated_kernels.cc) are made. X(name, Args, threads, body)
#pragma once
#include "inference/bones/kernels/cuda/attention.h"
#include "inference/bones/kernels/cuda/experts.h"
#include "inference/bones/kernels/cuda/fingerprint.h"

#define TIE_CUDA_FORMATS(X, name, Args, threads, body) \
  X(name##_f32, Args, threads, body<Format::kF32>)     \
  X(name##_f16, Args, threads, body<Format::kF16>)     \
  X(name##_bf16, Args, threads, body<Format::kBf16>)   \
  X(name##_q8, Args, threads, body<Format::kQ8>)       \
  X(name##_q4, Args, threads, body<Format::kQ4>)       \
  X(name##_q5, Args, threads, body<Format::kQ5>)       \
  X(name##_q6, Args, threads, body<Format::kQ6>)

#define TIE_CUDA_KERNELS(X)                                                          \
  TIE_CUDA_FORMATS(X, tie_gemv, GemvArgs, kGemvThreads, gemv)                        \
  TIE_CUDA_FORMATS(X, tie_gemv_one, GemvArgs, kGemvThreads, gemv_one)                \
  TIE_CUDA_FORMATS(X, tie_gemv_three, GemvThreeArgs, kGemvThreads, gemv_three)       \
  TIE_CUDA_FORMATS(X, tie_gemm, GemmArgs, kGemmThreads, gemm)                        \
  TIE_CUDA_FORMATS(X, tie_gemv_expert, ExpertGemvArgs, kGemvThreads, gemv_expert)    \
  TIE_CUDA_FORMATS(X, tie_gemm_expert, ExpertGemmArgs, kGemmThreads, gemm_expert)    \
  X(tie_route, RouteArgs, kRowThreads, route)                                        \
  X(tie_group_experts, GroupArgs, kGroupThreads, group_experts)                      \
  X(tie_combine_experts, CombineArgs, kRowThreads, combine_experts)                  \
  TIE_CUDA_FORMATS(X, tie_embed, EmbedArgs, kRowThreads, embed)                      \
  X(tie_gather_rows, GatherArgs, kRowThreads, gather_rows)                           \
  X(tie_norm_to_bf16, NormArgs, kRowThreads, norm_to_bf16)                           \
  X(tie_add_norm, AddNormArgs, kRowThreads, add_norm)                                \
  X(tie_gate_to_bf16, GateArgs, kRowThreads, gate_to_bf16)                           \
  X(tie_finish_heads, HeadsArgs, kRowThreads, finish_heads)                          \
  X(tie_copy_blocks, CopyBlocksArgs, kRowThreads, copy_blocks)                       \
  X(tie_fingerprint, FingerprintArgs, kFingerprintThreads, fingerprint)              \
  X(tie_decode_attention, DecodeArgs, kDecodeThreads, decode_attention)              \
  X(tie_merge_attention, MergeArgs, kRowThreads, merge_attention)                    \
  X(tie_prefill_attention_16, PrefillArgs, kPrefillThreads, prefill_attention<16>)   \
  X(tie_prefill_attention_32, PrefillArgs, kPrefillThreads, prefill_attention<32>)   \
  X(tie_prefill_attention_64, PrefillArgs, kPrefillThreads, prefill_attention<64>)   \
  X(tie_prefill_attention_96, PrefillArgs, kPrefillThreads, prefill_attention<96>)   \
  X(tie_prefill_attention_128, PrefillArgs, kPrefillThreads, prefill_attention<128>) \
  X(tie_prefill_attention_256, PrefillArgs, kPrefillThreads, prefill_attention<256>) \
  X(tie_finish_logits, FinishLogitsArgs, kSampleThreads, finish_logits)              \
  X(tie_top_k, TopKArgs, kSampleThreads, top_k)                                      \
  X(tie_merge_top_k, MergeTopKArgs, kSampleThreads, merge_top_k)
