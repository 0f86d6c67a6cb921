"""Every command and every piece of Python in README.md runs, or where it cannot run here is at least understood."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hub_client import hub
from readme_blocks import Block, Command, blocks, commands, inline_commands
from readme_places import MADE, REAL, ROOT
from readme_ways import EXACT, KEY_FRAME, WAYS, way_of

__all__ = ["hub"]

WEIGHTS = ROOT / "hub_cards/pape-vit-t-imagenette/model.safetensors"
pytestmark = pytest.mark.skipif(not WEIGHTS.is_file(), reason="the embedded weights are not there")

COMMANDS = commands()
PYTHON = [block for block in blocks() if block.language == "python"]
OUTPUTS = ("--out", "--to", "--build")
# Packages of optional extras that are in no test environment.
NEEDED = {"to_ultralytics": "ultralytics"}


class Prompt(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


class Desk:
    """A folder in which commands of README run, each once, after those that make what it names."""

    def __init__(self, folder: Path, real: Path | None = None) -> None:
        self.folder, self.real, self.done = folder, real, set[Command]()
        os.symlink(ROOT / "samples", folder / "samples")

    def run(self, command: Command, request: pytest.FixtureRequest) -> None:
        if command in self.done:
            return
        way = way_of(command)
        assert way is not None and not way.read
        if way.hub:
            request.getfixturevalue("hub").tokens.update({"hf_Secret0123456789abcdef": ("ORG",)})
        if way.after:
            self.run(next(other for other in COMMANDS if str(other).startswith(way.after)), request)
        words = [*command.words, *shlex.split(way.more)]
        made = next((words[i + 1] for i, word in enumerate(words) if word in OUTPUTS), None)
        for word in words:
            if word != made:
                self._provide(re.sub("^(local-dir|trusted):", "", word).rstrip("/"), request)
        if made is not None and (self.folder / made).is_dir():
            shutil.rmtree(self.folder / made)
        for old, new in way.swap:
            words[words.index(old)] = self._key_frame() if new == KEY_FRAME else new
        code, output, errors = call(words[1:], way.answers)
        where = f"README.md:{command.line}: {command}"
        assert code == way.code, f"no way to run this README command: {where}\n{errors}(see tests/readme_ways.py)"
        if command.to is not None:
            (self.folder / command.to).write_text(output)
        assert made is None or (self.folder / made).exists(), f"{where} made no {made}"
        if not way.hub:  # That of another test is another Hub.
            self.done.add(command)

    def _provide(self, name: str, request: pytest.FixtureRequest) -> None:
        """Makes a file or folder that a command names, by its maker or by the command of README that writes it."""
        name = name.split("/*")[0]
        path = self.folder / name
        if name in MADE:
            if path.exists():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            source = None if self.real is None or name not in REAL else self.real / "data" / REAL[name]
            if source is not None and source.exists():
                path.symlink_to(source)
            else:
                MADE[name](path)
            return
        for other in COMMANDS:
            if any(other.words[i : i + 2] == (option, name) for option in OUTPUTS for i in range(len(other.words))):
                if not path.exists():
                    self.run(other, request)
                return

    def _key_frame(self) -> str:
        from modalities.driving.nuscenes.dataset import NuScenes

        return str(NuScenes(self.folder / "DRIVE").sample_tokens("val")[0])


def call(arguments: list[str], answers: str = "") -> tuple[int, str, str]:
    """Runs the command line in this process: exit code, stdout, stderr."""
    from zoo.cli.main import main

    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["zoo", *arguments])
        patch.setattr("webbrowser.open", lambda address: True)
        patch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
        patch.setattr(sys, "stdin", Prompt(answers) if answers else io.StringIO())
        with pytest.raises(SystemExit) as stop:
            main()
    return int(stop.value.code or 0), output.getvalue(), errors.getvalue()


def interrupted(server: Any) -> None:
    """Ctrl-C, as soon as it would wait for requests."""
    raise KeyboardInterrupt


def understand(words: tuple[str, ...], *, whole: bool = True) -> None:
    """Reads the options of a `zoo` command as the command would, without running it."""
    from zoo.cli.main import build_app

    command: Any = typer.main.get_command(build_app())
    context, rest = command.make_context("zoo", list(words[1:]) or ["--help"], resilient_parsing=True), list(words[1:])
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{' '.join(words)}: there is no {rest[0]}"
        command = command.commands[rest.pop(0)]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    if whole:
        command.make_context(command.name, rest, parent=context)
    else:
        context.resilient_parsing = False  # Which would let unknown options pass.
        command.make_parser(context).parse_args(rest)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("readme"))


@pytest.fixture(scope="module")
def real_desk(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("readme-real"), shared)


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))
        name = next((name for name in ("desk", "real_desk") if name in request.fixturenames), None)
        if name:
            patch.chdir(request.getfixturevalue(name).folder)
        yield


def runs(command: Command) -> bool:
    way = way_of(command)
    return way is not None and not way.read


def parameters(chosen: list[Command]) -> list[Any]:
    slow = [bool((way := way_of(command)) and way.slow) for command in chosen]
    return [
        pytest.param(command, id=f"{command.line}: {command}", marks=[pytest.mark.slow] if long else [])
        for command, long in zip(chosen, slow, strict=True)
    ]


@pytest.mark.parametrize("command", parameters([command for command in COMMANDS if runs(command)]))
def test_commands_run(command: Command, desk: Desk, request: pytest.FixtureRequest) -> None:
    desk.run(command, request)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [pytest.param(one, id=str(one)) for one in COMMANDS if runs(one) and set(one.words) & set(REAL)]
)
def test_commands_run_on_real_data(command: Command, real_desk: Desk, request: pytest.FixtureRequest) -> None:
    real_desk.run(command, request)


@pytest.mark.parametrize("command", [pytest.param(one, id=str(one)) for one in COMMANDS if not runs(one)])
def test_other_commands_are_understood(command: Command) -> None:
    way = way_of(command)
    assert way is not None, f"no way to run this README command: README.md:{command.line}: {command}"
    program, *rest = command.words
    if program == "zoo":
        understand(command.words)
    elif program == "make":
        targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(rest) <= set(targets)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert rest[:2] == ["install", "-e"]
        found = re.fullmatch(r"\.(?:\[(.*)\])?", rest[2])
        assert found and set(filter(None, (found[1] or "").split(","))) <= set(extras)
    elif program == "accelerate":
        launch = pytest.importorskip("accelerate.commands.launch")
        options = launch.launch_command_parser().parse_args(rest[1:])
        assert options.module and options.training_script == "zoo.cli.main"
        understand(("zoo", *options.training_script_args))
    else:
        assert command.words == ("hf", "auth", "login")
        hf = pytest.importorskip("huggingface_hub.cli.hf")
        group: Any = hf.app if hasattr(hf.app, "get_command") else typer.main.get_command(hf.app)
        context = group.make_context("hf", [], resilient_parsing=True)
        assert group.get_command(context, "auth").get_command(context, "login") is not None


@pytest.mark.parametrize("words", [pytest.param(one, id=shlex.join(one)) for one in inline_commands()])
def test_commands_in_the_text_are_understood(words: tuple[str, ...]) -> None:
    understand(words, whole=False)


@pytest.mark.parametrize("block", [pytest.param(one, id=f"{one.line}: {one.text[:30]!r}") for one in PYTHON])
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile(block.text, f"README.md:{block.line}", "exec")
    if "to_ultralytics" in block.text:
        import zoo

        assert callable(zoo.to_ultralytics)  # AGPL-3.0: tests/test_interop_ultralytics.py, where it is installed.
        return
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "samples", "samples")
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(code, {"__name__": "readme"})
    printed = written.getvalue().splitlines()
    for stated in re.findall(r"^print.*?# (.*)$", block.text, re.MULTILINE):
        assert any(stated.startswith(line) for line in printed), f"README says {stated!r}, printed: {printed}"


def test_every_block_is_read_and_every_way_is_used() -> None:
    assert {block.language for block in blocks()} <= {"bash", "python", ""}
    for command in COMMANDS:
        assert way_of(command) is not None, f"no way to run this README command: README.md:{command.line}: {command}"
    written = [" ".join(command.words) for command in COMMANDS]
    assert [start for start in WAYS if not any(one.startswith(start) for one in written)] == []
    assert [whole for whole in EXACT if whole not in written] == []


def test_a_new_command_without_a_way_is_noticed(desk: Desk, request: pytest.FixtureRequest) -> None:
    new, unknown = commands("```bash\nzoo frobnicate A && zoo predict \\\n  nobody.jpg  # at all\n```")
    assert way_of(new) is None and new.line == 2 and str(unknown) == "zoo predict nobody.jpg"
    with pytest.raises(AssertionError, match="no way to run this README command: README.md:2: zoo predict nobody"):
        desk.run(unknown, request)
    with pytest.raises(AssertionError, match="there is no frobnicate"):
        understand(new.words)
    with pytest.raises(Exception, match="--frob"):
        understand(("zoo", "predict", "--frob"), whole=False)
