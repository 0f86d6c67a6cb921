"""Timing helpers by arithmetic, and the two measurements on models small enough to take no time."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
import torch
from PIL import Image

from zoo.bench import block as block_bench
from zoo.bench import predict as predict_bench
from zoo.bench.timing import Timing, environment, interleaved, pick_device, pick_dtype, recorded, threads
from zoo.cli.main import main
from zoo.errors import ConfigError

SMALL = block_bench.BlockShape(dim=16, heads=2, mlp_dim=32)


def test_median_and_ninety_percent() -> None:
    timing = Timing(tuple(float(n) for n in range(10, 0, -1)))
    assert timing.median_ms == 5.5 and timing.p90_ms == 9.0
    assert Timing((3.0,)).p90_ms == 3.0


def test_interleaved_takes_turns_and_tells_slow_from_fast() -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> None:
        order.append(name)
        time.sleep(seconds)

    timings = interleaved(
        {"slow": lambda: call("slow", 0.02), "fast": lambda: call("fast", 0.002)}, repeats=3, warmup=0, sample_ms=1.0
    )
    assert order == ["slow", "fast"] * 4  # Once to estimate the length, then three samples.
    assert len(timings["slow"].samples_ms) == 3
    assert timings["slow"].median_ms >= 20 and 2 <= timings["fast"].median_ms < timings["slow"].median_ms


def test_short_calls_are_averaged() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.001)

    interleaved({"short": call}, repeats=1, warmup=0, sample_ms=200.0)
    assert calls > 3


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
        assert environment("cpu")["threads"] == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:99", ""])
def test_bad_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        pick_device(device)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="dtype must be one of"):
        pick_dtype("int8")
    with pytest.raises(ConfigError, match="repeats"):
        interleaved({}, repeats=0)
    with pytest.raises(ConfigError, match="threads"), threads(0):
        pass
    with pytest.raises(ConfigError, match="grids"):
        block_bench.parse_grids("14,x")
    with pytest.raises(ConfigError, match="added once"):
        block_bench.parse_names("sincos")
    with pytest.raises(ConfigError, match="unknown encoding"):
        block_bench.parse_names("papa")
    with pytest.raises(ConfigError, match="batch"):
        block_bench.measure(SMALL, encodings=["none"], grids=[2], batch=0)


def test_names_start_with_the_baseline_once() -> None:
    assert block_bench.parse_names("pape, none,rope,pape") == ["none", "pape", "rope"]


@pytest.mark.parametrize("attention_only", [False, True])
@pytest.mark.parametrize(("train", "dtype"), [(False, "float32"), (True, "float32"), (True, "bfloat16")])
def test_block_bench_reports_every_encoding_against_the_baseline(attention_only: bool, train: bool, dtype: str) -> None:
    shape = block_bench.BlockShape(dim=16, heads=2, mlp_dim=32, attention_only=attention_only)
    names = block_bench.parse_names("rope,alibi,pape,pape-ri")
    result = block_bench.measure(
        shape, encodings=names, grids=[2, 3], train=train, dtype=dtype, device="cpu", cpu_threads=1, repeats=1
    )
    rows = result["rows"]
    assert [(row["grid"], row["encoding"]) for row in rows] == [(grid, name) for grid in (2, 3) for name in names]
    assert [row["tokens"] for row in rows[:: len(names)]] == [5, 10]
    for row in rows:
        base = next(other for other in rows if other["grid"] == row["grid"] and other["encoding"] == "none")
        assert row["ratio"] == pytest.approx(row["median_ms"] / base["median_ms"])
        assert row["median_ms"] > 0 and row["memory_mib"] is None
    json.dumps(result)


def test_train_step_reaches_every_parameter_and_the_input() -> None:
    run = block_bench._Run(SMALL, "pape", 3, 2, train=True, compiled=False, device="cpu", dtype=torch.bfloat16)
    out = run()
    assert out.shape == (2, 10, 16)
    assert all(parameter.grad is not None for parameter in run._parameters)


def test_block_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "block", "--encodings", "pape", "--grids", "2", "--dim", "16", "--heads", "2"]
    arguments += ["--mlp-dim", "32", "--device", "cpu", "--threads", "1", "--repeats", "1"]
    assert run_command(arguments) == 0
    table = capsys.readouterr().out
    assert "pape" in table and "time / none" in table and "memory" not in table and torch.__version__ in table
    assert run_command([*arguments, "--json"]) == 0
    assert [row["encoding"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["none", "pape"]


def test_sample_picture_is_a_photograph_sized_jpeg() -> None:
    content = predict_bench.sample_picture()
    picture = Image.open(io.BytesIO(content))
    assert picture.format == "JPEG" and picture.size == (500, 375)
    assert 20_000 < len(content) < 200_000  # A flat picture would decode too fast.


def test_predict_bench(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "predict", "pape-vit-n-in1k", "--untrained", "--size", "32", "--device", "cpu"]
    arguments += ["--threads", "1", "--repeats", "2"]
    assert run_command([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["size"] == [32, 32] and result["environment"]["threads"] == 1
    timings = result["timings"]
    assert timings["predict"]["median_ms"] > timings["forward"]["median_ms"] > 0
    assert timings["predict"]["p90_ms"] >= timings["predict"]["median_ms"]
    assert run_command(arguments) == 0
    table = capsys.readouterr().out
    assert "whole path" in table and "network alone" in table and "32 x 32 px" in table


def test_predict_bench_of_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "predict", "pape-vit-x"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def run_command(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_graphs_need_a_cuda_device() -> None:
    with pytest.raises(ConfigError, match="CUDA graphs need a CUDA device, this is cpu"):
        recorded(lambda: None, "cpu")
    with pytest.raises(ConfigError, match="CUDA graphs"):
        block_bench.measure(SMALL, encodings=["none"], grids=[2], device="cpu", graphs=True, repeats=1)


@pytest.mark.gpu
@pytest.mark.parametrize("train", [False, True])
def test_a_recorded_block_does_what_the_block_does(train: bool) -> None:
    run = block_bench._Run(SMALL, "pape", 3, 2, train=train, compiled=False, device="cuda", dtype=torch.bfloat16)
    kept = []
    replay = recorded(lambda: kept.append(run()), "cuda")
    run.x.mul_(2.0)
    replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(kept[-1], run())
