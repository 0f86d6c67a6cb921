"""Weights in 8 bits: error bounds, files, every kind of model, cards, the Hub, and files that are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from conftest import TINY_CONFIG
from hub_client import hub, make_folder  # noqa: F401
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved_models import load, logits, make_model, randomise

import zoo
from zoo import checkpoints, int8_storage, registry
from zoo.training.recipe import recipe_from_dict

HEAVY = torch.distributions.StudentT(2.0)


@pytest.fixture
def model(tiny_config):
    return make_model(tiny_config)


@pytest.fixture
def folder(model, tmp_path):
    return zoo.save(model, tmp_path / "saved", dtype="int8")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, state: dict[str, torch.Tensor], form: str = int8_storage.METADATA["format"]) -> None:
    save_file(state, folder / "model.safetensors", {"format": form})


# ---- numbers


@pytest.mark.parametrize("shape", [(64, 256), (40, 3, 8, 8), (7, 5, 3, 3, 4), (90, 16)])
@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30])
def test_no_weight_is_further_away_than_half_its_scale(shape, factor):
    torch.manual_seed(sum(shape))
    matrix = HEAVY.sample(shape) * factor
    matrix[1] = 0.0
    matrix[2] = matrix[2].abs().amax()  # All of them the largest.
    values, scale = int8_storage.pack_rows(matrix)
    assert values.dtype == torch.int8 and values.shape == shape and scale.shape == shape[:1]
    rows = values.flatten(1).int().abs()
    assert rows[0].max() == rows[2].min() == 127 and rows[1].max() == 0
    found = int8_storage.unpack_rows(values, scale)
    error = (found.double() - matrix.double()).abs().flatten(1).amax(1)
    assert (error <= scale.double() / 2 * (1 + 1e-6)).all()
    assert (scale * 127 >= matrix.abs().flatten(1).amax(1)).all()
    assert scale[0] <= matrix[0].abs().max() / 127 * (1 + 2**-15)
    exact = values.flatten(1).double() * scale.double()[:, None]
    assert torch.equal(found.flatten(1).double(), exact)
    again = int8_storage.pack_rows(found)
    assert torch.equal(again[0], values) and torch.equal(again[1], scale)


def test_the_smallest_numbers_neither_divide_by_zero_nor_change_again():
    matrix = torch.full((8, 64), 1e-44)
    values, scale = int8_storage.pack_rows(matrix)
    found = int8_storage.unpack_rows(values, scale)
    assert (scale > 0).all() and torch.isfinite(found).all()
    assert all(map(torch.equal, int8_storage.pack_rows(found), (values, scale)))


# ---- files


def test_a_second_save_is_the_same_file(folder, tmp_path):
    loaded = load(folder)
    for place in ("again", "third"):
        again = zoo.save(loaded, tmp_path / place, dtype=torch.int8)
        assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    plain = load(zoo.save(loaded, tmp_path / "plain", dtype="float32"))
    assert torch.equal(logits(plain), logits(loaded))
    assert checkpoints.stored_dtype(folder / "model.safetensors") == "float16, int8"


def smallest() -> list[str]:
    """The smallest registered model of each modality and task."""
    found: dict[tuple[str, str], registry.Entry] = {}
    for entry in map(registry.entry, zoo.list_models()):
        known = found.setdefault((entry.modality, entry.task), entry)
        if entry.parameters < known.parameters:
            found[entry.modality, entry.task] = entry
    return [entry.name for entry in found.values()]


@pytest.mark.parametrize("name", smallest())
def test_every_kind_of_model_is_stored_in_half_of_float16(name, tmp_path):
    model = zoo.load(name, pretrained=False)
    randomise(model)
    half = zoo.save(model, tmp_path / "half", dtype="float16")
    packed = zoo.save(model, tmp_path / "packed", dtype="int8")
    sizes = [(place / "model.safetensors").stat().st_size for place in (packed, half)]
    assert 0.48 < sizes[0] / sizes[1] < 0.62
    stored, before, after = tensors(packed), model.state_dict(), load(packed).state_dict()
    assert after.keys() == before.keys() and len(stored) > len(before)
    for key, value in before.items():
        assert after[key].dtype == torch.float32
        if key + ".scale" in stored:
            scale = stored[key + ".scale"].view(-1, *[1] * (value.dim() - 1))
            assert ((after[key] - value).abs() <= scale * 0.5001).all(), key
        else:
            assert torch.equal(after[key], value.half().float()), key
            assert not key.endswith("weight") or value.dim() < 2 or value[0].numel() < 16 or value.numel() < 4096


def test_what_places_tokens_stays_in_float16(tmp_path):
    model = zoo.load("pape-vit-n-imagenette", pretrained=False)
    stored = tensors(zoo.save(model, tmp_path / "model", dtype="int8"))
    position = "encoder.blocks.0.attn.encoding.position"
    assert stored[position].dtype == torch.float16 and position + ".scale" not in stored
    assert stored["encoder.blocks.0.attn.encoding.a.weight"].dtype == torch.int8


def test_other_dtypes_classes_and_channels(folder, model):
    brain = load(folder, dtype="bfloat16")
    assert {value.dtype for value in brain.state_dict().values()} == {torch.bfloat16}
    assert load(folder, num_classes=7, in_chans=1).num_classes == 7
    torch.testing.assert_close(logits(load(folder)), logits(model), rtol=5e-2, atol=2e-2)


def test_a_model_that_is_too_small_is_plain_float16(tmp_path):
    sizes = {"dim": 8, "head_dim": 4, "mlp_dim": 8, "patch_size": 4}
    config = {**TINY_CONFIG, "model": {**TINY_CONFIG["model"], **sizes}}
    made = zoo.save(make_model(config), tmp_path / "small", dtype="int8")
    assert {value.dtype for value in tensors(made).values()} == {torch.float16}
    with safe_open(made / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert "8 bits" not in (made / "README.md").read_text()
    load(made)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("encoder.blocks.0.mlp.fc1.weight", float("nan"), "holds NaN or infinite values"),
        ("head.bias", float("inf"), "holds NaN or infinite values"),
        ("head.bias", 1e6, "exceeds the range of float16"),
    ],
)
def test_what_cannot_be_stored_is_not_saved(model, tmp_path, key, value, message):
    with torch.no_grad():
        model.state_dict()[key].view(-1)[0] = value
    with pytest.raises(zoo.WeightsError, match=f"not saved: {key} {message}"):
        zoo.save(model, tmp_path / "x", dtype="int8")
    assert not list(tmp_path.iterdir())


def test_dtypes_are_named(model, folder, tmp_path):
    with pytest.raises(zoo.ConfigError, match="'int4': expected one of .*float64, int8"):
        zoo.save(model, tmp_path / "x", dtype="int4")
    with pytest.raises(zoo.ConfigError, match="expected one of .*float64$"):
        load(folder, dtype="int8")
    recipe = {"model": "pape-vit-n-in1k", "task": "image-classification"}
    assert recipe_from_dict({**recipe, "weights_dtype": "int8"}).weights_dtype == "int8"
    with pytest.raises(zoo.ConfigError, match="weights_dtype.*float32, float16 or int8"):
        recipe_from_dict({**recipe, "weights_dtype": "int4"})


# ---- files that are refused

FC1 = "encoder.blocks.0.mlp.fc1.weight"


def _set(key, value):
    return lambda state: state.__setitem__(key, value(state[key]) if callable(value) else value)


def _spoil(value):
    def edit(state):
        state[FC1 + ".scale"][1] = value

    return edit


HOSTILE = {
    "no scale": (lambda s: s.pop(FC1 + ".scale"), "is int8 but has no scale"),
    "short scale": (_set(FC1 + ".scale", lambda v: v[:-1].clone()), r"is F32 of shape \[63\], expected F32 of shape"),
    "scale per element": (_set(FC1 + ".scale", lambda v: v[:, None].clone()), "expected F32 of shape"),
    "half scale": (_set(FC1 + ".scale", lambda v: v.half()), "is F16 of shape .* expected F32"),
    "int8 scale": (_set(FC1 + ".scale", lambda v: v.to(torch.int8)), "is I8 of shape|is int8 but no matrix"),
    "NaN": (_spoil(float("nan")), "scales that are not positive numbers"),
    "infinite": (_spoil(float("inf")), "scales that are not positive numbers"),
    "negative": (_spoil(-1e-3), "scales that are not positive numbers"),
    "zero": (_spoil(0.0), "scales that are not positive numbers"),
    "overflow": (_spoil(3e38), "holds NaN or infinite values in torch.float32"),
    "vector": (_set("head.bias", torch.zeros(3, dtype=torch.int8)), "'head.bias' is int8 but no matrix"),
    "scalar": (_set("head.bias", torch.zeros((), dtype=torch.int8)), "'head.bias' is int8 but no matrix"),
    "lone scale": (_set("head.bias.scale", torch.ones(3)), "unexpected: head.bias.scale"),
    "other shape": (
        lambda s: s.update({FC1: torch.zeros(64, 31, dtype=torch.int8)}),
        r"fc1.weight is \(64, 31\), expected \(64, 32\)",
    ),
    "other integers": (_set(FC1, lambda v: v.int()), "dtype 'I32', expected one of .*I8"),
    "no matrix": (lambda s: s.pop(FC1), "missing: .*fc1.weight.*unexpected: .*fc1.weight.scale"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(folder, case):
    edit, message = HOSTILE[case]
    state = tensors(folder)
    assert state[FC1].shape == (64, 32)
    edit(state)
    rewrite(folder, state)
    with pytest.raises(zoo.WeightsError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("pt", "dtype 'I8', expected one of F64, F32, F16, BF16; .*does not state"),
        ("pape-zoo-int8-rows-2", "has the format 'pape-zoo-int8-rows-2', not pape-zoo-int8-rows-1.*upgrade"),
        ("pape-zoo-" + "x" * 5000, "upgrade"),
    ],
)
def test_unstated_and_unknown_forms(folder, form, message):
    rewrite(folder, tensors(folder), form)
    with pytest.raises(zoo.WeightsError, match=message) as caught:
        load(folder)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("metadata", [b"[1]", b'{"format": 1}', b'"pape-zoo-int8-rows-1"', b"null"])
def test_metadata_of_other_types(folder, metadata):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    text = b'{"__metadata__":' + metadata + b"," + json.dumps(header).encode()[1:]
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(zoo.WeightsError, match="dtype 'I8'"):
        load(folder)


def test_a_cut_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(zoo.WeightsError, match="damaged"):
        load(folder)


# ---- cards and the Hub


def test_the_card_says_it_until_saved_otherwise(model, folder):
    text = (folder / "README.md").read_text()
    assert "stored in 8 bits: matrices as int8 with a float32 scale for each row" in text
    assert 'zoo.save(zoo.load("local-dir:FOLDER"), "OUT", dtype="float32")' in text
    zoo.save(model, folder, dtype="float16")
    assert "8 bits" not in (folder / "README.md").read_text()


def test_published_as_it_is_and_loaded_bit_for_bit(hub, tmp_path):  # noqa: F811
    folder = make_folder(TINY_CONFIG, tmp_path / "model")
    zoo.save(load(folder), folder, dtype="int8")
    with pytest.raises(zoo.ConfigError, match="does not say that the weights are stored as int8"):
        zoo.publish(str(folder), "org/tiny", dry_run=True)  # Its card was written by hand.
    note = (zoo.save(load(folder), tmp_path / "other", dtype="int8") / "README.md").read_text()
    said = next(line for line in note.splitlines() if "8 bits" in line)
    (folder / "README.md").write_text((folder / "README.md").read_text() + f"\n{said}\n")
    zoo.publish(str(folder), "org/tiny")
    files = hub.repositories["org/tiny"].files()
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert 'zoo.save(zoo.load("hf-hub:org/tiny"), "OUT", dtype="float32")' in files["README.md"].decode()
    back, here = zoo.load("hf-hub:org/tiny").state_dict(), load(folder).state_dict()
    assert back.keys() == here.keys() and all(torch.equal(back[key], here[key]) for key in here)
