"""Sweeps: several runs by one recipe, measured, resumable, shared between processes, and summed up in a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_toys import TINY, tiny_settings, write_toys

from zoo.errors import ConfigError, ZooError
from zoo.training import sweep as sweeps
from zoo.training.recipe import load_recipe
from zoo.training.sweep import Run, Sweep, built_in_sweeps, load_sweep, run_sweep, summarise


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


@pytest.fixture
def plan(data: Path, tmp_path: Path) -> Path:
    """A sweep of three settings, one of them of two seeds."""
    settings = tiny_settings(data, tmp_path / "unused", epochs=1)
    for key in ("data", "output", "model", "model_options"):
        settings.pop(key)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    values = {
        "recipe": str(tmp_path / "recipe.yaml"),
        "sizes": [16, 32],
        "settings": {"model_options": TINY},
        "runs": [
            {"name": "rope", "model": "rope-vit-t-imagenette", "seeds": [0, 1], "extend": ["pi"]},
            {
                "name": "pape-m3",
                "model": "pape-vit-t-imagenette",
                "encoding": "pape-linear",
                "encoding_options": {"parabolas": 3},
            },
        ],
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "sweep.yaml"


def result_of(name: str, seed: int, top1: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A results file without the training behind it."""
    about = {"model": "rope-vit-t-imagenette", "model_options": {}, "recipe": "r", "dataset": "toys", "images": 12}
    return {"name": name, **about, "seed": seed, "dtype": "float32", "training": {"epochs": 1}, "top1": top1}


def test_a_sweep_trains_measures_and_resumes(plan: Path, data: Path, tmp_path: Path) -> None:
    sweep, out, said = load_sweep(plan), tmp_path / "out", []
    (out / "rope-1.taken").parent.mkdir()
    (out / "rope-1.taken").touch()  # Another process is at it.
    written = run_sweep(sweep, str(data), out, say=said.append)
    assert [path.name for path in written] == ["rope-0.json", "pape-m3-0.json"]
    result = json.loads((out / "rope-0.json").read_text())
    assert set(result["top1"]) == {"none", "pi"}
    assert set(result["top1"]["none"]) == {"16", "32"} and set(result["top1"]["pi"]) == {"32"}
    assert all(0 <= top <= 100 for table in result["top1"].values() for top in table.values())
    config = json.loads((out / "pape-m3-0" / "config.json").read_text())["model"]
    assert (config["encoding"], config["encoding_options"], config["dim"]) == ("pape-linear", {"parabolas": 3}, 32)
    assert not list(out.glob("*-0.taken"))
    (out / "rope-1.taken").unlink()
    assert [path.name for path in run_sweep(sweep, str(data), out)] == ["rope-1.json"]
    assert run_sweep(sweep, str(data), out) == []
    rows = summarise(out, sweep)
    assert [(row["name"], row["extend"], row["seeds"]) for row in rows] == [
        ("rope", "none", [0, 1]),
        ("rope", "pi", [0]),
        ("pape-m3", "none", [0]),
    ]
    tops = [json.loads((out / f"rope-{seed}.json").read_text())["top1"]["none"]["16"] for seed in (0, 1)]
    assert rows[0]["top1"]["16"]["mean"] == pytest.approx(sum(tops) / 2, abs=0.01)
    assert rows[0]["top1"]["16"]["std"] == pytest.approx(abs(tops[0] - tops[1]) / 2**0.5, abs=0.01)
    assert rows[2]["top1"]["16"]["std"] is None


def test_a_failing_run_does_not_cost_the_others(
    plan: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(sweep: Sweep, run: Run, seed: int, *_: Any) -> dict[str, Any]:
        if run.name == "rope" and seed == 0:
            raise RuntimeError("no\nmemory")
        return result_of(run.name, seed, {"none": {"16": 50.0}})

    monkeypatch.setattr(sweeps, "_train_and_measure", measure)
    said: list[str] = []
    with pytest.raises(ZooError, match="1 runs failed: rope-0"):
        run_sweep(load_sweep(plan), str(data), tmp_path / "out", say=said.append)
    assert "rope-0: failed (RuntimeError: no memory)" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["pape-m3-0.json", "rope-1.json"]


def test_time_and_names_limit_a_sweep(plan: Path, data: Path, tmp_path: Path) -> None:
    sweep = load_sweep(plan)
    assert [f"{run.name}-{seed}" for run, seed in sweep.jobs()] == ["rope-0", "pape-m3-0", "rope-1"]
    assert [f"{run.name}-{seed}" for run, seed in sweep.jobs(["rope"])] == ["rope-0", "rope-1"]
    said: list[str] = []
    assert run_sweep(sweep, str(data), tmp_path / "out", max_minutes=-1, say=said.append) == []
    assert "not started" in said[0]
    with pytest.raises(ConfigError, match="no run 'ropes'; its runs: rope, pape-m3"):
        sweep.jobs(["ropes"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": []}, "list of runs"),
        ({"runs": [{"name": "a"}]}, "key 'model' is missing"),
        ({"runs": [{"name": "a/b", "model": "m"}]}, "letters, digits"),
        ({"runs": [{"name": "a", "model": "m"}] * 2}, "same name"),
        ({"runs": [{"name": "a", "model": "m", "seeds": []}]}, "at least one"),
        ({"runs": [{"name": "a", "model": "m", "seeds": 1}]}, "seeds must be a list"),
        ({"runs": [{"name": "a", "model": "m", "seed": [1]}]}, "did you mean 'seeds'"),
        ({"sizes": ["x"]}, "sizes must be a whole number"),
        ({"recipes": "x"}, "did you mean 'recipe'"),
    ],
)
def test_unusable_sweeps_say_why(plan: Path, change: dict[str, Any], message: str) -> None:
    plan.write_text(yaml.safe_dump({**yaml.safe_load(plan.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        load_sweep(plan)


def test_built_in_sweeps_name_models_and_recipes_that_exist() -> None:
    import zoo
    from zoo.encodings import create
    from zoo.registry import entry

    assert "comparison" in built_in_sweeps()
    with pytest.raises(ConfigError, match="no sweep 'comparisons'"):
        load_sweep("comparisons")
    for name in built_in_sweeps():
        sweep = load_sweep(name)
        load_recipe(sweep.recipe)
        for run in sweep.runs:
            sizes = entry(run.model).new_config()["model"]
            if "coord_dim" in sizes:  # Of decoders it follows from the data: tests/test_reproduce_runs.py.
                continue
            encoding = run.encoding or sizes["encoding"]
            token, attention = create(
                encoding,
                dim=sizes["dim"],
                num_heads=sizes["num_heads"],
                head_dim=sizes["head_dim"],
                coord_dim=2,
                options=run.encoding_options,
            )
            known = (token or attention).extension_methods if "+" not in encoding else ()
            assert set(run.extend) <= set(known), run.name
    assert set(zoo.list_models("*-vit-t-imagenette")) >= {run.model for run in load_sweep("comparison").runs}


def test_summary_refuses_damaged_results(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results"):
        summarise(tmp_path, load_sweep(plan))
    (tmp_path / "rope-0.json").write_text("{")
    with pytest.raises(ConfigError, match="not a results file"):
        summarise(tmp_path, load_sweep(plan))


def test_cli_prints_the_table(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zoo.cli.main import main

    for seed, top in ((0, 50.0), (1, 60.0)):
        result = result_of("rope", seed, {"none": {"16": top, "32": 40.0}, "pi": {"32": 45.0}})
        (tmp_path / f"rope-{seed}.json").write_text(json.dumps(result))
    monkeypatch.setattr(sys, "argv", ["zoo"])
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(plan), "--out", str(tmp_path), "--table"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "| Encoding | Extension | Seeds | 16 | 32 |",
        "| --- | --- | --- | --- | --- |",
        "| rope |  | 2 | 55.0 ± 7.1 | 40.0 ± 0.0 |",
        "| rope | pi | 2 |  | 45.0 ± 0.0 |",
    ]
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(plan), "--out", str(tmp_path)])
    assert stop.value.code == 2 and "--data" in capsys.readouterr().err


def test_the_table_goes_into_records_and_figures(plan: Path, tmp_path: Path) -> None:
    from zoo.card_facts import add_sweep
    from zoo.cards import read_record
    from zoo.curves import chosen, read_curves

    training = {"epochs": 1, "device": "a GPU", "duration_s": 3.0, "date": "2026-01-01", "final_train_loss": 1.23456}
    for seed, top in ((0, 50.0), (1, 60.0)):
        result = result_of("rope", seed, {"none": {"16": top, "32": 40.0}, "pi": {"32": 45.0}})
        (tmp_path / f"rope-{seed}.json").write_text(json.dumps({**result, "training": training}))
    table = {"sweep": "toys", "rows": summarise(tmp_path, load_sweep(plan))}
    rope, pape = read_record("rope-vit-t-imagenette"), read_record("pape-vit-t-imagenette")
    assert rope is not None and pape is not None
    filled = add_sweep(rope, table)
    items = [(row["size"], row.get("extend"), row["value"], row["seeds"]) for row in filled["evaluation"]]
    assert items == [(16, None, 55.0, 2), (32, None, 40.0, 2), (32, "pi", 45.0, 2)]
    assert filled["evaluation"][0]["std"] == pytest.approx(7.07) and "toys" in filled["evaluation"][0]["command"]
    assert (filled["training"]["epochs"], filled["training"]["final_train_loss"]) == (1, 1.2346)
    compared = add_sweep(pape, table)
    assert compared["evaluation"] == pape["evaluation"]  # Those of its own weights.
    assert compared["comparison"][1] == {"name": "rope", "note": "1 epochs, mean of 2 seeds, pi", "sizes": {32: 45.0}}
    alibi = read_record("alibi-vit-t-imagenette")
    assert alibi is not None
    with pytest.raises(ConfigError, match="no results of alibi-vit-t-imagenette"):
        add_sweep(alibi, table)
    with pytest.raises(ConfigError, match="not the table of a sweep"):
        add_sweep(alibi, {"rows": [{"name": "x"}]})

    (tmp_path / "table.json").write_text(json.dumps(table))
    curves = read_curves([tmp_path / "table.json"])
    assert {curve.name: curve.points for curve in curves} == {"rope": {16: 55.0, 32: 40.0}, "rope with pi": {32: 45.0}}
    assert [curve.name for curve in chosen(curves, "rope")] == ["rope"]
