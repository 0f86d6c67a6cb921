"""The repository itself: packaging, licence and citation, sizes, and a README whose code runs."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import zoo

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
MIB = 2**20


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode or not listing.stdout:
        pytest.skip("not a git checkout with tracked files")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_packages_are_those_of_the_wheel() -> None:
    assert set(PACKAGES) == {"zoo", "modalities", "hub_cards"}
    for package in PACKAGES:
        folders = {path.parent for path in (ROOT / package).rglob("*.py")}
        assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_command_line_entry_point_exists() -> None:
    module, function = PROJECT["project"]["scripts"]["zoo"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_constraints_lie_within_the_declared_ranges() -> None:
    development = PROJECT["project"]["optional-dependencies"]["dev"]
    stated = map(Requirement, [*PROJECT["project"]["dependencies"], *development])
    ranges = {requirement.name: requirement for requirement in stated}
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    pins = {name: version for name, version in (line.split("==") for line in lines)}
    assert set(pins) == {"torch", "torchvision", "playwright", "axe-playwright-python"}
    for name, version in pins.items():
        assert ranges[name].specifier.contains(version)


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert zoo.__version__ == version
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert re.search(rf"^## \[{re.escape(version)}\]", read("CHANGELOG.md"), flags=re.MULTILINE)


def test_citation_names_the_software_and_the_paper() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["title"] == PROJECT["project"]["name"]
    assert citation["license"] == PROJECT["project"]["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert paper["doi"] == "10.48550/arXiv.2602.01418" and paper["url"].endswith("/2602.01418")
    assert len(paper["authors"]) == 7
    assert paper["year"] == 2026


def test_licence_is_the_whole_apache_text() -> None:
    text = read("LICENSE")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert all(f"   {number}. " in text for number in range(1, 10))


def test_tracked_files_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}
    assert sum(sizes.values()) < 48 * MIB
    assert not {name: size for name, size in sizes.items() if size >= 15 * MIB}


def test_weights_that_come_along_stay_small() -> None:
    sizes = {path.parent.name: path.stat().st_size for path in (ROOT / "hub_cards").glob("*/model.safetensors")}
    assert sum(sizes.values()) <= 28 * MIB
    assert {name for name, size in sizes.items() if size >= 3 * MIB} <= {"pape-vit-t-imagenette", "pope-decoder-t-jsb"}


def test_no_unfinished_marks_in_the_packages() -> None:
    marks = re.compile("TODO|FIXME|XXX")
    for package in (*PACKAGES, "examples"):
        for path in sorted((ROOT / package).rglob("*.py")):
            assert not marks.search(path.read_text(encoding="utf-8")), path


def test_make_targets_and_ci() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), flags=re.MULTILINE))
    assert {"demo", "test", "lint", "fresh", "clean", "help"} <= targets
    assert "make test" in read(".ci/run")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_make_names_a_too_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    arguments = ["make", "demo", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode != 0
    assert "older than Python 3.11" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_sample_pictures_are_four_small_ones_with_their_terms() -> None:
    from PIL import Image

    pictures = sorted((ROOT / "samples").glob("*.jpg"))
    notes = read("samples/README.md")
    assert len(pictures) == 4
    assert len({hashlib.sha256(path.read_bytes()).digest() for path in pictures}) == 4
    assert "non-commercial research and education" in " ".join(notes.split())
    for path in pictures:
        assert f"`{path.name}`" in notes
        with Image.open(path) as picture:
            assert picture.format == "JPEG" and picture.size == (224, 224)


def readme() -> str:
    if not (ROOT / "README.md").is_file():
        pytest.skip("README.md is not there")
    return read("README.md")


def test_readme_names_the_two_commands() -> None:
    text = readme()
    assert "make demo" in text and "make test" in text


def test_readme_links_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", readme())
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_readme_python_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", readme(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    if not (ROOT / "hub_cards/pape-vit-t-imagenette/model.safetensors").is_file():
        pytest.skip("the embedded weights are not there")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    code = "\n".join(blocks)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
