"""Quantised Hugging Face checkpoints: `tie model add` must put into the model file exactly the weights that numpy computes from the checkpoint, without rounding
them anew where the file has such blocks, and the model must compute what the same weights as float32 compute."""
import json
import subprocess

import numpy as np
import pytest

from quantised_checkpoints import KINDS, ModelFile, in_file_order, write_checkpoint, write_safetensors
from runtime_process import BIN

LIMIT_S = 120
HALF = 2.0**-11  # what rounding to f16 moves a number by, at most, as a part of it
# What the model file holds each matrix as, by default and with --keep-precision.
TYPES = {"gptq-4": ("Q4_0", "Q4_0"), "gptq-4-zeros": ("Q4_1", "Q4_1"), "gptq-4-v2": ("Q4_1", "Q4_1"), "gptq-4-act-order": ("Q8_0", "F16"), "gptq-8": ("Q8_0", "Q8_0"),
         "gptq-8-zeros": ("Q8_0", "F16"), "awq-4": ("Q4_1", "Q4_1"), "packed-4": ("Q4_0", "Q4_0"), "packed-4-zeros": ("Q4_1", "Q4_1"), "packed-8": ("Q8_0", "Q8_0"),
         "int-8": ("Q8_0", "Q8_0"), "fp8-tensor": ("Q8_0", "F16"), "fp8-channel": ("Q8_0", "F16"), "fp8-block": ("Q8_0", "F16")}
ROUNDED = {"gptq-4-act-order", "gptq-8-zeros", "fp8-tensor", "fp8-channel", "fp8-block"}  # no block of the file holds such rows


def add(assets, folder, *more):
    return subprocess.run([BIN / "tie", "model", "--assets", assets, "add", folder, *more], capture_output=True, text=True, timeout=LIMIT_S)


def added(assets, folder, *more):
    done = add(assets, folder, *more)
    assert done.returncode == 0, done.stderr
    return assets / "models" / folder.name / "weights.gguf"


def allowed(kind, holds, weights):
    """By how much a weight of the file may differ from numpy's."""
    if holds == "F16":
        return HALF * np.abs(weights) + 2.0**-25
    if holds == "Q4_1":  # the minimum is a product of scale and zero, rounded to f16; codes reach 15
        return np.full_like(weights, HALF * np.abs(weights).max())
    if kind in ROUNDED:  # eight bits of the largest of 32, and the scale in f16
        largest = np.abs(weights.reshape(-1, 32)).max(axis=1)
        return np.repeat(largest * (0.5 / 127 + HALF), 32).reshape(weights.shape)
    return np.zeros_like(weights)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_file_holds_the_weights_of_the_checkpoint(tmp_path, kind, keep):
    weights = write_checkpoint(tmp_path / "model", kind)
    file = ModelFile(added(tmp_path / "assets", tmp_path / "model", *(["--keep-precision"] if keep else [])))
    for name, expected in weights.items():
        holds, found = file.tensors[name]
        expected = in_file_order(name, expected)
        assert holds == TYPES[kind][keep], name
        assert found.shape == expected.shape
        assert (np.abs(found - expected) <= allowed(kind, holds, expected)).all(), (name, np.abs(found - expected).max())


def distributions(file):
    ids = ["--prompt-ids", "3,1,4,1,5,9,2,6", "--force-ids", "5,3,5,8,9,7", "--top", "40"]
    done = subprocess.run([BIN / "tie", "eval", "--gguf", file, "--kernels", "reference", "--threads", "1", *ids], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    out = []
    for line in done.stdout.splitlines():
        row = np.empty(40)
        for token, logprob in json.loads(line)["top"]:
            row[token] = logprob
        out.append(row)
    return np.array(out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_computes_what_the_same_weights_in_float32_compute(tmp_path, kind):
    """Eight-bit activations move the log probabilities of such a random model a little; other weights move them by their whole spread."""
    write_checkpoint(tmp_path / "quantised", kind)
    write_checkpoint(tmp_path / "floats", kind, as_floats=True)
    other = list(KINDS)[(list(KINDS).index(kind) + 1) % len(KINDS)]
    write_checkpoint(tmp_path / "other", other)
    found, expected, unlike = (distributions(added(tmp_path / "assets", tmp_path / name, *more))
                               for name, more in (("quantised", []), ("floats", ["--keep-precision"]), ("other", [])))
    def distance(one):
        return np.sqrt(((one - expected) ** 2).mean()) / expected.std()
    assert distance(found) < 0.16, distance(found)  # as reference_test.cc has it
    assert distance(unlike) > 0.5, "the control"


def refusal(tmp_path, change, kind="gptq-4"):
    folder = tmp_path / "model"
    write_checkpoint(folder, kind)
    change(folder)
    done = add(tmp_path / "assets", folder)
    assert done.returncode != 0
    assert not list((tmp_path / "assets").rglob("weights.gguf"))
    return done.stderr


def changed_scheme(**fields):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= fields
        (folder / "config.json").write_text(json.dumps(config))
    return change


@pytest.mark.parametrize("kind, fields, names", [
    ("gptq-4", {"quant_method": "bitsandbytes"}, "bitsandbytes"), ("gptq-4", {"checkpoint_format": "marlin"}, "marlin"), ("awq-4", {"version": "gemv"}, "gemv"),
    ("gptq-4", {"bits": 3}, 'bits "3"'), ("awq-4", {"bits": 8}, 'bits "8"'), ("packed-4", {"config_groups": {"group_0": {"weights": {"num_bits": 2}}}}, 'num_bits "2"'),
    ("packed-4", {"format": "nvfp4-pack-quantized"}, "nvfp4"), ("packed-4", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ("packed-4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"), ("fp8-block", {"weight_block_size": [128, 128]}, "shape")])
def test_what_is_not_understood_is_refused_by_name(tmp_path, kind, fields, names):
    assert names in refusal(tmp_path, changed_scheme(**fields), kind)


def changed_tensor(name, make):
    def change(folder):
        raw = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header, data, tensors = json.loads(raw[8:8 + length]), raw[8 + length:], {}
        sizes = {"I32": "<i4", "F16": "<f2", "F32": "<f4"}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[key] = (entry["dtype"], np.frombuffer(data[begin:end], sizes[entry["dtype"]]).reshape(entry["shape"]))
        full = "model.layers.1.mlp.down_proj." + name
        dtype, value = tensors.pop(full)
        value = make(value.copy())
        if value is not None:
            tensors[full] = (dtype, value)
        write_safetensors(folder / "model.safetensors", tensors)
    return change


@pytest.mark.parametrize("name, make, reason", [
    ("scales", lambda v: None, "scales"), ("qzeros", lambda v: v[:-1], "shape"), ("qweight", lambda v: v[:, :-8], "shape"), ("g_idx", lambda v: v + 2, "group"),
    ("g_idx", lambda v: v - 1, "group"), ("scales", lambda v: v * np.float16("nan"), "finite"), ("bias", lambda v: v + np.float16(1), "bias")])
def test_hostile_checkpoints_are_refused(tmp_path, name, make, reason):
    assert reason in refusal(tmp_path, changed_tensor(name, make))
