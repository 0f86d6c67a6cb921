"""What may be imported when: start-up stays light, the core knows no modality, modalities do not know each other."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "torchvision", "timm", "accelerate", "matplotlib", "pandas", "huggingface_hub", "pyarrow", "av")
MODALITIES = sorted(path.parent.name for path in ROOT.glob("modalities/*/__init__.py"))
MAX_LINES = 400

PROBE = """
import sys
{statement}
print("loaded:", *(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""
COMMAND = """
from zoo.cli.main import main
try:
    main({argv!r})
except SystemExit as stop:
    assert not stop.code, stop.code
"""
LIGHT = {
    "import zoo": "import zoo",
    "zoo.__version__ and dir": "import zoo; zoo.__version__; dir(zoo); zoo.ZooError",
    "zoo --help": COMMAND.format(argv=["--help"]),
    "zoo list": COMMAND.format(argv=["list"]),
    "zoo card": COMMAND.format(argv=["card", "pape-vit-t-imagenette"]),
    "zoo advise --help": COMMAND.format(argv=["advise", "--help"]),
    "zoo advise": COMMAND.format(argv=["advise", "--tokens", "grid"]),
    "zoo publish --help": COMMAND.format(argv=["publish", "--help"]),
    "zoo doctor --help": COMMAND.format(argv=["doctor", "--help"]),
    "zoo encodings": COMMAND.format(argv=["encodings"]),
    "zoo predict --help": COMMAND.format(argv=["predict", "--help"]),
}


def run_probe(statement: str) -> subprocess.CompletedProcess[str]:
    code = PROBE.format(statement=statement, heavy=HEAVY)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize("what", LIGHT)
def test_start_up_imports_nothing_heavy(what: str) -> None:
    result = run_probe(LIGHT[what])
    assert result.returncode == 0, result.stderr
    assert result.stderr.strip().splitlines()[-1] == "loaded:"


def test_probe_notices_a_heavy_import() -> None:
    assert run_probe("import zoo.errors, torch").stderr.strip().splitlines()[-1].startswith("loaded: torch")


def imported_at_load(body: list[ast.stmt], package: str) -> Iterator[str]:
    """Absolute names of the modules that running `body` imports; functions and type-checking blocks do not run."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from imported_at_load(node.orelse, package)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from imported_at_load(getattr(node, field, []), package)
            for handler in getattr(node, "handlers", []):
                yield from imported_at_load(handler.body, package)


def every_import(path: Path) -> set[str]:
    """Names imported anywhere in a file, functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return set(imported_at_load(list(statements), package_of(path)))


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


def test_core_imports_no_modality_at_module_level() -> None:
    offenders = {
        str(path.relative_to(ROOT)): names
        for path in sorted(ROOT.glob("zoo/**/*.py"))
        if (
            names := [
                name
                for name in imported_at_load(ast.parse(path.read_text(encoding="utf-8")).body, package_of(path))
                if name.split(".")[0] == "modalities"
            ]
        )
    }
    assert not offenders


@pytest.mark.parametrize("modality", MODALITIES)
def test_modality_imports_no_other_modality(modality: str) -> None:
    others = {f"modalities.{name}" for name in MODALITIES if name != modality}
    for path in sorted((ROOT / "modalities" / modality).glob("**/*.py")):
        reached = {".".join(name.split(".")[:2]) for name in every_import(path)} & others
        assert not reached, path


def test_there_is_a_modality_to_check() -> None:
    assert "image" in MODALITIES


def test_import_scan_sees_nested_and_relative_imports() -> None:
    source = "try:\n    from . import a\nexcept ImportError:\n    import b.c\nif TYPE_CHECKING:\n    import d\n"
    source += "def f():\n    import e\nclass K:\n    from ..g import h\n"
    found = set(imported_at_load(ast.parse(source).body, "zoo.cli"))
    assert found == {"zoo.cli", "zoo.cli.a", "b.c", "zoo.g", "zoo.g.h"}


def test_files_are_short_enough_to_read() -> None:
    folders = ("zoo", "modalities", "hub_cards", "tests", "examples")
    files = [path for folder in folders for path in sorted((ROOT / folder).glob("**/*.py"))]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}
