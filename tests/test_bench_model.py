"""`zoo bench model` on the smallest networks, and what the measurements share: parsing, goals of a block, compiling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.bench import block, goals, timing
from zoo.bench import model as bench
from zoo.bench.timing import Timing
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError, UnknownModelError

ZOO, TIMM = "pape-vit-n-in1k", "timm:vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"device": "cpu", "cpu_threads": 1, "repeats": 1}
COMMAND = ["bench", "model", "--device", "cpu", "--threads", "1", "--repeats", "1"]


@pytest.fixture(autouse=True)
def _small_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BASELINE", TIMM)


def run_command(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def fake_timings(calls: Mapping[str, Any], *, repeats: int, device: str) -> dict[str, Timing]:
    """100, 200, ... ms in the order of the calls."""
    return {name: Timing((100.0 * count,) * repeats) for count, name in enumerate(calls, 1)}


@pytest.mark.parametrize(("train", "dtype"), [(False, "float32"), (False, "bfloat16"), (True, "bfloat16")])
def test_rows_compare_with_timm(train: bool, dtype: str) -> None:
    result = bench.measure(models=[TIMM, ZOO], sizes=[32, 48], train=train, dtype=dtype, **SMALL)
    assert [(row["size"], row["model"]) for row in result["rows"]] == [(s, m) for s in (32, 48) for m in (TIMM, ZOO)]
    for row in result["rows"]:
        base = next(other for other in result["rows"] if other["size"] == row["size"] and other["model"] == TIMM)
        assert row["batch"] == 1 and row["memory_mib"] is None
        assert row["ratio"] == pytest.approx(row["median_ms"] / base["median_ms"])
        assert row["images_per_s"] == pytest.approx(1e3 / row["median_ms"])
    assert result["rows"][1]["parameters"] == 964_392
    json.dumps(result)


def test_throughput_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "interleaved", fake_timings)
    monkeypatch.setattr(bench, "peak_mib", lambda run, device: 10.0 if run.parameters < 1e6 else 40.0)
    rows = bench.measure(models=[TIMM, ZOO], sizes=[32], batch=5, **SMALL)["rows"]
    assert [row["images_per_s"] for row in rows] == [50.0, 25.0]
    assert [row["ratio"] for row in rows] == [1.0, 2.0]
    assert [row["memory_ratio"] for row in rows] == [1.0, 0.25]


@pytest.mark.parametrize("name", [ZOO, TIMM, "timm:vit_base_patch16_rope_mixed_224"])
def test_models_are_made_for_the_size(name: str) -> None:
    with torch.device("meta") if name.startswith("timm:") else torch.device("cpu"):
        made = bench._build(name, 48)
    assert sum(parameter.numel() for parameter in made.parameters()) > 0
    if name == TIMM:
        assert made.pos_embed.shape[1] == 10  # Nothing to resample in forward.


def test_default_models_are_there() -> None:
    """Names of the command's default, which timm or a change of ours could drop."""
    import inspect

    from zoo.cli.bench import model

    names = inspect.signature(model).parameters["models"].default
    assert len(bench.parse_models(names)) == 6


def test_names_start_with_the_baseline_once() -> None:
    assert bench.parse_models(f"{ZOO}, {TIMM},{ZOO}") == [TIMM, ZOO]
    with pytest.raises(ConfigError, match="timm has no model 'resnet0'"):
        bench.parse_models("timm:resnet0")
    with pytest.raises(UnknownModelError, match="did you mean"):
        bench.parse_models("pape-vit-x-in1k")


def test_models_that_cannot_be_made_are_named() -> None:
    with pytest.raises(ConfigError, match="timm:resnet18 cannot be made for 32 x 32 px"):
        bench.measure(models=[TIMM, "timm:resnet18"], sizes=[32], **SMALL)
    with pytest.raises(DataError, match="16"):
        bench.measure(models=[TIMM, ZOO], sizes=[40], **SMALL)


def test_a_train_step_has_all_gradients() -> None:
    run = bench._Run(ZOO, 32, 2, train=True, compiled=False, device="cpu", dtype=torch.bfloat16)
    assert run().isfinite() and run().dim() == 0
    assert all(parameter.grad is not None for parameter in run._parameters)
    assert all(parameter.dtype == torch.float32 for parameter in run._parameters)


def test_detectors_are_compared_with_a_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The train step of a detector has the loss of its raw maps; the baseline is a choice."""
    classifier, detector = "pape-vit-n-in1k", "pape-vit-det-n-coco"
    run = bench._Run(detector, 64, 2, train=True, compiled=False, device="cpu", dtype=torch.float32)
    loss = run()
    assert loss.dim() == 0 and loss > 0
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in run._parameters)
    names = bench.parse_models(detector, classifier)
    assert names == [classifier, detector]
    monkeypatch.setattr(bench, "_PAPE", classifier)
    monkeypatch.setattr(bench, "_DETECTOR", detector)
    monkeypatch.setattr(bench, "interleaved", fake_timings)
    goal = goals.Goal("detector", "cpu", "train", "time", 17, 1.3)
    monkeypatch.setattr(goals, "GOALS", (goal,))
    for train, expected in ((True, [(1.3, 2.0, False)]), (False, [])):
        result = bench.measure(models=names, sizes=[64], train=train, **SMALL)
        assert [row["ratio"] for row in result["rows"]] == [1.0, 2.0]
        assert [(one["limit"], one["measured"], one["met"]) for one in result["goals"]] == expected


def test_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "models.json"
    arguments = [*COMMAND, "--models", ZOO, "--sizes", "32"]
    assert run_command([*arguments, "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert ZOO in table and TIMM in table and "images/s" in table and "time / first" in table
    assert "memory" not in table and torch.__version__ in table
    assert [row["model"] for row in json.loads(out.read_text())["rows"]] == [TIMM, ZOO]
    assert run_command([*arguments, "--train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train"] is True


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--sizes", "0", "sizes are whole numbers from 1 to 4096"),
        ("--models", "timm:nothing", "timm has no model"),
        ("--batch", "0", "batch must be at least 1"),
    ],
)
def test_bad_options_are_one_line(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*COMMAND, "--models", ZOO, "--sizes", "32", option, value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error


def test_block_prints_its_goals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "block", "--encodings", "rope,pape", "--grids", "14", "--device", "cpu"]
    arguments += ["--threads", "1", "--repeats", "1"]
    monkeypatch.setattr(block, "interleaved", fake_timings)
    assert run_command(arguments) == 0
    text = capsys.readouterr().out
    assert "goal for pape: block, inference, 197 tokens, time at most 1.20; measured 3.000: not met" in text
    assert run_command([*arguments, "--dim", "384"]) == 0
    assert "goal" not in capsys.readouterr().out


def test_the_model_goal_is_that_of_the_released_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        parameters = 1

        def __call__(self) -> None:
            pass

    monkeypatch.setattr(bench, "_Run", lambda *_, **__: Run())
    monkeypatch.setattr(bench, "interleaved", fake_timings)
    judged = bench.measure(models=[TIMM, "pape-vit-b-in1k"], sizes=[224, 512], **SMALL)["goals"]
    assert [(one["goal"], one["measured"]) for one in judged] == [("model, inference, 197 tokens, time", 2.0)]


def test_goals_are_not_stated_twice() -> None:
    keys = [(goal.bench, goal.device, goal.step, goal.quantity, goal.tokens) for goal in goals.GOALS]
    assert len(set(keys)) == len(keys)


def test_default_batch_fills_a_gpu() -> None:
    assert timing.pick_batch(None, 197, "cuda") == 83 and timing.pick_batch(None, 20_000, "cuda:1") == 1
    assert timing.pick_batch(None, 197, "cpu") == 1 and timing.pick_batch(7, 197, "cuda") == 7


def test_compiling_afresh_has_room_for_all_alternatives() -> None:
    import torch._dynamo

    before = torch._dynamo.config.recompile_limit
    runs = 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        return graph.forward

    def double(x: torch.Tensor, times: int) -> torch.Tensor:
        return x * times

    with timing.compile_afresh(True):
        compiled = torch.compile(double, backend=counting, dynamic=False)
        for times in range(2, 15):
            assert compiled(torch.ones(1), times) == times
        assert runs == 13  # By default the compiler gives up after 8.
    assert torch._dynamo.config.recompile_limit == before
    with timing.compile_afresh(False):
        assert torch._dynamo.config.recompile_limit == before


def test_a_model_that_fails_costs_no_other_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = bench._Run.__call__

    def fail(self: bench._Run) -> torch.Tensor:
        if self.parameters < 1e6:
            raise RuntimeError("expected scalar type BFloat16\nbut found Float")
        return call(self)

    monkeypatch.setattr(bench._Run, "__call__", fail)
    rows = {row["model"]: row for row in bench.measure(models=[TIMM, ZOO], sizes=[32], **SMALL)["rows"]}
    assert rows[TIMM]["ratio"] == 1.0 and rows[TIMM]["refused"] is None
    assert "but found Float" in rows[ZOO]["refused"] and "\n" not in rows[ZOO]["refused"]
    with pytest.raises(SystemExit) as stop:
        main(["bench", "model", "--models", f"{TIMM},{ZOO}", "--sizes", "32", "--device", "cpu", "--repeats", "1"])
    assert not stop.value.code
    assert f"not run: {ZOO} at 32 px: expected scalar type" in capsys.readouterr().out
