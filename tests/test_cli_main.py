"""What every command does with errors, warnings and streams."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import typer

from zoo.cli import main as cli
from zoo.errors import DataError


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command made of a function: exit code, stdout, stderr."""

    def call(function, *arguments):
        app = typer.Typer()
        app.command()(function)
        monkeypatch.setattr(cli, "build_app", lambda: app)
        with pytest.raises(SystemExit) as stop:
            cli.main(list(arguments))
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def zoo(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zoo.cli.main", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


def fail(error: Exception):
    def command() -> None:
        raise error

    return command


def test_errors_are_one_line_without_escape_codes(run):
    code, out, err = run(fail(DataError("a\x1b[31m\nb\x07: bad")))
    assert (code, out, err) == (2, "", "error: a?[31m b?: bad\n")


def test_what_the_system_refuses_is_no_defect_of_ours(run):
    code, _, err = run(fail(OSError(28, "No space left on device")))
    assert (code, err) == (2, "error: [Errno 28] No space left on device\n")
    code, _, err = run(fail(KeyError("x")))
    assert code == 1
    assert err == "error: KeyError: 'x' (a defect; run again with --debug)\n"


def test_warnings_are_one_line_without_escape_codes(run):
    def command() -> None:
        warnings.warn("unknown keys ignored: a\x1b[31m\nb", stacklevel=1)

    before = warnings.showwarning
    code, _, err = run(command)
    assert (code, err) == (0, "warning: unknown keys ignored: a?[31m b\n")
    assert warnings.showwarning is before


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        done = zoo("list", stdout=out)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as out:
        done = zoo("list", stdout=out)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes file descriptors")
def test_closed_streams():
    for closed in (0, 1, 2):
        done = zoo("list", stdout=subprocess.DEVNULL, preexec_fn=lambda closed=closed: os.close(closed))
        assert (done.returncode, done.stderr) == (0, ""), closed
