"""What `zoo reproduce` measured, in the advice and on the page of measurements: whatever folders there are."""

from __future__ import annotations

import copy
import json
import types

import pytest

import zoo
from zoo import registry
from zoo.advice import measurements
from zoo.errors import ConfigError
from zoo.site import reproductions
from zoo.site.measurements_page import measurements_page

RESULTS = measurements.reproduced()


def of(found, encoding):
    return next(one for one in found["ranked"] if one["encoding"] == encoding)


@pytest.fixture
def other(monkeypatch):
    """Puts other results in place of ours."""

    def put(results):
        monkeypatch.setattr(measurements, "reproduced", lambda: results)
        monkeypatch.setattr(reproductions, "reproduced", lambda: results)
        measurements.tables.cache_clear()

    yield put
    measurements.tables.cache_clear()


def test_likelihoods_decide_the_order_of_lines():
    """Gaps in percent of the best likelihood, recomputed from the file."""
    rows = [row for row in RESULTS["shakespeare"] if row["extend"] == "none" and not row["model_options"]]
    found = zoo.advise("line")
    measured = {registry.entry(row["model"]).encoding: row["nll"]["256"]["mean"] for row in rows}
    best = min(value for name, value in measured.items() if name != "none")
    for name in set(measured) - {"none"}:
        counted = [one for one in of(found, name)["measured"] if one["counts"]]
        assert [one["table"] for one in counted] == ["shakespeare"]
        assert counted[0]["gap"] == pytest.approx(100 * (measured[name] / best - 1), abs=0.006)
    assert not any("no measurements" in note for note in found["notes"])
    assert {one["table"] for one in of(found, "rope")["measured"]} > {"shakespeare", "jsb", "hg38"}


def test_extensions_of_longer_lines():
    found = zoo.advise("line", size="changing", times=10)
    assert of(found, "rope")["extend"] == "yarn"
    yarn = next(row for row in RESULTS["shakespeare"] if row["extend"] == "yarn")
    means = [number["mean"] for number in yarn["nll"].values()]
    assert of(found, "rope")["measured"][0]["mean"] == pytest.approx(sum(means) / len(means), abs=1e-3)


def test_other_ids_are_options():
    tried = [one for one in of(zoo.advise("line"), "rope")["options_tried"] if one["table"] == "text2d-copy"]
    assert [one["options"] for one in tried] == [{"positions": "rows"}]
    mixed = zoo.advise("mixed")
    assert any(one["table"] == "picture-questions" for one in of(mixed, "mrope")["measured"])
    options = [one["options"] for one in of(mixed, "rope")["options_tried"]]
    assert {"scheme": "count"} in options and {"scheme": "v2pe"} in options


def test_what_was_not_run_is_said_until_there_is_a_folder(other):
    titles = {table["id"]: table["title"] for table in measurements.tables().values()}
    left = {name: rows for name, rows in RESULTS.items() if name != "jsb"}
    other(left)
    note = f"Not measured so far: {titles['jsb']}."
    assert note in zoo.advise("line")["notes"] and reproductions.not_measured().count("jsb") == 1
    assert 'id="reproduced-jsb-heading"' not in measurements_page()
    other({**left, "jsb": RESULTS["jsb"]})
    assert note not in zoo.advise("line")["notes"] and "jsb" not in reproductions.not_measured()


def test_spread_is_in_the_unit_of_the_gaps(other):
    before = next(note for note in zoo.advise("line")["notes"] if "within the spread" in note)
    doubled = copy.deepcopy(RESULTS)
    for row in doubled["shakespeare"]:  # Twice as many nats everywhere is the same in percent.
        for number in row["nll"].values():
            number["mean"] *= 2
            number["std"] = None if number["std"] is None else 2 * number["std"]
    other(doubled)
    assert before in zoo.advise("line")["notes"]


def test_every_number_is_on_the_page():
    text = measurements_page()
    for name, rows in RESULTS.items():
        metric, digits = ("nll", 3) if "nll" in rows[0] else ("accuracy", 1)
        metric = {"jsb-roll": "nll_frame", "text2d-copy": "exact", "text2d-column": "exact"}.get(name, metric)
        section = text.split(f'id="reproduced-{name}-heading"')[1].split("<h3")[0]
        for row in rows:
            for number in row[metric].values():
                assert f">{reproductions.number(number, digits)}</td>" in section, (name, row["name"])


def test_a_table_that_no_sweep_is_of_is_shown_too(other):
    other({"mine": RESULTS["hg38"]})
    assert "docs/reproduce/mine" in measurements_page()


@pytest.mark.parametrize("text", ["{", '{"rows": 1}', "[]"])
def test_damaged_results_are_named(text, tmp_path, monkeypatch):
    folder = tmp_path / "hub_cards"
    (folder / "reproduce" / "jsb").mkdir(parents=True)
    (folder / "reproduce" / "jsb" / "results.json").write_text(text)
    monkeypatch.setattr(measurements.importlib, "import_module", lambda name: types.SimpleNamespace(__path__=[folder]))
    measurements.reproduced.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"cannot read .*results.json"):
            measurements.reproduced()
    finally:
        measurements.reproduced.cache_clear()


def test_results_without_their_numbers_are_named(other):
    rows = json.loads(json.dumps(RESULTS["jsb"]))
    del rows[0]["nll"]
    other({"jsb": rows})
    with pytest.raises(ConfigError, match="reproduce/jsb/results.json is not as it should be"):
        reproductions.reproductions()
