"""`zoo reproduce`: the list, the table with the paper's numbers, the figure, the way into cards, what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from card_records import folder_of
from reproduce_toys import ABOUT, both, write_result, write_sweep

from zoo import cards
from zoo.card_facts import add_sweep
from zoo.cli.main import main
from zoo.errors import ConfigError
from zoo.reproduce import reproduce, reproductions, write_report
from zoo.training.sweep_plan import load_sweep
from zoo.training.sweep_results import gather, summarise

ROOT = Path(__file__).resolve().parent.parent


def said(arguments: list[Any], capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert stop.value.code == code, captured.err
    return captured.out, captured.err


def filled(folder: Path) -> Path:
    """Results of the toy sweep: both seeds of rope, one with fewer epochs for pape."""
    write_result(folder, "rope", 0, both({"none": [80.0, 10.0], "pi": [20.0]}))
    write_result(folder, "rope", 1, both({"none": [90.0, 30.0]}))
    short = {"epochs": 2, "device": "a GPU", "duration_s": 3.0, "date": "2026-01-01", "final_train_loss": 0.5}
    write_result(folder, "pape", 0, both({"none": [99.0, 98.0]}), training=short)
    return folder


def test_the_list_names_papers_data_licences_runs_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(said(["reproduce", "--json"], capsys)[0])
    found = {row["name"]: row for row in listed}
    names = {"index", "jsb", "jsb-roll", "shakespeare", "hg38", "text2d-copy", "text2d-column", "picture-questions"}
    assert set(found) == names | {"comparison"} == set(reproductions())
    assert found["index"]["trainings"] == 10 and found["index"]["data"] is None
    assert "public domain" in found["jsb"]["licence"] and "2509.10534" in found["jsb"]["reproduces"]
    text = said(["reproduce"], capsys)[0]
    for row in listed:
        assert row["reproduces"] in text and (row["data"] is None or row["licence"])
    assert text.count("time:     not measured") == sum(row["minutes"] is None for row in listed)


def test_the_papers_numbers_are_those_published() -> None:
    papers = {
        (name, run.name): (run.paper.value, run.paper.std, run.paper.comparable)
        for name, sweep in reproductions().items()
        for run in sweep.runs
        if run.paper is not None and run.paper.value is not None
    }
    assert papers == {
        ("index", "rope"): (11.16, 2.45, True),
        ("index", "pope"): (94.82, 2.91, True),
        ("index", "alibi"): (27.35, None, True),
        ("index", "learned"): (10.08, None, True),
        ("jsb", "rope"): (0.5081, None, True),
        ("jsb", "pope"): (0.4889, None, True),
        ("hg38", "rope"): (4.217, None, False),
        ("hg38", "pope"): (4.152, None, False),
    }


def test_the_table_has_our_number_the_papers_and_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, folder = write_sweep(tmp_path, settings={}), filled(tmp_path / "out")
    (folder / "rope-1.json").rename(tmp_path / "later.json")
    out, err = said(["reproduce", plan, "--table", "--out", folder], capsys)
    lines = out.splitlines()
    assert lines[0] == "# toy: a paper, table 1" and "Without a fault (%), larger is better" in out
    start = lines.index("| Setting | Extension | n | 2 | 4 | Paper | Remarks |")
    assert lines[start + 2 : start + 5] == [
        "| rope |  | 1 | 80.0 | 10.0 | 90.5 ± 1.25 | 1 of 2 seeds |",
        "| rope | pi | 1 |  | 20.0 |  | one seed |",
        "| pape |  | 1 | 99.0 | 98.0 | 99 | one seed; 2 of 8 epochs; the paper's number does not compare; "
        "paper: other lines |",
    ]
    assert "NLL of a token (nats), smaller is better" in out and "| rope |  | 1 | 0.800 | 0.100 |" in lines
    assert "Difference in setting: everything is smaller" in lines
    assert "Runs done: 2, in 1.5 minutes one after the other (training and measuring; a GPU)." in lines
    assert "Not done: rope-1." in lines
    assert (folder / "table.md").read_text() == out and "plot.png" in err
    (tmp_path / "later.json").rename(folder / "rope-1.json")
    rows = json.loads(said(["reproduce", plan, "--table", "--out", folder, "--json"], capsys)[0])["rows"]
    assert rows[0]["exact"]["2"] == {"mean": 85.0, "std": 7.07, "runs": {"0": 80.0, "1": 90.0}}
    again = (folder / "table.md").read_text()
    assert "| rope |  | 2 | 85.0 ± 7.1 | 20.0 ± 14.1 | 90.5 ± 1.25 |  |" in again and "Not done" not in again


def test_the_figure_has_means_bands_the_papers_number_and_the_size_of_training(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    from zoo.reproduce_figure import figure_of
    from zoo.viz import COLOURS

    sweep = load_sweep(write_sweep(tmp_path, settings={}))
    (axes,) = figure_of(sweep, gather(filled(tmp_path / "out"), sweep), "toy").axes
    drawn = {line.get_label(): line for line in axes.get_lines()}
    assert {"RoPE", "RoPE with pi", "PaPE", "paper"} < set(drawn)
    assert list(drawn["RoPE"].get_xdata()) == [2, 4] and list(drawn["RoPE"].get_ydata()) == [85.0, 20.0]
    assert set(drawn["paper"].get_ydata()) == {90.5} and drawn["paper"].get_color() == COLOURS[0]
    assert not any(99.0 in line.get_ydata() and line.get_label() != "PaPE" for line in axes.get_lines())
    assert any(list(line.get_xdata()) == [2, 2] for line in axes.get_lines())  # Trained there.
    (band,) = axes.collections
    assert {tuple(point) for point in band.get_paths()[0].vertices} >= {(2, 80), (2, 90), (4, 10), (4, 30)}
    assert to_hex(band.get_facecolor()[0]).upper() == COLOURS[0]
    assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "4"]
    chosen = load_sweep(write_sweep(tmp_path, settings={}, about={**ABOUT, "plot": ["rope with pi"]}))
    (few,) = figure_of(chosen, gather(tmp_path / "out", chosen), "toy").axes
    assert "RoPE with pi" in few.get_legend_handles_labels()[1] and "RoPE" not in few.get_legend_handles_labels()[1]
    assert axes.get_xlabel() == "letters of a line" and axes.get_ylabel() == "without a fault (%)"


def test_one_size_needs_no_figure_and_none_is_made_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, folder = load_sweep(write_sweep(tmp_path, settings={})), filled(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    made = write_report("toy", sweep, folder)
    assert made.note is not None and "pip install 'pape-zoo[viz]'" in made.note
    assert [path.name for path in made.files] == ["table.md", "results.json"]
    write_result(tmp_path / "one", "rope", 0, {"exact": {"none": {"2": 50.0}}, "nll": {"none": {"2": 1.0}}})
    assert write_report("toy", sweep, tmp_path / "one").note is None


def test_what_is_missing_is_named_with_its_source_and_licence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["--data", tmp_path], ["--data", tmp_path / "absent"]):
        _, err = said(["reproduce", "jsb", "--out", tmp_path / "out", *arguments], capsys, 2)
        assert "jsb_chorales.npz" in err and "czhuang/JSB-Chorales-dataset" in err and "public domain" in err
    assert "leave --data out" in said(["reproduce", "index", "--data", tmp_path], capsys, 2)[1]
    assert "no sweep 'indx'" in said(["reproduce", "indx"], capsys, 2)[1]
    assert "no run 'ropes'" in said(["reproduce", "index", "--only", "ropes"], capsys, 2)[1]
    assert "no results" in said(["reproduce", "index", "--table", "--out", tmp_path / "out"], capsys, 2)[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": []}, "at least one"),
        ({"metrics": ["exact", "exact"]}, "different names"),
        ({"about": {**ABOUT, "needs": {"files": ["a"]}}}, "about: needs: key 'source' is missing"),
        ({"about": {**ABOUT, "plot": ["rop"]}}, "no run 'rop'"),
        ({"runs": [{"name": "a", "model": "m", "paper": {"value": "much"}}]}, "value must be a number"),
    ],
)
def test_unusable_sweeps_say_why(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(write_sweep(tmp_path, **change))


def test_results_of_other_settings_or_of_a_dry_run_do_not_mix(tmp_path: Path) -> None:
    sweep, folder = load_sweep(write_sweep(tmp_path, settings={})), tmp_path / "out"
    write_result(folder, "rope", 0, both({"none": [1.0, 2.0]}), settings={"epochs": 3})
    with pytest.raises(ConfigError, match="other settings for rope"):
        gather(folder, sweep)
    write_result(folder, "rope", 0, both({"none": [1.0, 2.0]}), dry_run=True)
    with pytest.raises(ConfigError, match="of a dry run"):
        gather(folder, sweep)
    assert gather(folder, sweep.dry_sweep())[0].seeds == [0]
    with pytest.raises(ConfigError, match="metrics are nll, nll_frame, accuracy, exact; not top1"):
        reproduce(str(write_sweep(tmp_path, metrics=["top1"])), out=tmp_path / "new")


def test_older_results_of_the_image_comparison_make_its_report(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "docs" / "comparison", tmp_path / "comparison")
    made = reproduce("comparison", out=folder, table_only=True)
    assert "| rope |  | 3 | 78.7 ± 0.2 | 78.3 ± 0.1 |" in made.table and "Not done" not in made.table
    assert "paper: 80.6 / 81.3 / 74.9 at 224 / 512 / 1024 px on ImageNet-1K" in made.table
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert len(rows) == len(json.loads((ROOT / "docs" / "comparison.json").read_text())["rows"])


def test_results_of_decoders_go_into_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rope-decoder-n-index"
    folder_of([name], tmp_path, monkeypatch)
    plan = write_sweep(tmp_path, settings={})
    write_report("toy", load_sweep(plan), filled(tmp_path / "out"))
    table = json.loads((tmp_path / "out" / "results.json").read_text())
    record = cards.read_record(name)
    assert record is not None
    cards.write_record(name, add_sweep(record, table))
    written = cards.read_record(name)
    assert written is not None
    items = {(i["metric"], i["size"], i.get("extend")): i for i in written["evaluation"]}
    assert len(items) == 6 and items["exact", 4, "pi"]["value"] == 20.0
    first = items["exact", 2, None]
    assert (first["value"], first["std"], first["runs"]) == (85.0, 7.07, {0: 80.0, 1: 90.0})
    assert (first["split"], first["condition"]) == ("test", "2 columns")
    assert first["command"] == "zoo reproduce toy.yaml --out OUT --only rope"
    assert "85.0 ± 7.1" in cards.card(name).text

    published = {**record, "weights": {"source": "embedded"}}
    compared = add_sweep(published, table)["comparison"]
    assert [row["name"] for row in compared] == ["rope", "rope", "pape"] and "sizes" not in compared[0]
    with pytest.raises(ConfigError, match="dry run"):
        add_sweep(record, {**table, "dry_run": True})
    other = [{**row, "settings": {"dataset_options": {}}} for row in table["rows"]]
    with pytest.raises(ConfigError, match="no results of rope-decoder-n-index with its own options"):
        add_sweep(record, {**table, "rows": other})
    with pytest.raises(ConfigError, match="no metric"):
        add_sweep({**record, "name": "rope-vit-t-imagenette"}, table)


def test_rows_without_runs_are_as_before(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, settings={}))
    row = summarise(filled(tmp_path / "out"), sweep)[0]
    assert row["exact"] == {"2": {"mean": 85.0, "std": 7.07}, "4": {"mean": 20.0, "std": 14.14}}
