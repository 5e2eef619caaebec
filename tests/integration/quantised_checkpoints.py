"""Writes tiny Llama checkpoints quantised as the public tools write them (GPTQ, AWQ, compressed-tensors, fp8), with each matrix's weights computed by numpy from
the formats' descriptions, and reads model files back. Shares nothing with the product's code."""
import json
import struct

import numpy as np

HIDDEN, FF, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 128, 256, 4, 2, 32, 40, 2
LINEARS = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
           "self_attn.o_proj": (HIDDEN, HEADS * HEAD), "mlp.gate_proj": (FF, HIDDEN), "mlp.up_proj": (FF, HIDDEN), "mlp.down_proj": (HIDDEN, FF)}
NAMES_IN_FILE = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FF, "num_hidden_layers": LAYERS,
          "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": True, "hidden_act": "silu"}
GROUP = 64


def bf16(values):
    """float -> the bits of the nearest bfloat16, and what they stand for."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_table():
    table = np.empty(256)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        table[code] = np.nan if code & 0x7F == 0x7F else (-value if code & 0x80 else value)
    return table


def packed(codes, bits, axis, order=None):
    """Codes of one axis into 32-bit words, the first in the lowest bits; `order`: which code of a word's each place holds."""
    codes, per = np.moveaxis(np.asarray(codes, np.uint32), axis, -1), 32 // bits
    codes = codes.reshape(*codes.shape[:-1], -1, per)[..., order or list(range(per))]
    words = np.zeros(codes.shape[:-1], np.uint32)
    for place in range(per):
        words |= codes[..., place] << np.uint32(bits * place)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def drawn(rng, n, k, bits, group, symmetric):
    """Codes [n, k], scales [n, groups] in f16, zeros [n, groups]."""
    codes = rng.integers(0, 2**bits, (n, k))
    scales = rng.uniform(0.5, 2.0, (n, k // group)).astype(np.float16) * np.float16(0.4 / 2**bits)
    zeros = np.full((n, k // group), 2 ** (bits - 1)) if symmetric else rng.integers(0, 2**bits, (n, k // group))
    return codes, scales, zeros


def gptq(bits=4, symmetric=True, version=1, shuffled=False):
    def quantise(rng, n, k):
        codes, scales, zeros = drawn(rng, n, k, bits, GROUP, symmetric)
        groups = np.arange(k) // GROUP
        if shuffled:
            groups = rng.permutation(groups)
        stored = (zeros - 1) % 2**bits if version == 1 else zeros
        tensors = {"qweight": ("I32", packed(codes.T, bits, 0)), "qzeros": ("I32", packed(stored.T, bits, 1)), "scales": ("F16", np.ascontiguousarray(scales.T)),
                   "g_idx": ("I32", groups.astype(np.int32)), "bias": ("F16", np.zeros(n, np.float16))}
        return tensors, scales[:, groups].astype(np.float64) * (codes - zeros[:, groups])
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric, "desc_act": shuffled}
    return config | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), quantise


def awq():
    def quantise(rng, n, k):
        codes, scales, zeros = drawn(rng, n, k, 4, GROUP, False)
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        tensors = {"qweight": ("I32", packed(codes.T, 4, 1, order)), "qzeros": ("I32", packed(zeros.T, 4, 1, order)), "scales": ("F16", np.ascontiguousarray(scales.T))}
        return tensors, np.repeat(scales.astype(np.float64), GROUP, 1) * (codes - np.repeat(zeros, GROUP, 1))
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "GEMM"}, quantise


def compressed(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}


def pack_quantized(bits=4, symmetric=True):
    def quantise(rng, n, k):
        codes, scales, zeros = drawn(rng, n, k, bits, GROUP, symmetric)
        scale_bits, scales = bf16(scales)
        tensors = {"weight_packed": ("I32", packed(codes, bits, 1)), "weight_scale": ("BF16", scale_bits), "weight_shape": ("I64", np.array([n, k]))}
        if not symmetric:
            tensors["weight_zero_point"] = ("I32", packed(zeros, bits, 0))
        return tensors, np.repeat(scales.astype(np.float64), GROUP, 1) * (codes - np.repeat(zeros, GROUP, 1))
    return compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=GROUP), quantise


def int8(rng, n, k):
    codes, (bits, scales) = rng.integers(-128, 128, (n, k)).astype(np.int8), bf16(rng.uniform(0.5, 2.0, (n, 1)) * 2e-3)
    return {"weight": ("I8", codes), "weight_scale": ("BF16", bits)}, scales.astype(np.float64) * codes


def fp8(scale_shape, name="weight_scale", block=None):
    def quantise(rng, n, k):
        codes = (rng.integers(0, 2, (n, k)) << 7 | rng.integers(0, 0x60, (n, k))).astype(np.uint8)
        shape = {"tensor": (1,), "channel": (n, 1), "block": (-(-n // 96), -(-k // 96))}[scale_shape]
        bits, scales = bf16(rng.uniform(0.5, 2.0, shape) * 0.01)
        each = np.repeat(np.repeat(scales, 96, 0), 96, 1)[:n, :k] if scale_shape == "block" else scales
        return {"weight": ("F8_E4M3", codes), name: ("BF16", bits)}, each.astype(np.float64) * e4m3_table()[codes]
    if block:
        return {"quant_method": "fp8", "weight_block_size": block, "activation_scheme": "dynamic"}, quantise
    return compressed("float-quantized", num_bits=8, type="float", strategy=scale_shape), quantise


KINDS = {"gptq-4": gptq(), "gptq-4-zeros": gptq(symmetric=False), "gptq-4-v2": gptq(symmetric=False, version=2), "gptq-4-act-order": gptq(symmetric=False, shuffled=True),
         "gptq-8": gptq(bits=8), "gptq-8-zeros": gptq(bits=8, symmetric=False), "awq-4": awq(), "packed-4": pack_quantized(), "packed-4-zeros": pack_quantized(symmetric=False),
         "packed-8": pack_quantized(bits=8), "int-8": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int8),
         "fp8-tensor": fp8("tensor"), "fp8-channel": fp8("channel"), "fp8-block": fp8("block", "weight_scale_inv", [96, 96])}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def plain_tensors(rng):
    tensors = {"model.embed_tokens.weight": ("F32", rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)), "model.norm.weight": ("F32", np.ones(HIDDEN, np.float32))}
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = ("F32", rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    return tensors


def write_tokenizer(folder):
    vocab = {chr(ord("!") + i): i for i in range(VOCAB - 1)} | {"<eos>": VOCAB - 1}
    tokenizer = {"added_tokens": [{"id": VOCAB - 1, "content": "<eos>", "special": True}], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                 "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "chat_template": "{{ messages }}"}))


def write_checkpoint(folder, kind, as_floats=False):
    """The checkpoint, or the same weights as float32; gives each matrix's weights by name."""
    scheme, quantise = KINDS[kind]
    rng = np.random.default_rng(list(KINDS).index(kind))
    folder.mkdir()
    tensors, weights = plain_tensors(rng), {}
    for layer in range(LAYERS):
        for linear, (n, k) in LINEARS.items():
            name = f"model.layers.{layer}.{linear}"
            parts, weights[f"blk.{layer}.{NAMES_IN_FILE[linear]}.weight"] = quantise(rng, n, k)
            if as_floats:
                tensors[f"{name}.weight"] = ("F32", weights[f"blk.{layer}.{NAMES_IN_FILE[linear]}.weight"].astype(np.float32))
            else:
                tensors |= {f"{name}.{part}": value for part, value in parts.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG if as_floats else CONFIG | {"quantization_config": scheme}))
    write_tokenizer(folder)
    return weights


def in_file_order(name, weights):
    """Rows as a Llama's model file has them: the two of a rotary pair side by side."""
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return weights
    return weights.reshape(-1, 2, HEAD // 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


class ModelFile:
    """A GGUF file's tensors: their type's name and their numbers."""
    TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}
    SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.raw, self.at, self.tensors = path.read_bytes(), 0, {}
        _, _, n_tensors, n_keys = self.take("<IIQQ")
        for _ in range(n_keys):
            self.text()
            self.value(self.take("<I")[0])
        entries = []
        for _ in range(n_tensors):
            name, (n_dims,) = self.text(), self.take("<I")
            dims, (kind, offset) = self.take(f"<{n_dims}Q"), self.take("<IQ")
            entries.append((name, dims[::-1], kind, offset))
        data = -(-self.at // 32) * 32
        for name, shape, kind, offset in entries:
            kind_name, elements, size = self.TYPES[kind]
            n_bytes = int(np.prod(shape)) // elements * size
            self.tensors[name] = (kind_name, self.numbers(kind_name, self.raw[data + offset:data + offset + n_bytes]).reshape(shape))

    def take(self, form):
        values = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        (length,) = self.take("<Q")
        self.at += length
        return self.raw[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            element, count = self.take("<IQ")
            for _ in range(count):
                self.value(element)
        else:
            self.take("<" + self.SCALARS[kind])

    @staticmethod
    def numbers(kind, raw):
        if kind in ("F32", "F16"):
            return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float64)
        if kind == "BF16":
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind])
        half = lambda at: blocks[:, at:at + 2].copy().view("<f2").astype(np.float64)  # noqa: E731
        if kind == "Q8_0":
            return half(0) * blocks[:, 2:].view(np.int8)
        nibbles = blocks[:, 2 if kind == "Q4_0" else 4:]
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=1).astype(np.float64)
        return half(0) * (codes - 8) if kind == "Q4_0" else half(0) * codes + half(2)
