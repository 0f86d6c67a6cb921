"""The measurements of `zoo advise` are found in a checkout and in a wheel, and damaged ones are named."""

from __future__ import annotations

import json
import tomllib
import types
from pathlib import Path

import pytest

from zoo.advice import measurements
from zoo.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "site" / "hub_cards"
    folder.mkdir(parents=True)
    monkeypatch.setattr(measurements.importlib, "import_module", lambda name: types.SimpleNamespace(__path__=[folder]))
    measurements.comparison.cache_clear()
    yield folder
    measurements.comparison.cache_clear()


def test_the_wheel_holds_what_is_looked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    included = project["wheel"]["force-include"]
    assert {Path(source).name for source in included} == {"comparison.json", "speed.json"}
    for source, target in included.items():
        assert (ROOT / source) == measurements.measured_file(Path(source).name, "a file")
        assert Path(target) == Path("hub_cards") / Path(source).name
        assert f"/{source}" in project["sdist"]["include"]  # Wheels are made of it.


def test_found_in_the_package_then_in_docs(package):
    with pytest.raises(ConfigError, match="not in this installation"):
        measurements.comparison_path()
    docs = package.parent / "docs" / "comparison.json"
    docs.parent.mkdir()
    docs.write_text(json.dumps({"rows": [{"name": "docs"}]}))
    assert measurements.comparison() == [{"name": "docs"}]
    (package / "comparison.json").write_text(json.dumps({"rows": [{"name": "package"}]}))
    measurements.comparison.cache_clear()
    assert measurements.comparison() == [{"name": "package"}]


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 1}', '{"row": []}'])
def test_damaged_files_are_named(package, text):
    (package / "comparison.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot read .*comparison.json"):
        measurements.comparison()
