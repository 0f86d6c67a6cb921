"""`zoo bench tiles`: attention alone, names of tilings, launches in others, refusals."""

from typing import Any

import pytest
import torch

from zoo.bench import core
from zoo.bench import tiles as bench
from zoo.bench.tiles import measure, parse_tiles
from zoo.bench.workloads import grid_workload
from zoo.cli.main import main
from zoo.errors import ConfigError
from zoo.kernels import launch, plans
from zoo.kernels.plans import COLUMNS, Tiling, tiling, trying


def test_tilings_are_read() -> None:
    assert parse_tiles("128x64x8x3, 64x32x4x2x168") == {
        "128x64x8x3": Tiling(128, 64, 8, 3),
        "64x32x4x2x168": Tiling(64, 32, 4, 2, 168),
    }


@pytest.mark.parametrize("text", ["", "128x64", "128x48x4x2", "8x64x4x2", "64x64x3x2", "64x64x4x2x1x1", "axbxcxd"])
def test_bad_tilings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="128x64x8x3"):
        parse_tiles(text)


def test_other_tiles_are_taken_only_while_they_are_tried() -> None:
    calls = 0

    @launch.kept
    def plan(width: int) -> Tiling:
        nonlocal calls
        calls += 1
        return tiling("forward", width, COLUMNS)

    own, other = plan(64), Tiling(16, 16, 1, 1)
    with trying("forward", other):
        assert plan(64) == other and tiling("keys", 64, COLUMNS) == plans._TILINGS["keys"]
    assert plan(64) == own == plan(64) and calls == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tiles", "7"], "128x64x8x3"),
        (["--kernel", "sideways"], "forward, queries, keys"),
        (["--encoding", "papa"], "papa"),
        (["--device", "cpu"], "CUDA device"),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "tiles", *options])
    shown = capsys.readouterr().err.strip()
    assert stop.value.code and message in shown and len(shown.splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("encoding", "kernel"), [("pape", "forward"), ("alibi", "queries"), ("pope", "keys")])
def test_tilings_are_timed_and_impossible_ones_refused(encoding: str, kernel: str) -> None:
    wanted = {"64x64x4x2": Tiling(64, 64, 4, 2), "256x256x4x6": Tiling(256, 256, 4, 6)}
    found: dict[str, Any] = measure(
        encoding=encoding, kernel=kernel, tiles=wanted, grids=[4], heads=2, batch=2, repeats=2
    )
    rows = {row["tiles"]: row for row in found["rows"]}
    assert list(rows) == [bench.OWN, *wanted] and rows[bench.OWN]["ratio"] == 1.0
    assert rows["64x64x4x2"]["median_ms"] > 0 and rows["64x64x4x2"]["refused"] is None
    assert rows["256x256x4x6"]["refused"] and rows["256x256x4x6"]["median_ms"] is None


@pytest.mark.parametrize("encoding", ["none", "pope", "pape", "alibi", "kerple"])
@pytest.mark.parametrize("step", ["inference", "train"])
def test_attention_alone_gives_what_the_core_gives(encoding: str, step: str) -> None:
    inputs = core.Inputs.draw(grid_workload(3, 2, "cpu"), 2, 16, "cpu", torch.float32)
    whole, alone = (kind(inputs, encoding, None, step, compiled=False) for kind in (core.Core, core.Attend))
    (out, gradients), (found, own) = whole(), alone()
    torch.testing.assert_close(found, out)
    if step == "train":
        assert len(own) == len(alone.variables) and all(one is not None for one in own)
        torch.testing.assert_close(own[2], gradients[3])  # Of v, which no encoding here changes.
    if (encoding, step) == ("pape", "train"):
        assert len(alone.variables) == 5  # q, k, v, and M and t, which were made of x.
