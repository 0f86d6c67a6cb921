"""Names, filters and messages, and contracts over the whole registry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from saved_models import randomise

import zoo
from modalities.image.presets import IMAGENETTE_ENCODINGS
from zoo import registry

ENCODINGS = ("pape", "pape-ri", "rope", "alibi", "sincos", "none")
NAMES = zoo.list_models()
CLASSIFIERS = zoo.list_models(task="classification", modality="image")
SMALL = [name for name in CLASSIFIERS if "-vit-n-" in name or "-vit-t-" in name]


def test_registered_names():
    expected = {f"{e}-vit-{s}-in1k" for e in ENCODINGS for s in "ntsb"}
    expected |= {"pape-vit-n-imagenette"} | {f"{e}-vit-t-imagenette" for e in IMAGENETTE_ENCODINGS}
    expected |= {f"{e}-vit-det-{s}-coco" for e in ENCODINGS for s in "ntsb"}
    expected |= {f"{e}-event-vit-{s}-dvsgesture" for e in ENCODINGS for s in "ntsb"}
    expected |= {f"{e}-event-det-{s}-gen1" for e in ENCODINGS for s in "ntsb"}
    for encoding in ("pape", "rope", "none"):
        expected |= {f"{encoding}-event-vit-n-nmnist1100", f"{encoding}-event-det-n-nmnist-canvas"}
    expected |= {f"{e}-vit-det-{s}-bccd" for e in ENCODINGS for s in "nt"}
    for sizes, data in (("nt", "modelnet10"), ("nt", "als3"), ("b", "modelnet40"), ("b", "scannet")):
        expected |= {f"{e}-ptv3-{s}-{data}" for e in ("pape", "rope", "none", "alibi", "sincos-pape") for s in sizes}
    expected |= {f"{e}-point-vit-{s}-modelnet10" for e in ("pape", "pape-ri", "rope", "none") for s in "nt"}
    expected |= {f"pape-point-vit-{s}-modelnet10-invariant" for s in "nt"}
    expected |= {f"{e}-video-vit-{s}-ucf101" for e in ENCODINGS for s in "ntsb"}
    expected |= {f"{e}-video-vit-{s}-imagenette-motion" for e in ("pape", "rope", "none", "alibi") for s in "nt"}
    for encoding in ("pape", "rope", "none"):
        expected |= {f"{encoding}-fusion-{s}-nuscenes" for s in "ntb"}
        expected |= {f"{encoding}-fusion-{s}-simdrive" for s in "nt"}
        expected |= {f"{encoding}-fusion-n-simdrive-{sensor}" for sensor in ("camera", "lidar")}
    for encoding in ("pape", "rope", "pope", "alibi", "none"):
        expected |= {f"{encoding}-decoder-{s}-{data}" for s in "nt" for data in ("index", "jsb", "shakespeare", "hg38")}
    expected |= {f"learned-decoder-{s}-index" for s in "nt"}
    for size, data in (("124m", "owt"), ("253m", "owt"), ("774m", "owt"), ("s", "maestro"), ("s", "genome")):
        expected |= {f"{e}-decoder-{size}-{data}" for e in ("pape", "rope", "pope")}
    expected |= {f"{e}-decoder-s-index-paper" for e in ("pape", "rope", "pope", "alibi", "none", "learned")}
    assert set(NAMES) == expected
    assert sorted(NAMES) == NAMES


def test_filters():
    assert zoo.list_models("pape-vit-?-in1k") == [f"pape-vit-{s}-in1k" for s in "bnst"]
    ours = [f"pape-ri-vit-{s}-in1k" for s in "bnst"] + ["pape-ri-vit-t-imagenette"]
    ours += [f"pape-ri-vit-det-{s}-coco" for s in "bnst"]
    ours += [
        f"pape-ri-event-{kind}-{s}-{data}" for kind, data in (("vit", "dvsgesture"), ("det", "gen1")) for s in "bnst"
    ]
    ours += [f"pape-ri-vit-det-{s}-bccd" for s in "nt"] + [f"pape-ri-video-vit-{s}-ucf101" for s in "bnst"]
    ours += [f"pape-ri-point-vit-{s}-modelnet10" for s in "nt"]
    assert zoo.list_models(encoding="pape-ri") == sorted(ours)
    embedded = ["pape-event-det-n-nmnist-canvas", "pape-event-vit-n-nmnist1100", "pape-vit-det-n-bccd"]
    embedded += ["pape-vit-n-imagenette", "pape-vit-t-imagenette", "pape-fusion-n-simdrive"]
    embedded += ["pape-point-vit-n-modelnet10", "pape-ptv3-n-als3", "pape-video-vit-n-imagenette-motion"]
    embedded += ["pope-decoder-t-jsb"]
    assert zoo.list_models(weights="embedded") == sorted(embedded)
    released = ["pape-event-det-b-gen1", "pape-event-vit-b-dvsgesture", "pape-video-vit-b-ucf101"]
    released += ["pape-vit-b-in1k", "pape-vit-det-b-coco"]
    assert zoo.list_models(weights="release") == released
    assert zoo.list_models(weights="any") == sorted([*released, *embedded])
    assert zoo.list_models(weights="hub") == zoo.list_models("nothing*") == zoo.list_models(modality="sound") == []
    events, points = zoo.list_models(modality="events"), zoo.list_models(modality="points")
    videos, driving = zoo.list_models(modality="video"), zoo.list_models(modality="driving")
    assert driving == zoo.list_models("*-fusion-*") == zoo.list_models(task="detection", modality="driving")
    assert events == zoo.list_models("*-event-*") and videos == zoo.list_models("*-video-vit-*")
    sequences = zoo.list_models(modality="sequence")
    assert sequences == zoo.list_models("*-decoder-*") == zoo.list_models(task="generation")
    images = {*NAMES} - {*events, *points, *videos, *driving, *sequences}
    assert zoo.list_models(modality="image") == sorted(images)
    assert zoo.list_models(task="segmentation") == sorted([*zoo.list_models("*-als3"), *zoo.list_models("*-scannet")])
    assert len(zoo.list_models(encoding="sincos+pape")) == 6
    assert zoo.list_models(task="detection", modality="image") == zoo.list_models("*-vit-det-*")
    assert zoo.list_models(task="detection", modality="events") == zoo.list_models("*-event-det-*")
    with pytest.raises(zoo.ConfigError, match="embedded, hub, release, none or any"):
        zoo.list_models(weights="yes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pape-vit-t-imagenete", "did you mean pape-vit-t-imagenette"),
        ("PAPE-VIT-B-IN1K", "did you mean pape-vit-b-in1k"),
        ("qqqqqq", "zoo list"),
        ("", "zoo list"),
        ("./runs/best", "local-dir:./runs/best"),
        ("~/models/x", "local-dir:~/models/x"),
        ("/srv/models/x", "local-dir:/srv/models/x"),
        ("a/b/c", "local-dir:a/b/c"),
        ("someone/pape", "hf-hub:someone/pape"),
        ("someone/pape@v1", "hf-hub:someone/pape@v1"),
        (Path("runs"), "local-dir:runs"),
        (7, "string, got int"),
        ("x" * 5000, "no model is called"),
        ("a\0b", "no model is called"),
    ],
)
def test_unknown_names_say_what_to_write(name, message):
    with pytest.raises(zoo.UnknownModelError) as caught:
        zoo.load(name)
    assert message in str(caught.value)
    assert isinstance(caught.value, LookupError)
    assert len(str(caught.value)) < 500


def test_bare_existing_folder_names_the_prefix(tmp_path, monkeypatch):
    (tmp_path / "mymodel").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(zoo.UnknownModelError, match="local-dir:mymodel"):
        zoo.load("mymodel")


def test_configurations_are_copies():
    config = registry.entry("pape-vit-n-in1k").new_config()
    config["model"]["dim"] = 1
    config["data"]["mean"].append(1.0)
    fresh = registry.entry("pape-vit-n-in1k").new_config()
    assert fresh["model"]["dim"] == 128
    assert len(fresh["data"]["mean"]) == 3


def test_released_sizes():
    sizes = {s: registry.entry(f"pape-vit-{s}-in1k").config["model"] for s in "ntsb"}
    keys = ("dim", "depth", "num_heads", "head_dim", "mlp_dim")
    assert {s: tuple(m[k] for k in keys) for s, m in sizes.items()} == {
        "n": (128, 4, 4, 32, 256),
        "t": (256, 7, 4, 64, 512),
        "s": (512, 10, 8, 64, 2048),
        "b": (768, 12, 12, 64, 3072),
    }
    released = registry.entry("pape-vit-b-in1k").config
    assert (released["model"]["coordinate_origin"], released["model"]["class_token_position"]) == (1, "origin")
    assert (released["data"]["mean"], released["data"]["crop_fraction"]) == ([0.0] * 3, 0.875)
    ours = registry.entry("rope-vit-b-in1k").config["model"]
    assert (ours["coordinate_origin"], ours["class_token_position"]) == (0, None)


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_without_torch_is_exact(name):
    entry = registry.entry(name)
    with torch.device("meta"):
        model = registry.architecture(entry.config).build(entry.new_config())
    assert sum(parameter.numel() for parameter in model.parameters()) == entry.parameters


@pytest.mark.parametrize("encoding", ["sincos+pape", "sincos+pape-ri"])
def test_parameter_count_of_combined_encodings(encoding):
    config = registry.entry("pape-vit-n-in1k").new_config()
    config["model"] |= {
        "encoding": encoding,
        "encoding_options": {"pape": {"parabolas": 7}} if "ri" not in encoding else {},
    }
    architecture = registry.architecture(config)
    with torch.device("meta"):
        model = architecture.build(config)
    assert sum(p.numel() for p in model.parameters()) == architecture.count_parameters(config["model"])


@pytest.mark.parametrize("name", SMALL)
def test_every_small_entry_builds_and_runs(name):
    model = zoo.load(name, pretrained=False, in_chans=3)
    patch = model.patch_size
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 2 * patch, 3 * patch))
    assert logits.shape == (1, registry.entry(name).config["model"]["num_classes"])
    assert not model.training
    assert model.load_report.source == "random"
    assert model.data_config.to_dict() == registry.entry(name).config["data"]
    assert model.config == registry.entry(name).config


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_two_overrides_survive_saving(encoding, tmp_path):
    model = zoo.load(f"{encoding}-vit-n-in1k", pretrained=False, drop_path=0.2, size_policy="pad", num_classes=11)
    randomise(model)
    zoo.save(model, tmp_path / "model")
    again = zoo.load(f"local-dir:{tmp_path / 'model'}")
    images = torch.rand(2, 3, 40, 50)
    with torch.no_grad():
        expected = model(images)
        assert expected.std() > 1e-3
        assert torch.equal(again(images), expected)
    assert again.config == model.config
    assert (again.config["model"]["drop_path"], again.config["model"]["size_policy"]) == (0.2, "pad")
    assert again.load_report.adapted == ()


@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        ("pape-linear", {"parabolas": 3}),
        ("pape-quadratic", {}),
        ("pape-signed", {"parabolas": 9}),
        ("pape-static", {}),
        ("pape-unprojected", {}),
        ("pope", {"channels": 7}),
        ("table", {"extent": [3, 5]}),
        ("cpb", {"hidden": 33}),
        ("learned", {"grid": [4, 7]}),
        ("learned+string", {"learned": {"grid": 3}}),
        ("liere", {"block_size": 4}),
        ("comrope-ld", {"block_size": 16}),
        ("mrope", {}),
        ("prope", {}),
    ],
)
def test_parameter_count_follows_the_options(encoding, options):
    config = registry.entry("pape-vit-n-in1k").new_config()
    config["model"] |= {"encoding": encoding, "encoding_options": options}
    architecture = registry.architecture(config)
    with torch.device("meta"):
        model = architecture.build(config)
    assert sum(p.numel() for p in model.parameters()) == architecture.count_parameters(config["model"])


def test_registry_imports_no_torch():
    code = (
        "import sys, zoo; zoo.list_models('pape*'); zoo.card('pape-vit-t-imagenette');"
        "from zoo.registry import entry; entry('pape-vit-b-in1k').parameters;"
        "print(sorted({'torch', 'torchvision', 'timm', 'huggingface_hub', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
