#!/usr/bin/env python3
"""Makes reference.json: what Hugging Face `transformers` computes for a tiny random model of each architecture.

Run it by hand in a throw-away environment that holds torch, transformers and safetensors from PyPI; the tests read its output and never
install those. Weights are not stored: both sides draw them from the tensor's name by a counter-based generator (`weights`, and
`reference_weights` in src/model_import/reference_test.cc), so that every number is the same to the bit.

usage: make_reference.py [--only CASE] > reference.json
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, TOKENS, GREEDY = 128, 56, 16
LOGIT_POSITIONS = (0, 7, 20, 31, 55)

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
            max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, torch_dtype="float32")


def case(kind, cls, **changes):
    return {**BASE, "model_type": kind, "architectures": [cls], **changes}


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
# config.json as published models write it; two of them in the newer form (rope_parameters, layer_types).
CASES = {
    "llama": case("llama", "LlamaForCausalLM", head_dim=16),
    "smollm2_tied": case("llama", "LlamaForCausalLM", tie_word_embeddings=True, rope_theta=100000.0),
    "llama_linear": case("llama", "LlamaForCausalLM", rope_scaling=dict(type="linear", factor=4.0)),
    "llama_llama3": case("llama", "LlamaForCausalLM", rope_theta=500.0, rope_scaling=LLAMA3),
    "llama_new_config": {**case("llama", "LlamaForCausalLM", rope_parameters=dict(rope_theta=500.0, **LLAMA3)), "rope_theta": None},
    "mistral_window": case("mistral", "MistralForCausalLM", sliding_window=16),
    "qwen2": case("qwen2", "Qwen2ForCausalLM", use_sliding_window=False, sliding_window=16, max_window_layers=1),
    "qwen2_yarn": case("qwen2", "Qwen2ForCausalLM", use_sliding_window=False, rope_theta=1000.0,
                       rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "qwen3": case("qwen3", "Qwen3ForCausalLM", head_dim=32, attention_bias=False, use_sliding_window=False, sliding_window=None),
    "gemma2": case("gemma2", "Gemma2ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, sliding_window=16,
                   attn_logit_softcapping=50.0, final_logit_softcapping=30.0, tie_word_embeddings=True, num_hidden_layers=3),
    "gemma3": case("gemma3_text", "Gemma3ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32,
                   sliding_window=16, sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0, tie_word_embeddings=True,
                   num_hidden_layers=7, rope_scaling=dict(rope_type="linear", factor=8.0)),
    "gemma3_new_config": {**case("gemma3_text", "Gemma3ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32,
                                 sliding_window=16, tie_word_embeddings=True, num_hidden_layers=4,
                                 layer_types=["sliding_attention", "full_attention"] * 2,
                                 rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1000000.0),
                                                      sliding_attention=dict(rope_type="default", rope_theta=10000.0))), "rope_theta": None},
    "phi3": case("phi3", "Phi3ForCausalLM", sliding_window=None),
    "phi3_window": case("phi3", "Phi3ForCausalLM", sliding_window=20, num_key_value_heads=4),
    "phi3_longrope": case("phi3", "Phi3ForCausalLM", sliding_window=None, original_max_position_embeddings=64,
                          rope_scaling=dict(type="longrope", short_factor=[1.0 + i / 4 for i in range(8)], long_factor=[2.0 + i for i in range(8)])),
    "phi4_partial": case("phi3", "Phi3ForCausalLM", sliding_window=None, partial_rotary_factor=0.75, head_dim=32, hidden_size=128,
                         tie_word_embeddings=True),
    "mixtral": case("mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen3moe": case("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32,
                     norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False, use_sliding_window=False),
    "qwen3moe_raw_weights": case("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
                                 norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False, use_sliding_window=False),
}


def tensor_shapes(config, model):
    """Names and shapes of a published checkpoint: those of the module, with fused experts taken apart."""
    shapes = {}
    for name, tensor in model.state_dict().items():
        shape = list(tensor.shape)
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if ".experts.gate_up_proj" in name or ".experts.down_proj" in name or ".mlp.gate." in name:
            continue
        shapes[name] = shape
    experts = config.get("num_local_experts") or config.get("num_experts")
    for layer in range(config["num_hidden_layers"] if experts else 0):
        wide, narrow = config["hidden_size"], config.get("moe_intermediate_size", config["intermediate_size"])
        mixtral = config["model_type"] == "mixtral"
        block = f"model.layers.{layer}." + ("block_sparse_moe" if mixtral else "mlp")
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        shapes[f"{block}.gate.weight"] = [experts, wide]
        for e in range(experts):
            shapes[f"{block}.experts.{e}.{gate}.weight"] = [narrow, wide]
            shapes[f"{block}.experts.{e}.{up}.weight"] = [narrow, wide]
            shapes[f"{block}.experts.{e}.{down}.weight"] = [wide, narrow]
    return shapes


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def weights(name, shape, gemma):
    """Multiples of 2^-23 in [-1, 1) times a power of two; norms lie around 1 (Gemma stores them around 0)."""
    n = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name)) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = ((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2.0**-23)
    if "norm" in name:
        values = unit * np.float32(0.25)
        if not gemma:
            values = values + np.float32(1)
    elif name.endswith("bias"):
        values = unit * np.float32(0.5)
    elif "embed_tokens" in name or "lm_head" in name:
        values = unit
    else:
        values = unit * np.float32(0.25)
    return values.reshape(shape)


def tokens_of(name):
    z = np.random.Generator(np.random.PCG64(fnv1a(name)))
    return z.integers(3, VOCAB, TOKENS).tolist()


def run(name, config):
    config = {key: value for key, value in config.items() if value is not None or key == "sliding_window"}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        shapes = tensor_shapes(config, empty)
        gemma = config["model_type"].startswith("gemma")
        save_file({key: weights(key, shape, gemma) for key, shape in shapes.items()}, path / "model.safetensors", metadata={"format": "pt"})
        model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info.get(kind):
                raise SystemExit(f"{name}: {kind}: {info[kind]}")
    model.eval()
    tokens = tokens_of(name)
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        greedy, at = [], list(tokens)
        for _ in range(GREEDY if "longrope" not in name else 8):  # longrope would change its factors behind the original context
            row = model(torch.tensor([at]), use_cache=False).logits[0, -1]
            best = torch.topk(row, 2)
            greedy.append([int(best.indices[0]), round(float(best.values[0] - best.values[1]), 3)])
            at.append(greedy[-1][0])
    spread = float(logits.std())
    print(f"{name}: spread {spread:.3f}, {sum(int(np.prod(s)) for s in shapes.values())} weights", file=sys.stderr)
    return {"name": name, "config": config, "shapes": shapes, "tokens": tokens,
            "logits": [[position, [round(float(x), 4) for x in logits[position]]] for position in LOGIT_POSITIONS],
            "best": [int(x) for x in logits.argmax(-1)], "greedy": greedy}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    chosen = parser.parse_args().only
    cases = [run(name, config) for name, config in CASES.items() if not chosen or name == chosen]
    print('{"made_by": "transformers %s, torch %s, float32, eager attention",\n"cases": [' % (transformers.__version__, torch.__version__))
    print(",\n".join(json.dumps(one, separators=(",", ":")) for one in cases))
    print("]}")


if __name__ == "__main__":
    main()
