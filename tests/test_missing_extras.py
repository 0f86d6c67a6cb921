"""Each entry point that needs an extra says at once which one to install."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from detection_toys import tiny_settings, write_toys
from event_models import classifier

import zoo
from zoo.cli.main import main
from zoo.errors import require


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def said_without(module: str, extra: str, arguments: list[object], monkeypatch, capsys) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and len(lines) == 1, lines
    assert module in lines[0] and f"pip install 'pape-zoo[{extra}]'" in lines[0]


@pytest.mark.parametrize(("module", "extra"), [("faster_coco_eval", "detection"), ("accelerate", "train")])
def test_training_a_detector(module, extra, tmp_path, monkeypatch, capsys):
    import yaml

    data, run = write_toys(tmp_path / "toys"), tmp_path / "run"
    settings = tiny_settings(data, run, dev_split="validation", eval_every=1_000, epochs=1_000)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    said_without(module, extra, ["train", tmp_path / "recipe.yaml", "--quiet"], monkeypatch, capsys)
    assert not run.exists()  # Not a step was done.


@pytest.mark.parametrize(("module", "extra"), [("faster_coco_eval", "detection"), ("pyarrow", "data")])
def test_measuring_a_detector(module, extra, tmp_path, monkeypatch, capsys):
    from detection_toys import TINY

    data = write_toys(tmp_path / "toys")
    options = {**TINY, "num_classes": 2, "input_size": 64}
    zoo.save(zoo.load("pape-vit-det-n-bccd", pretrained=False, **options), tmp_path / "model")
    arguments = ["eval", f"local-dir:{tmp_path / 'model'}", "--data", data, "--quiet"]
    said_without(module, extra, arguments, monkeypatch, capsys)


@pytest.mark.parametrize(("module", "extra"), [("numba", "events"), ("av", "video")])
def test_predicting_on_a_recording(module, extra, tmp_path, monkeypatch, capsys):
    from modalities.events import tokenizer

    monkeypatch.setattr(tokenizer, "_kernel", tokenizer._kernel.__wrapped__)  # Not what another test compiled.
    zoo.save(classifier(width=34, height=34), tmp_path / "model")
    zero = np.zeros(9, np.int32)
    np.savez(tmp_path / "clip.npz", t=np.arange(9), x=zero, y=zero, p=zero > 0)
    arguments = ["predict", f"local-dir:{tmp_path / 'model'}", tmp_path / "clip.npz", "--save", tmp_path / "out.mp4"]
    said_without(module, extra, [*arguments, "--quiet"], monkeypatch, capsys)
    assert not (tmp_path / "out.mp4").exists()


def test_an_extra_that_is_installed_but_broken(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("raise ImportError('needs NumPy 2.3 or less')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        zoo.MissingDependencyError, match=r"cannot be imported \(needs NumPy 2\.3 or less\): pip install"
    ):
        require("broken_extra", extra="events")
    with pytest.raises(zoo.MissingDependencyError, match="is not installed: pip install"):
        require("absent_extra", extra="events")
