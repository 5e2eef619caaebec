"""One run of llama.cpp over a model file through llama-cpp-python's low-level batch interface; prints one line of JSON.

Called by peers.py with the peers' own interpreter: peer_llama.py MODEL THREADS FLASH(0|1). Figures carry the names that engine_bench gives its own.
Every token of a prompt in chunks of 512, as many sequences in one llama_decode as the batch says, logits for each decoded row.
"""
import ctypes
import json
import sys
import time

import llama_cpp as ll

MODEL, THREADS, FLASH = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
CHUNK, STEPS = 512, 24


def context():
    silent = ll.llama_log_callback(lambda level, text, user: None)
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    model = ll.llama_model_load_from_file(MODEL.encode(), ll.llama_model_default_params())
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max, params.kv_unified = 4096, CHUNK, CHUNK, 32, True
    params.n_threads = params.n_threads_batch = THREADS
    params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if FLASH else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
    made = ll.llama_init_from_model(model, params)
    if not made:
        raise SystemExit("llama.cpp refused the context")
    return made, silent


CONTEXT, KEEP = context()
BATCH = ll.llama_batch_init(CHUNK, 0, 1)


def run(rows):
    """rows: (token, position, sequence, wants logits)"""
    BATCH.n_tokens = len(rows)
    for i, (token, position, sequence, logits) in enumerate(rows):
        BATCH.token[i], BATCH.pos[i], BATCH.n_seq_id[i], BATCH.logits[i] = token, position, 1, logits
        BATCH.seq_id[i][0] = sequence
    if ll.llama_decode(CONTEXT, BATCH) != 0:
        raise SystemExit("llama_decode failed")
    ll.llama_synchronize(CONTEXT)


def clear():
    ll.llama_memory_clear(ll.llama_get_memory(CONTEXT), True)


def prefill(n):
    clear()
    start = time.perf_counter()
    for first in range(0, n, CHUNK):
        run([((7 * i + 11) % 40000 + 100, i, 0, i == n - 1) for i in range(first, min(first + CHUNK, n))])
    return n / (time.perf_counter() - start)


def decode(batch, depth):
    """Steps of one token for each of `batch` sequences, which stand at `depth` already (0: after one token)."""
    at = max(depth, 1)
    if depth == 0:
        clear()
        run([(500, 0, s, 1) for s in range(batch)])
    start = time.perf_counter()
    for i in range(STEPS):
        run([(600 + i + s, at + i, s, 1) for s in range(batch)])
    return batch * STEPS / (time.perf_counter() - start)


prefill(64)
out = {"prefill 512": prefill(512)}
for size in (1, 8, 32):
    out[f"decode batch {size} depth 0"] = decode(size, 0)
out["prefill 2048"] = prefill(2048)
out["decode batch 1 depth 2048"] = decode(1, 2048)
print(json.dumps(out))
