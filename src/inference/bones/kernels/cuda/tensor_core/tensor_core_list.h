// The kernels that one GPU alone runs, by name, as kernel_list.h has the others. X(name, Args, threads, body)
#pragma once
#include "inference/bones/kernels/cuda/kernel_list.h"
#include "inference/bones/kernels/cuda/tensor_core/attention_sm90.h"
#include "inference/bones/kernels/cuda/tensor_core/gemm_sm100.h"
#include "inference/bones/kernels/cuda/tensor_core/gemm_sm90.h"

#define TIE_HOPPER_KERNELS(X)                                                  \
  TIE_CUDA_FORMATS(X, tie_gemm_sm90, FastGemmArgs, kGemm90Threads, gemm_sm90)  \
  X(tie_attention_sm90_64, FastPrefillArgs, kAttend90Threads, attend_sm90<64>) \
  X(tie_attention_sm90_128, FastPrefillArgs, kAttend90Threads, attend_sm90<128>)

#define TIE_BLACKWELL_KERNELS(X) TIE_CUDA_FORMATS(X, tie_gemm_sm100, FastGemmArgs, kGemm100Threads, gemm_sm100)
