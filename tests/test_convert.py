"""Official checkpoints: parity with the recorded logits, the key map, installing, and hostile files."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo import registry
from zoo.convert import convert_config, convert_state

POSITIONAL = {
    "pape": "pape",
    "pape_ri": "pape-ri",
    "rope": "rope",
    "rope_mixed": "rope-mixed",
    "alibi": "alibi",
    "lookhere": "lookhere",
    "absolute": "sincos",
    "nope": "none",
}


def official_config(positional="pape", size="nano", **overrides):
    """An official configuration of the smallest size, overridden to a few thousand parameters."""
    sizes = {"_hidden_size": 16, "_num_layers": 2, "_num_heads": 2, "_head_size": 8, "_intermediate_size": 24}
    if positional == "lookhere":
        sizes["_num_heads"] = 12
    return {
        "dataset": "imagenet",
        "positional": positional,
        "patch_size": 16,
        "normalize": False,
        "model": {"size": size, "drop_path": 0.1, **sizes, **overrides},
        "pape": {"parabolas": 5},
        "rope": {"base": 10000.0},
        "rope_mixed": {"base": 100.0},
        "absolute": {"base": 10000.0},
    }


def official_state(config, seed=0):
    """A random official state dict; position tensors as the official code lays them out."""
    model = config["model"]
    dim, heads, width = model["_hidden_size"], model["_num_heads"], model["_num_heads"] * model["_head_size"]
    mlp, m = model["_intermediate_size"], config["pape"]["parabolas"]
    shapes = {
        "cls": (1, 1, dim),
        "embedding.weight": (dim, 3, config["patch_size"], config["patch_size"]),
        "embedding.bias": (dim,),
        "classifier.weight": (1000, dim),
        "classifier.bias": (1000,),
    }
    norms = ["encoder.norm_pre", "encoder.norm_post"]
    for i in range(model["_num_layers"]):
        layer = f"encoder.layers.{i}"
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
        linear = {"attention.qkv_proj": (3 * width, dim), "attention.out_proj": (dim, width)}
        linear |= {"ffn.fc1": (mlp, dim), "ffn.fc2": (dim, mlp)}
        for key, shape in linear.items():
            shapes |= {f"{layer}.{key}.weight": shape, f"{layer}.{key}.bias": shape[:1]}
        position = f"{layer}.attention.position_encoder"
        if config["positional"] == "pape":
            shapes |= {f"{position}.position.weight": (heads * m, 2), f"{position}.ab.weight": (2 * heads * m, dim)}
        if config["positional"] == "pape_ri":
            shapes |= {f"{position}.position_scales": (1, heads, 1, 1), f"{position}.a.weight": (heads, dim)}
        if config["positional"] == "rope_mixed":
            shapes[f"{position}.frequencies"] = (heads, 2, model["_head_size"] // 2)
    shapes |= {f"{norm}.{part}": (dim,) for norm in norms for part in ("weight", "bias")}
    generator = torch.Generator().manual_seed(seed)
    return {key: 0.3 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}


@pytest.fixture
def checkpoint(tmp_path):
    """Writes an official checkpoint and gives its folder."""

    def write(config=None, state=None):
        config = config or official_config()
        folder = tmp_path / "official"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        torch.save(official_state(config) if state is None else state, folder / "model.pt")
        return folder

    return write


@pytest.mark.parametrize("positional", POSITIONAL)
def test_parity_with_the_official_network(shared, tmp_path, positional):
    source = shared / "parity" / f"imagenet-{positional}"
    if not source.is_dir():
        pytest.skip(f"no reference outputs at {source}")
    zoo.convert(source, tmp_path / "ours")
    model = zoo.load(f"local-dir:{tmp_path / 'ours'}")
    b, c, y, x = torch.meshgrid(*(torch.arange(float(n)) for n in (2, 3, 224, 224)), indexing="ij")
    with torch.no_grad():
        logits = model(0.5 + 0.5 * torch.sin(0.031 * (c + 1) * x + 0.017 * y + 0.7 * b))
    expected = load_file(source / "expected.safetensors")["logits"]
    assert expected.std() > 0.01
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
    assert model.config["model"]["encoding"] == POSITIONAL[positional]
    assert (model.data_config.mean, model.data_config.crop_fraction) == ((0.0, 0.0, 0.0), 0.875)


@pytest.mark.parametrize("positional", POSITIONAL)
def test_every_tensor_is_accounted_for(checkpoint, tmp_path, positional):
    config = official_config(positional)
    state = official_state(config)
    zoo.convert(checkpoint(config, state), tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert sum(value.numel() for value in ours.values()) == sum(value.numel() for value in state.values())
    assert not any(value.dtype != torch.float32 for value in ours.values())
    assert zoo.load(f"local-dir:{tmp_path / 'ours'}")(torch.rand(1, 3, 32, 48)).shape == (1, 1000)
    assert "schema_version" in (tmp_path / "ours" / "config.json").read_text()


def test_layout_of_the_position_tensors():
    config = convert_config(official_config())
    state = official_state(official_config())
    ours = convert_state(state, config)
    ab = state["encoder.layers.1.attention.position_encoder.ab.weight"].reshape(2, 2 * 5, 16)
    assert torch.equal(ours["encoder.blocks.1.attn.encoding.a.weight"], ab[0])
    assert torch.equal(ours["encoder.blocks.1.attn.encoding.b.weight"], ab[1])
    position = state["encoder.layers.1.attention.position_encoder.position.weight"].reshape(2, 5, 2)
    assert torch.equal(ours["encoder.blocks.1.attn.encoding.position"], position)


def test_scales_of_pape_ri_count_by_their_square():
    official = official_config("pape_ri")
    state = official_state(official)
    key = "encoder.layers.0.attention.position_encoder.position_scales"
    state[key] = torch.tensor([-0.25, 0.0]).reshape(1, 2, 1, 1)
    log_scale = convert_state(state, convert_config(official))["encoder.blocks.0.attn.encoding.log_scale"]
    assert torch.isfinite(log_scale).all()
    torch.testing.assert_close((2 * log_scale).exp().float(), torch.tensor([0.0625, 0.0]), rtol=1e-6, atol=1e-30)


def test_conventions_of_the_released_lookhere_are_in_the_configuration():
    model = convert_config(official_config("lookhere"))["model"]
    assert model["encoding_options"] == {
        "view": 90,
        "global_slope": 2.0,
        "layer_slopes": [1.5, 1.5],
        "round_bias": "bfloat16",
    }
    assert (model["coordinate_origin"], model["class_token_position"]) == (1, None)


def test_periods_of_rope_mixed_become_frequencies():
    official = official_config("rope_mixed")
    state = official_state(official)
    key = "encoder.layers.1.attention.position_encoder.frequencies"
    state[key] = torch.linspace(0.5, 100.0, 16).reshape(2, 2, 4)
    config = convert_config(official)
    frequencies = convert_state(state, config)["encoder.blocks.1.attn.encoding.frequencies"]
    torch.testing.assert_close(frequencies, 1 / state[key].double(), rtol=1e-15, atol=0)
    assert config["model"]["encoding_options"] == {"base": 100.0}


def lightning(prefix):
    """What Lightning saves, apart from the parts that only it can read."""
    state = {prefix + key: value for key, value in official_state(official_config()).items()}
    return {"epoch": 3, "state_dict": state, "optimizer_states": [{"step": torch.ones(1)}], "loops": {"a": [1]}}


@pytest.mark.parametrize(
    ("wrapped", "message"),
    [
        (lightning("model."), "took the 'state_dict' of a Lightning checkpoint, keys without their prefix 'model.'"),
        (lightning("module.")["state_dict"], "took keys without their prefix 'module.'$"),
        (lightning("_orig_mod.")["state_dict"], "prefix '_orig_mod.'$"),
        (lightning("module._orig_mod.model.classifier."), "'module.'.*'_orig_mod.'.*'model.'.*'classifier.'$"),
    ],
)
def test_wrappers_are_taken_off_and_reported(checkpoint, tmp_path, wrapped, message):
    with pytest.warns(UserWarning, match=message) as caught:
        zoo.convert(checkpoint(state=wrapped), tmp_path / "ours")
    assert len(caught) == 1 and "model.pt" in str(caught[0].message)
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert torch.equal(ours["cls_token"], official_state(official_config())["cls"])


def test_a_prefix_that_only_some_keys_have_is_unexpected(checkpoint, tmp_path):
    state = official_state(official_config())
    state["module.cls"] = state.pop("cls")
    with pytest.raises(zoo.WeightsError, match=r"unexpected tensor 'module\.cls'"):
        zoo.convert(checkpoint(state=state), tmp_path / "ours")
    for inner in (torch.zeros(3), {}, None):
        with pytest.raises(zoo.WeightsError, match="'state_dict' holds a"):
            zoo.convert(checkpoint(state={"state_dict": inner}), tmp_path / "ours")


def test_sizes_come_from_the_name_unless_overridden():
    config = convert_config(official_config(size="small", _hidden_size=-1, _num_layers=3, _num_heads=-1, _head_size=-1))
    model = config["model"]
    assert [model[key] for key in ("dim", "depth", "num_heads", "head_dim", "mlp_dim")] == [512, 3, 8, 64, 24]
    every = dict.fromkeys(("_hidden_size", "_num_layers", "_num_heads", "_head_size", "_intermediate_size"), -1)
    official = official_config(size="base", **every)
    official["pape"]["parabolas"] = 50
    assert convert_config(official) == registry.entry("pape-vit-b-in1k").config
    assert convert_config(official)["name"] == "pape-vit-b-in1k"
    bare = official_config(size="tiny")
    bare["model"] = {"size": "tiny"}
    assert convert_config(bare)["name"] == "pape-vit-t-in1k"


def test_install_refuses_another_model_and_writes_nothing(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    folder = checkpoint()
    with pytest.raises(zoo.ConfigError, match="not pape-vit-b-in1k.*dim is 16, expected 768.*parabolas"):
        zoo.convert(folder, tmp_path / "ours", install=True)
    folder = checkpoint(official_config("rope"))
    with pytest.raises(zoo.ConfigError, match="encoding is rope, expected pape"):
        zoo.convert(folder, tmp_path / "ours", install=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["official"]


def test_installed_weights_load_by_name(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    official = official_config()
    name = "pape-vit-small-enough-in1k"
    config = {**convert_config(official), "name": name}
    monkeypatch.setitem(registry._entries(), name, registry.Entry(name, config, weights="release"))
    monkeypatch.delitem(registry._entries(), "pape-vit-b-in1k")  # It is the first released one otherwise.
    monkeypatch.setattr("zoo.convert.convert_config", lambda *arguments: config)
    with pytest.raises(zoo.WeightsError, match="not installed"):
        zoo.load(name)
    zoo.convert(checkpoint(official), tmp_path / "ours", install=True)
    loaded = zoo.load(name)
    assert loaded.load_report.source == str(tmp_path / "cache" / "release" / name)
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(loaded(images), zoo.load(f"local-dir:{tmp_path / 'ours'}")(images))
    assert zoo.load(name, num_classes=4, cache_dir=tmp_path / "cache").load_report.adapted
    other = {**config, "model": {**config["model"], "coordinate_origin": 0}}
    monkeypatch.setitem(registry._entries(), name, registry.Entry(name, other, weights="release"))
    with pytest.raises(zoo.WeightsError, match="another model"):
        zoo.load(name)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"dataset": "kinetics"}, "dataset 'kinetics' is not supported"),
        ({"dataset": "coco"}, "lacks detection.reg_max"),
        ({"positional": "lookhere"}, "lookhere with 2 heads is not supported"),
        ({"positional": "spiral"}, "'spiral' is not supported"),
        ({"positional": "rope_mixed", "rope_mixed": {}}, "lacks rope_mixed.base"),
        ({"positional": ["pape"]}, "positional has an unusable value"),
        ({"normalize": True}, "normalize"),
        ({"patch_size": "16"}, "patch_size"),
        ({"patch_size": -16}, "patch_size"),
        ({"model": {"size": "enormous"}}, "enormous"),
        ({"model": {"size": "base", "_num_layers": 10**9}}, "depth"),
        ({"model": {"size": "base", "_hidden_size": 0}}, "dim"),
        ({"model": {"size": "base", "_hidden_size": 1e3}}, "_hidden_size"),
        ({"model": None}, "lacks model.size"),
        ({"pape": {"parabolas": 10**9}}, "parabolas"),
        ({"pape": {}}, "lacks pape.parabolas"),
        ({"schema_version": 1}, "already"),
    ],
)
def test_unsupported_and_hostile_configurations(checkpoint, tmp_path, edit, message):
    state = official_state(official_config())
    folder = checkpoint({**official_config(), **edit}, state)
    with pytest.raises(zoo.ConfigError, match=message):
        zoo.convert(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.pop("cls"), "missing: cls_token"),
        (lambda s: s.update(extra=torch.zeros(1)), "unexpected tensor 'extra'"),
        (lambda s: s.update({"encoder.layers.7.norm1.bias": torch.zeros(16)}), "unexpected: encoder.blocks.7"),
        (lambda s: s.update(cls=torch.zeros(1, 1, 17)), "cls_token is"),
        (lambda s: s.update(cls=torch.zeros(1).expand(10**12)), "cls_token is"),
        (lambda s: s.update(cls=torch.full((1, 1, 16), float("nan"))), "cls_token holds NaN"),
        (lambda s: s.update(cls=torch.zeros(1, 1, 16, dtype=torch.int64)), "floating-point"),
        (lambda s: s.update(cls="text"), "floating-point"),
        (lambda s: s.update(cls=s["cls"].to_sparse()), "sparse"),
        (lambda s: s.update(cls=s["cls"].to("meta")), "without data"),
        (
            lambda s: s.update({"encoder.layers.0.attention.position_encoder.ab.weight": torch.zeros(3, 16)}),
            "impossible shape",
        ),
        (lambda s: s.clear(), "expected a state dict"),
    ],
)
def test_state_dicts_that_do_not_fit(checkpoint, tmp_path, edit, message):
    state = official_state(official_config())
    edit(state)
    with pytest.raises(zoo.WeightsError, match=message):
        zoo.convert(checkpoint(state=state), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_a_hostile_pickle_is_refused(checkpoint, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    folder = checkpoint(state={"cls": Evil()})
    if form == "pickle":
        (folder / "model.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(zoo.WeightsError, match="may run code|not a readable"):
        zoo.convert(folder, tmp_path / "ours")
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "ours").exists()


def test_compressed_archives_are_refused(checkpoint, tmp_path):
    folder = checkpoint()
    with zipfile.ZipFile(folder / "model.pt") as archive:
        entries = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(folder / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(zoo.WeightsError, match="compressed"):
        zoo.convert(folder, tmp_path / "ours")


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04 and then nothing"])
def test_damaged_checkpoints(checkpoint, tmp_path, data):
    folder = checkpoint()
    (folder / "model.pt").write_bytes(data)
    with pytest.raises(zoo.WeightsError, match="not a readable torch checkpoint|may run code"):
        zoo.convert(folder, tmp_path / "ours")


def test_truncated_checkpoint(checkpoint, tmp_path):
    folder = checkpoint()
    data = (folder / "model.pt").read_bytes()
    (folder / "model.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(zoo.WeightsError, match="not a readable torch checkpoint"):
        zoo.convert(folder, tmp_path / "ours")


def test_absent_sources(tmp_path):
    with pytest.raises(zoo.WeightsError, match="no folder"):
        zoo.convert(tmp_path / "none", tmp_path / "ours")
    with pytest.raises(zoo.WeightsError, match="config.json"):
        zoo.convert(tmp_path, tmp_path / "ours")
    (tmp_path / "config.json").write_text(json.dumps(official_config()))
    with pytest.raises(zoo.WeightsError, match="model.pt"):
        zoo.convert(tmp_path, tmp_path / "ours")


def test_the_official_folder_itself_is_not_overwritten(checkpoint):
    folder = checkpoint()
    with pytest.raises(zoo.ConfigError, match="did not write"):
        zoo.convert(folder, folder)


def test_older_pickle_format_is_read(checkpoint, tmp_path):
    folder = checkpoint()
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save(state, folder / "model.pt", _use_new_zipfile_serialization=False)
    zoo.convert(folder, tmp_path / "ours")
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")["cls_token"], state["cls"])
