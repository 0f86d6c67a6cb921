"""What works without ultralytics: refusals, who imports it, and the parts of the glue that do not need it."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tomllib

import pytest
import torch
from conftest import ROOT
from saved_models import randomise

import zoo
from modalities.image.detector import build
from modalities.image.model import build as build_classifier
from zoo import interop
from zoo.errors import ConfigError, DataError, MissingDependencyError
from zoo.interop.parts import Backbone, flat, same_names, stem


@pytest.fixture
def detector(tiny_config):
    """A detector with mean and std per channel, three classes and patch 8."""
    tiny_config |= {"task": "detection", "architecture": "vit-det"}
    tiny_config["model"] |= {"pyramid": "simple", "pyramid_dim": 16, "class_width": 12}
    tiny_config["data"] |= {"resize": "letterbox", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    torch.manual_seed(0)
    model = build(tiny_config).eval()
    randomise(model, 0)
    return model


# ---- what is imported


def test_import_of_zoo_leaves_ultralytics_alone():
    code = (
        "import sys, zoo, modalities.image.detector, zoo.interop.parts\n"
        "zoo.to_ultralytics, zoo.from_ultralytics, dir(zoo), [getattr(zoo, name) for name in zoo.__all__]\n"
        "assert 'ultralytics' not in sys.modules and 'zoo.interop.ultralytics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)


def test_one_module_imports_ultralytics():
    found = set()
    for path in [*ROOT.glob("zoo/**/*.py"), *ROOT.glob("modalities/**/*.py"), *ROOT.glob("hub_cards/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "ultralytics" for name in names):
                found.add(str(path.relative_to(ROOT)))
    assert found == {"zoo/interop/ultralytics.py"}


def test_ultralytics_is_in_its_own_extra_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {name for name, items in extras.items() if any("ultralytics" in item for item in items)} == {"interop"}
    assert not any("interop" in item for items in extras.values() for item in items)
    assert not any("ultralytics" in item for item in project["dependencies"])


# ---- without it


def hide(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ultralytics"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "zoo.interop.ultralytics", raising=False)


@pytest.mark.parametrize("use", [zoo.to_ultralytics, zoo.from_ultralytics])
def test_error_without_it_names_command_and_licence(detector, monkeypatch, tmp_path, use):
    hide(monkeypatch)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ultralytics" else real(name, *a))
    before = dict(os.environ)
    source = detector if use is zoo.to_ultralytics else tmp_path / "best.pt"
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[interop\]'.*AGPL-3\.0"):
        use(source)
    assert dict(os.environ) == before


def test_error_with_a_broken_one_says_why(detector, monkeypatch, tmp_path):
    hide(monkeypatch)
    (tmp_path / "ultralytics").mkdir()
    (tmp_path / "ultralytics" / "__init__.py").write_text("import no_such_module_of_cv2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    with pytest.raises(MissingDependencyError, match=r"no_such_module_of_cv2.*pape-zoo\[interop\].*AGPL"):
        zoo.to_ultralytics(detector)


def test_other_models_are_refused_before_anything_is_imported(tiny_config, monkeypatch):
    hide(monkeypatch)
    for other in (build_classifier(tiny_config), torch.nn.Linear(2, 2), None, 3):
        with pytest.raises(ConfigError, match="image detector"):
            zoo.to_ultralytics(other)
    for other in (torch.nn.Linear(2, 2), None):
        with pytest.raises(ConfigError, match="to_ultralytics"):
            zoo.from_ultralytics(other)
    assert "ultralytics" not in sys.modules


# ---- settings


def test_settings_go_to_a_temporary_folder_with_a_font(monkeypatch, tmp_path):
    monkeypatch.delenv("YOLO_CONFIG_DIR", raising=False)
    monkeypatch.delenv("YOLO_OFFLINE", raising=False)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    interop._keep_quiet()
    assert os.environ.pop("YOLO_OFFLINE") == "true" and os.environ.pop("YOLO_CONFIG_DIR") == str(tmp_path)
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "Ultralytics" / "Arial.ttf").stat().st_size > 10_000


def test_settings_of_the_user_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_OFFLINE", "false")
    interop._keep_quiet()
    assert os.environ["YOLO_CONFIG_DIR"] == str(tmp_path) and os.environ["YOLO_OFFLINE"] == "false"
    assert not list(tmp_path.iterdir())


# ---- parts


def test_backbone_takes_pictures_from_0_to_1(detector):
    pictures = torch.rand(2, 3, 32, 48)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    backbone = Backbone(detector)
    assert torch.equal(backbone(pictures), detector.forward_features((pictures - mean) / std))
    assert not torch.equal(backbone(pictures), detector.forward_features(pictures))
    assert {name.split(".")[0] for name in backbone.state_dict()} == {"embed", "encoder"}
    with pytest.raises(DataError, match="3 channels"):
        backbone(torch.rand(1, 1, 32, 32))


def test_flat_keeps_cells_in_order():
    maps = [torch.rand(2, 67, 4, 6), torch.rand(2, 67, 2, 3)]
    raw = flat(maps)
    assert raw["boxes"].shape == (2, 64, 30) and raw["scores"].shape == (2, 3, 30) and raw["feats"] == maps
    assert torch.equal(raw["boxes"][1, :, 7], maps[0][1, :64, 1, 1])
    assert torch.equal(raw["scores"][0, :, 24 + 4], maps[1][0, 64:, 1, 1])


def test_classes_meet_by_name():
    assert same_names({0: "Cat", 1: "dog ", 2: "2"}, {0: "dog", 1: "bird", 2: "2", 3: "cat"}) == [(0, 1), (3, 0)]
    assert same_names({0: "0"}, {0: "0"}) == []
    assert stem({"name": "org/model"}) == "org-model" and stem({}) == "pape-zoo"


@pytest.mark.filterwarnings("ignore")
def test_detector_can_be_traced(detector):
    class Detecting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.detector = detector

        def forward(self, pictures):
            return self.detector.detect(pictures)

    traced = torch.jit.trace(Detecting().eval(), torch.rand(1, 3, 32, 48), check_trace=False)
    pictures = torch.rand(1, 3, 32, 48)
    torch.testing.assert_close(traced(pictures), detector.detect(pictures))
