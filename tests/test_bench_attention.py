"""`zoo bench attention`: rows, refusals, ratios and operations by arithmetic, errors against float64, goals, figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch

from zoo.bench import accuracy, core, goals, plots, timing
from zoo.bench import attention as bench
from zoo.bench.timing import Timing
from zoo.bench.workloads import Workload, grid_workload, packed_workload
from zoo.cli.main import main
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError, MissingDependencyError
from zoo.kernels import forced, use

SMALL: dict[str, Any] = {"heads": 2, "head_dim": 16, "device": "cpu", "cpu_threads": 1, "repeats": 1}
COMMAND = ["bench", "attention", "--heads", "2", "--head-dim", "16", "--device", "cpu", "--threads", "1"]
COMMAND += ["--repeats", "1"]


def run_command(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def packed_lengths(*lengths: int) -> Workload:
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    values = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(0))
    return Workload("packed", Coordinates(values, cu_seqlens=offsets), lengths)


def fake_timings(calls: Mapping[str, Any], *, repeats: int, device: str) -> dict[str, Timing]:
    """1, 2, 3, ... ms in the order of the cores, and ten times that for attention alone."""
    times = {name: (1 + count // 2) * (1 + 9 * (count % 2)) for count, name in enumerate(calls)}
    return {name: Timing((float(time),) * repeats) for name, time in times.items()}


def test_every_pair_has_a_row_with_figures_or_a_reason() -> None:
    result = bench.measure(
        encodings=["none", "pape", "alibi"], kernels=["auto", "eager", "dense"], grids=[2, 3], packed=False, **SMALL
    )
    rows = result["rows"]
    pairs = [(name, kernel) for name in ("none", "pape", "alibi") for kernel in ("auto", "eager", "dense")]
    assert [(row["grid"], row["encoding"], row["kernel"]) for row in rows] == [
        (g, *pair) for g in (2, 3) for pair in pairs
    ]
    assert [row["tokens"] for row in rows[:: len(pairs)]] == [5, 10]
    for row in rows:
        assert row["train"] is None
        if (row["encoding"], row["kernel"]) == ("none", "dense"):
            assert "additive scores" in row["refused"] and row["inference"] is None
        else:
            assert row["refused"] is None and row["inference"]["median_ms"] > 0
            assert row["inference"]["memory_mib"] is None  # On the CPU it is not known.
            expected = {"auto": "sdpa", "eager": "eager", "dense": "dense"}[row["kernel"]]
            assert row["inference"]["runs"].startswith(expected)
    assert result["environment"]["torch"] == torch.__version__ and result["goals"] == []
    json.dumps(result)


def test_baseline_comes_first_whatever_is_asked_for() -> None:
    rows = bench.measure(encodings=["rope"], kernels=["sdpa"], grids=[2], **SMALL)["rows"]
    assert [(row["encoding"], row["kernel"]) for row in rows] == [("none", "auto"), ("rope", "sdpa")]


def test_encodings_that_refuse_the_coordinates_have_a_reason() -> None:
    rows = bench.measure(encodings=["lookhere"], kernels=["auto"], grids=[2], packed=True, batch=1, **SMALL)["rows"]
    reasons = {row["workload"]: row["refused"] for row in rows if row["encoding"] == "lookhere"}
    assert reasons["2 x 2 + 1"] is None and "2 coordinate axes" in reasons["packed"]


@pytest.mark.parametrize("kernel", ["auto", "eager"])
def test_out_of_memory_is_a_reason(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = core.Core.__call__

    def call(self: core.Core, *arguments: Any) -> Any:
        if self.choice.method == "fold" and (kernel == "auto" or self.choice.backend == kernel):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, *arguments)

    monkeypatch.setattr(core.Core, "__call__", call)
    rows = bench.measure(encodings=["pape"], kernels=[kernel], grids=[2], **SMALL)["rows"]
    assert rows[0]["inference"] and rows[1]["inference"] is None
    assert rows[1]["refused"] == "out of memory (inference)"


def test_only_forced_kernels_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no such\nkernel image")

    monkeypatch.setattr("zoo.kernels.dispatch._dense", broken)
    rows = bench.measure(encodings=["alibi"], kernels=["dense"], grids=[2], **SMALL)["rows"]
    assert rows[1]["refused"] == "fails (inference): no such kernel image"
    monkeypatch.setattr("zoo.kernels.dispatch._scored", broken)
    with pytest.raises(RuntimeError, match="kernel image"):
        bench.measure(encodings=["alibi"], kernels=["auto"], grids=[2], **SMALL)


def test_a_baseline_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: core.Core, *arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(core.Core, "__call__", call)
    with pytest.raises(ConfigError, match="smaller batch"):
        bench.measure(encodings=["none"], grids=[2], **SMALL)


def test_ratios_and_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "interleaved", fake_timings)
    monkeypatch.setattr(bench, "peak_mib", lambda call, device: 8.0 if call.choice.method == "fold" else 2.0)
    steps = ("inference", "train")
    result = bench.measure(
        encodings=["none", "rope", "pape"], kernels=["auto"], grids=[3], packed=True, batch=3, steps=steps, **SMALL
    )
    lengths = result["packed_lengths"]
    assert len(lengths) == 3 and min(lengths) >= 200 and max(lengths) <= 1800
    for rows, squares in ((result["rows"][:3], 3 * 10**2), (result["rows"][3:], sum(n**2 for n in lengths))):
        for count, row in enumerate(rows, 1):
            forward = 4 * 2 * 16 * squares
            assert row["batch"] == 3
            assert [row[step]["ratio"] for step in steps] == [count, count]
            assert [row[step]["alone_ms"] for step in steps] == [10 * count, 10 * count]
            assert [row[step]["alone_ratio"] for step in steps] == [count, count]
            assert row["inference"]["tflops"] == pytest.approx(forward / (count * 1e-3) / 1e12)
            assert row["train"]["tflops"] == pytest.approx(3.5 * forward / (count * 1e-3) / 1e12)
            assert [row[step]["memory_ratio"] for step in steps] == [4.0 if count == 3 else 1.0] * 2


@pytest.mark.parametrize("encoding", ["none", "rope", "pope", "pape", "pape-ri", "alibi", "lookhere", "gta"])
def test_errors_against_float64_are_small_in_float32(encoding: str) -> None:
    # Three samples, of which errors are those of the first.
    rows = bench.measure(
        encodings=[encoding], kernels=["auto", "eager"], grids=[4], batch=3, steps=("inference", "train"), **SMALL
    )["rows"]
    for row in rows:
        errors = row["train"]["errors"]
        assert row["inference"]["errors"].keys() == {"output"} and row["inference"]["errors"]["output"] < 1e-6
        assert errors.keys() == {"output", "dq", "dk", "dv", "parameters"}
        learns = row["encoding"] in ("pope", "pape", "pape-ri")
        assert (errors.pop("parameters") or 0.0) < 1e-5 if learns else errors.pop("parameters") is None
        assert all(0 < error < 1e-6 for error in errors.values())


def test_errors_find_the_sample_among_packed_ones() -> None:
    workload = packed_lengths(9, 5, 7)
    inputs = core.Inputs.draw(workload, 2, 16, "cpu", torch.float32)
    sample = workload.sample(6)
    made = core.Core(inputs, "pape", None, "train", compiled=False)
    errors = accuracy.all_errors({"pape/auto": made}, sample)["pape/auto"]
    assert all(0 < error < 1e-5 for error in errors.values() if error is not None)
    assert errors["parameters"] is not None


def test_errors_are_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = core.attend

    def attend(*arguments: Any, **options: Any) -> torch.Tensor:
        return real(*arguments, **options) * (1.0 if forced() == "eager" else 1.01)

    monkeypatch.setattr(core, "attend", attend)
    rows = bench.measure(encodings=["pope"], kernels=["auto"], grids=[4], steps=("train",), **SMALL)["rows"]
    assert rows[1]["train"]["errors"] == pytest.approx(
        dict.fromkeys(("output", "dq", "dk", "dv", "parameters"), 0.01), rel=1e-2
    )


def test_errors_in_bfloat16_are_those_of_bfloat16() -> None:
    steps = ("inference", "train")
    rows = bench.measure(encodings=["pape"], kernels=["auto"], grids=[4], steps=steps, dtype="bfloat16", **SMALL)[
        "rows"
    ]
    for row in rows:
        for step in steps:
            assert 1e-4 < row[step]["errors"]["output"] < 1e-2


def test_long_samples_have_no_errors() -> None:
    rows = bench.measure(encodings=["none"], kernels=["auto"], grids=[2, 3], error_tokens=9, **SMALL)["rows"]
    assert rows[0]["inference"]["errors"] and rows[1]["inference"]["errors"] is None


def test_tensors_lie_as_the_projections_have_them() -> None:
    inputs = core.Inputs.draw(grid_workload(3, 2, "cpu"), 2, 16, "cpu", torch.bfloat16)
    assert inputs.q.shape == (2, 2, 10, 16) and inputs.q.stride() == (10 * 96, 16, 96, 1)
    assert inputs.k.data_ptr() - inputs.q.data_ptr() == 32 * 2  # One tensor, q and k side by side.
    assert inputs.gradient.stride() == (10 * 32, 16, 32, 1)
    assert torch.equal(inputs.x.float(), inputs.wide_x)


def test_a_train_step_has_all_gradients() -> None:
    inputs = core.Inputs.draw(grid_workload(3, 2, "cpu"), 2, 16, "cpu", torch.bfloat16)
    made = core.Core(inputs, "pape", "sdpa", "train", compiled=False)
    out, gradients = made()
    assert made.choice.backend == "sdpa" and forced() is None
    assert out.dtype == torch.bfloat16 and len(gradients) == len(made.variables) == 7
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


def test_compiled_cores_are_compiled_apart() -> None:
    inputs = core.Inputs.draw(grid_workload(2, 1, "cpu"), 2, 16, "cpu", torch.float32)
    plain = [core.Core(inputs, name, None, "inference", compiled=False) for name in ("none", "rope")]
    functions = [core._own_code(one._function, name) for one, name in zip(plain, ("a", "b"), strict=True)]
    assert functions[0].__code__ != functions[1].__code__
    with timing.compile_afresh(True):
        for one, function in zip(plain, functions, strict=True):
            compiled = torch.compile(function, backend="eager", fullgraph=True)
            torch.testing.assert_close(compiled(*one.tensors), function(*one.tensors))
            # Versions of code are kept with the code, so that one encoding never looks through those of others.
            assert len(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__)) == 1


def test_packed_workload_is_drawn_by_its_seed() -> None:
    one, same, other = (packed_workload(4, "cpu", lengths=(3, 9), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.coords.values, same.coords.values)
    assert one.coords.values.shape != other.coords.values.shape or not torch.equal(
        one.coords.values, other.coords.values
    )
    assert one.batch == 1 and one.tokens == sum(one.lengths) and len(one.lengths) == 4
    assert one.coords.cu_seqlens is not None and one.coords.cu_seqlens.diff().tolist() == list(one.lengths)
    assert one.coords.axes == 3
    time = one.coords.values[: one.lengths[0], 0]
    assert torch.equal(time, time.sort().values)


def test_the_sample_of_a_workload() -> None:
    workload = packed_lengths(9, 5, 7)
    assert workload.sample(4) is None
    sample = workload.sample(6)
    assert sample is not None and sample.rows == slice(9, 14) and not sample.coords.packed
    assert torch.equal(sample.coords.values[0], workload.coords.values[9:14])
    first = workload.sample(9)
    assert first is not None and first.rows == slice(0, 9)
    grid = grid_workload(2, 3, "cpu")
    assert grid.sample(4) is None
    whole = grid.sample(5)
    assert whole is not None and whole.rows == slice(0, 5) and whole.coords is grid.coords


def test_goals_are_judged_where_they_are_stated() -> None:
    found = {197: 1.25, 1025: 1.2001, 4097: None}
    where: dict[str, Any] = {"step": "train", "device": "cuda:1", "dtype": "bfloat16", "compiled": True}

    def ratio(goal: goals.Goal) -> float | None:
        return 1.5 if goal.quantity == "memory" else found[goal.tokens]

    judged = goals.judge("block", ratio, **where)
    assert [(one["limit"], one["measured"], one["met"]) for one in judged] == [
        (1.25, 1.25, True),
        (1.20, 1.2001, False),
        (1.15, 1.5, False),
    ]
    for change in ({"dtype": "float32"}, {"compiled": False}, {"device": "cpu"}):
        assert goals.judge("block", ratio, **{**where, **change}) == []
    assert goals.judge("model", ratio, **where) == []


def test_attention_goals_are_those_of_pape_with_its_default_kernel() -> None:
    rows = [
        {
            "encoding": name,
            "kernel": kernel,
            "tokens": tokens,
            "inference": {"alone_ratio": ratio, "ratio": 9.0},
            "train": None,
        }
        for name, kernel, tokens, ratio in [
            ("none", "auto", 1025, 9.0),
            ("pape", "triton", 1025, 9.0),
            ("pape", "auto", 1025, 0.99),
            ("pape", "auto", 4097, 0.96),
        ]
    ]
    judged = bench._judged(rows, {"device": "cuda", "dtype": "bfloat16", "compiled": True})
    assert [(one["measured"], one["met"]) for one in judged] == [(0.99, True), (0.96, False)]


def test_figure_has_a_panel_for_each_step() -> None:
    pytest.importorskip("matplotlib")
    result = bench.measure(
        encodings=["none", "rope", "pape"], kernels=["auto", "eager", "flex"], grids=[2, 3], packed=True, batch=1,
        steps=("inference", "train"), **SMALL,
    )  # fmt: skip
    figure = plots.attention_figure(result)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Forward", "Forward and backward"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["no position", "RoPE", "PaPE", "forced: eager"]  # flex ran nothing.
    drawn = [float(y) for line in figure.axes[1].lines[:-1] for y in line.get_ydata()]
    assert sorted(drawn) == sorted(row["train"]["ratio"] for row in result["rows"] if row["train"])


@pytest.mark.parametrize("name", ["ratios.txt", "no/such/folder.png"])
def test_bad_figure_paths_are_refused_before_measuring(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda **_: pytest.fail("measured"))
    assert run_command([*COMMAND, "--plot", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_figure_without_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pape-zoo\[viz\]"):
        plots.check_figure_path(tmp_path / "a.png")


def test_command_prints_tables_reasons_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "new" / "ratios.json", tmp_path / "ratios.png"
    arguments = [*COMMAND, "--encodings", "rope,pape", "--kernels", "auto,dense", "--grids", "2", "--both"]
    assert run_command([*arguments, "--out", str(out), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "attention core, inference, 2 heads of 16" in text and "attention core, train step" in text
    assert "not run with dense: none, rope (2 x 2 + 1): it is for additive scores" in text
    assert "TFLOP/s" in text and "of weights" in text and "memory" not in text and torch.__version__ in text
    assert "no goal of this project is for such a run" in text
    rows = json.loads(out.read_text())["rows"]
    assert [(row["encoding"], row["kernel"]) for row in rows] == [
        (name, kernel) for name in ("none", "rope", "pape") for kernel in ("auto", "dense")
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*COMMAND, "--encodings", "none", "--kernels", "auto", "--grids", "2", "--train", "--json"]
    assert run_command(arguments) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["inference"] is None and row["train"]["ratio"] == 1.0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--encodings", "papa", "unknown encoding"),
        ("--encodings", "sincos", "added once"),
        ("--kernels", "tritn", "did you mean 'triton'"),
        ("--kernels", ",", "no attention kernel is named"),
        ("--grids", "4,257", "grids are whole numbers from 1 to 256"),
        ("--heads", "0", "heads must be at least 1"),
        ("--head-dim", "-1", "head_dim must be at least 1"),
        ("--batch", "0", "batch must be at least 1"),
        ("--error-tokens", "0", "error_tokens must be at least 1"),
        ("--dtype", "int8", "dtype must be one of"),
        ("--device", "tpu", "device must be"),
    ],
)
def test_bad_options_are_one_line(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*COMMAND, "--grids", "2", option, value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_a_kernel_forced_from_outside_is_refused() -> None:
    with use("eager"), pytest.raises(ConfigError, match="forces 'eager'"):
        bench.measure(encodings=["none"], grids=[2], **SMALL)


def test_triton_rows_by_its_interpreter() -> None:
    pytest.importorskip("triton")
    shown = interpreted.run(
        "from zoo.bench.attention import measure\n"
        "rows = measure(encodings=['pape'], kernels=['triton'], grids=[3], heads=2, head_dim=16, device='cpu',\n"
        "               dtype='float16', repeats=1, steps=('inference', 'train'))['rows']\n"
        "errors = [row[step]['errors'] for row in rows for step in ('inference', 'train')]\n"
        "assert rows[1]['train']['runs'] == 'triton, inside', rows[1]\n"
        "assert all(error < 1e-2 for one in errors for error in one.values() if error is not None), errors\n"
        "print('errors', errors)\n"
    )
    assert "'parameters': " in shown


@pytest.mark.gpu
def test_on_cuda_there_is_memory_and_triton_runs() -> None:
    options = {**SMALL, "device": "cuda", "head_dim": 64}
    rows = bench.measure(
        encodings=["pape"], kernels=["auto", "triton"], grids=[14], packed=True, steps=("inference", "train"),
        dtype="bfloat16", **options,
    )["rows"]  # fmt: skip
    for row in rows:
        assert row["refused"] is None
        for step in ("inference", "train"):
            assert row[step]["memory_mib"] > 0 and row[step]["errors"]["output"] < 1e-2
