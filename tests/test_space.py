"""The Gradio Space: what is pushed to the Hub is complete, and its functions do what the page shows."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from pictures import encode

import zoo
from zoo.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
SPACE = ROOT / "spaces" / "gradio"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def module(path: Path) -> Any:
    name = f"space_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path[:] = before
    return made


@pytest.fixture(scope="module")
def app():
    return module(SPACE / "app.py")


@pytest.fixture(scope="module")
def builder():
    return module(ROOT / "spaces" / "build.py")


@pytest.fixture
def church(tmp_path):
    return str(ROOT / "samples" / "church.jpg")


def requirements(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_front_matter_is_that_of_a_space():
    _, front, text = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["sdk"] == "gradio" and (SPACE / facts["app_file"]).is_file() and facts["title"]
    assert Requirement(PROJECT["optional-dependencies"]["space"][0]).specifier.contains(facts["sdk_version"])
    assert PROJECT["requires-python"] == ">=3.11" and facts["python_version"] >= "3.11"
    assert facts["license"] == "other" and "non-commercial" in text and len(facts["short_description"]) <= 60


def test_requirements_are_those_of_the_package():
    assert requirements(SPACE / "requirements.txt") == PROJECT["dependencies"]


def test_classes_and_boxes(app, church):
    assert app.FIRST == "pape-vit-t-imagenette" and len(app.NAMES) == 3
    scores, drawn, text = app.shown(app.predict(app.FIRST, church, 112.0), church)
    assert max(scores, key=scores.get) == "church" and drawn is None and text.startswith("112 px in ")
    cells = app.example()
    answer = app.predict("pape-vit-det-n-bccd", cells, 320)
    scores, drawn, text = app.shown(answer, cells)
    assert scores == {} and drawn.size == (640, 480) and f"{len(answer['boxes'])} found" in text
    assert np.abs(np.asarray(drawn, int) - np.asarray(app.read(cells, kind="image").to_pil(), int)).max() > 50


def test_the_patch_below_a_click(app, tmp_path):
    (tmp_path / "wide.png").write_bytes(encode("PNG", np.zeros((100, 200, 3), np.uint8)))
    answer = app.predict("pape-vit-n-imagenette", str(tmp_path / "wide.png"), 112)
    # The middle square is seen, as 14 x 14 patches.
    assert app.patch_at(answer, 50, 0) == (0, 0) and app.patch_at(answer, 149.9, 99.9) == (13, 13)
    assert app.patch_at(answer, 100, 99) == (13, 7)
    assert app.patch_at(answer, 49.9, 50) is None and app.patch_at(answer, 150.1, 50) is None


def test_bias_is_drawn_head_by_head(app, church):
    name = "pape-vit-n-imagenette"
    sheet = np.asarray(app.bias(name, church, 112, 2, (3, 9)))
    found = app.PREDICTOR.bias(name, Path(church).read_bytes(), size=112, row=3, col=9, layer=1)
    heads = np.array(found["heads"])
    assert sheet.shape == (232, 212 * len(heads), 3)
    for number, head in enumerate(heads):
        row, column = np.unravel_index(head.argmax(), head.shape)
        middle = [int((place + 0.5) * 200 / 14) for place in (row, column)]
        assert sheet[22 + middle[0], 212 * number + 6 + middle[1]].tolist() == [255, 233, 69]
        row, column = np.unravel_index(head.argmin(), head.shape)
        middle = [int((place + 0.5) * 200 / 14) for place in (row, column)]
        assert head.min() - head.max() > -8 or sheet[22 + middle[0], 212 * number + 6 + middle[1]].tolist() == [
            0,
            32,
            76,
        ]
    assert app.layers_of(name) == found["layers"] == 4


def test_what_is_wrong_is_told(app, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(zoo.DataError, match="picture"):
        app.predict(app.FIRST, str(tmp_path / "a.png"), 112)


def test_the_page(app):
    pytest.importorskip("gradio", reason="the page needs pip install 'pape-zoo[space]'")
    page = app.build()
    labels = {block.label for block in page.blocks.values() if getattr(block, "label", None)}
    assert {"Model", "Picture", "Longer side in pixels", "Layer of the bias", "Classes", "Boxes"} <= labels


def test_a_built_space_is_complete(builder, tmp_path, church):
    space = builder.build(tmp_path / "space", ["pape-vit-n-imagenette"])
    weights = [path.parent.name for path in space.rglob("*.safetensors")]
    assert weights == ["pape-vit-n-imagenette"] and not list(space.rglob("__pycache__"))
    assert {"README.md", "app.py", "requirements.txt", "LICENSE", ".gitattributes"} <= {p.name for p in space.iterdir()}
    code = (
        "import app, zoo; answer = app.predict(app.FIRST, app.sys.argv[1], 112);"
        "print(app.NAMES, answer['classes'][0]['label'], zoo.__file__)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, church], cwd=space, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["['pape-vit-n-imagenette']", "church", str(space / "zoo" / "__init__.py")]


def test_spaces_that_cannot_be_built(builder, tmp_path, capsys):
    with pytest.raises(ConfigError, match="no image model with weights"):
        builder.build(tmp_path / "a", ["pape-ptv3-n-als3"])
    with pytest.raises(ConfigError, match="a model at least"):
        builder.build(tmp_path / "a", [])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(SystemExit, match="exists already"):
        builder.main([str(tmp_path / "full")])
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]
