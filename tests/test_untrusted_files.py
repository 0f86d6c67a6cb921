"""What is refused on loading: other schemas, hostile configurations, pickles, damaged and unsuitable weights."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import load, logits, make_model

import zoo

FIXTURE = Path(__file__).parent / "fixtures" / "config_v1.json"


@pytest.fixture
def model(tiny_config):
    return make_model(tiny_config)


@pytest.fixture
def folder(model, tmp_path):
    return zoo.save(model, tmp_path / "saved")


# ---- the schema


def test_schema_version_1_still_loads(tmp_path):
    shutil.copy(FIXTURE, tmp_path / "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = load(tmp_path, pretrained=False)
    assert made.config == json.loads(FIXTURE.read_text())
    assert sum(parameter.numel() for parameter in made.parameters()) == 22763
    assert logits(made, size=30).shape == (2, 3)


def edited(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def test_unknown_keys_warn_by_name(folder):
    def add(config):
        config["flavour"] = 1
        config["model"]["colour"] = "red"
        config["data"]["smell"] = None

    edited(folder, add)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(folder)
    text = " ".join(str(item.message) for item in caught)
    assert all(key in text for key in ("flavour", "colour", "smell"))


def put(*path_and_value):
    *path, value = path_and_value

    def edit(config):
        for key in path[:-1]:
            config = config[key]
        config[path[-1]] = value

    return edit


HOSTILE = {
    "newer": (put("schema_version", 2), "upgrade"),
    "no version": (lambda c: c.pop("schema_version"), "schema_version"),
    "version type": (put("schema_version", True), "schema_version"),
    "no model": (lambda c: c.pop("model"), "lacks model"),
    "model type": (put("model", [1]), "model must be an object"),
    "data type": (put("data", "x"), "data must be an object"),
    "import": (put("architecture", "os.system"), "known: image/vit"),
    "task": (put("task", "detection"), "architecture vit is for classification, not for task 'detection'"),
    "path": (put("architecture", "../../etc/passwd"), "architecture"),
    "code": (put("name", "__import__('os').system('x')"), "name"),
    "name path": (put("name", "../up"), "name"),
    "modality list": (put("modality", ["image"]), "modality"),
    "encoding code": (put("model", "encoding", "eval('1')"), "encoding"),
    "encoding type": (put("model", "encoding", 3), "encoding"),
    "negative": (put("model", "dim", -32), "model.dim"),
    "zero": (put("model", "patch_size", 0), "model.patch_size"),
    "huge": (put("model", "depth", 10**9), "model.depth"),
    "huger": (put("model", "num_classes", 10**400), "model.num_classes"),
    "many parameters": (put("model", "dim", 1 << 20), "model"),
    "float": (put("model", "num_heads", 2.0), "model.num_heads"),
    "bool": (put("model", "in_chans", True), "model.in_chans"),
    "string": (put("model", "dim", "32"), "model.dim"),
    "null": (put("model", "head_dim", None), "model.head_dim"),
    "options type": (put("model", "encoding_options", "x"), "encoding_options"),
    "parabolas": (put("model", "encoding_options", "parabolas", 10**12), "parabolas"),
    "parabolas text": (put("model", "encoding_options", "parabolas", "a" * 1000), "parabolas"),
    "drop path": (put("model", "drop_path", -1), "drop_path"),
    "origin": (put("model", "coordinate_origin", 10**6), "coordinate_origin"),
    "class token": (put("model", "class_token_position", "/etc"), "class_token_position"),
    "policy": (put("model", "size_policy", "explode"), "size_policy"),
    "input size": (put("data", "input_size", [3, -1, 10**9]), "input_size"),
    "mean": (put("data", "mean", ["a", 0, 0]), "mean"),
    "std": (put("data", "std", [0, 0, 0]), "std"),
    "labels count": (put("labels", ["a"]), "labels"),
    "labels type": (put("labels", [1, 2, 3]), "labels"),
    "labels escape": (put("labels", ["a", "b", "\x1b[2Jc"]), "labels"),
    "labels text": (put("labels", "abc"), "labels"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("pretrained", [True, False])
def test_hostile_values_are_config_errors(folder, case, pretrained):
    edit, message = HOSTILE[case]
    edited(folder, edit)
    with pytest.raises(zoo.ConfigError, match=message) as caught:
        load(folder, pretrained=pretrained)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "expected an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"schema_version": 1, "schema_version": 1}', "appears twice"),
        (b'{"schema_version": NaN}', "NaN"),
        (b'{"schema_version": 1e999}', "out of range"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * ((1 << 20) + 1), "larger than 1 MiB"),
        (b'{"dataset": "imagenet", "positional": "pape"}', "zoo convert"),
    ],
)
def test_unusable_configuration_files(folder, data, message):
    (folder / "config.json").write_bytes(data)
    with pytest.raises(zoo.ConfigError, match=message):
        load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_are_not_opened(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(zoo.WeightsError, match="not a regular file"):
        load(folder)


# ---- the weights file


def tensors(folder):
    return load_file(folder / "model.safetensors")


def test_missing_unexpected_and_misshapen_tensors_are_listed(folder):
    state = tensors(folder)
    state["extra.weight"] = state.pop("head.bias")
    state["cls_token"] = torch.zeros(1, 1, 5)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(zoo.WeightsError) as caught:
        load(folder, num_classes=9)
    text = str(caught.value)
    assert "missing: head.bias" in text
    assert "unexpected: extra.weight" in text
    assert "cls_token is (1, 1, 5), expected (1, 1, 32)" in text


def test_a_stem_of_other_channels_than_stated_is_an_error(folder):
    edited(folder, put("model", "in_chans", 4))
    edited(folder, put("data", {}))
    with pytest.raises(zoo.WeightsError, match=r"embed\.proj\.weight"):
        load(folder, in_chans=3)


def test_shapes_are_compared_before_anything_is_allocated(folder):
    edited(folder, put("model", "num_classes", 1_000_000))
    edited(folder, put("model", "dim", 3000))
    edited(folder, put("labels", None))
    with pytest.raises(zoo.WeightsError, match="do not fit"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(folder, value):
    state = tensors(folder)
    state["head.weight"][1, 2] = value
    save_file(state, folder / "model.safetensors")
    with pytest.raises(zoo.WeightsError, match=r"head\.weight holds NaN or infinite"):
        load(folder)


def test_integer_weights(folder):
    state = tensors(folder)
    state["head.bias"] = torch.zeros(3, dtype=torch.int32)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(zoo.WeightsError, match="dtype 'I32'"):
        load(folder)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def make_zip(path):
    torch.save({"a": torch.zeros(1)}, path)


def make_pickle(path):
    path.write_bytes(pickle.dumps(Evil()))


def make_legacy(path):
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("make", [make_zip, make_pickle, make_legacy])
def test_pickles_are_refused_by_content(folder, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(folder / "model.safetensors")
    with pytest.raises(zoo.WeightsError, match="never unpickled.*zoo convert"):
        load(folder)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("with_config", [True, False])
def test_a_folder_with_only_a_pickle_says_how_to_convert(folder, name, with_config):
    (folder / "model.safetensors").rename(folder / name)
    if not with_config:
        (folder / "config.json").unlink()
    with pytest.raises(zoo.WeightsError, match="zoo convert"):
        load(folder)


def header(text: bytes, length: int | None = None, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + body


ONE = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\0" * 7, "not a safetensors file"),
        (b"hello world, this is text", "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (header(ONE, 2**63), "not a safetensors file"),
        (header(ONE, len(ONE) + 50), "not a safetensors file"),
        (header(ONE, 20), "damaged"),
        (header(b"{" + b" " * (17 << 20)), "not a safetensors file"),
        (header(b'{"x":' + b"[" * 50_000), "nested too deeply"),
        (header(b'{"x":1,"x":1}'), "appears twice"),
        (header(b'{"x":1}'), "no usable shape"),
        (header(b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}'), "no usable shape"),
        (header(b'{"x":{"dtype":"PICKLE","shape":[2],"data_offsets":[0,8]}}'), "dtype 'PICKLE'"),
        (header(ONE, body=b"\0" * 8), "do not fit"),
        (header(b"{}"), "do not fit"),
    ],
)
def test_damaged_and_foreign_weight_files(folder, data, message):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(zoo.WeightsError, match=message) as caught:
        load(folder)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.99])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(zoo.WeightsError, match="damaged"):
        load(folder)


def test_overlapping_tensors_are_refused(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    items = json.loads(data[8 : 8 + length])
    items["head.bias"]["data_offsets"] = [0, 12]
    path.write_bytes(header(json.dumps(items).encode(), body=data[8 + length :]))
    with pytest.raises(zoo.WeightsError, match="damaged"):
        load(folder)


def test_a_header_of_640_bytes_is_not_taken_for_a_pickle(folder):
    """Its length begins with the two bytes that start a pickle of protocol 2."""
    text = ONE + b" " * (640 - len(ONE))
    (folder / "model.safetensors").write_bytes(header(text, body=b"\0" * 8))
    with pytest.raises(zoo.WeightsError, match="do not fit"):
        load(folder)
