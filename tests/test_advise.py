"""`zoo advise`: a ranked list for every kind of answer, from measurements that are read and rules that are data."""

from __future__ import annotations

import copy
import io
import json
import shlex

import pytest

import zoo
from zoo import advice, registry
from zoo.advice import measurements, rules
from zoo.advice.candidates import FOLD_RADIUS, candidates, properties
from zoo.advice.rules import check_answers, check_rules, load_rules
from zoo.cards import read_record
from zoo.cli.main import main
from zoo.encodings.quadratic import SAFE_RADIUS_16_BIT
from zoo.errors import ConfigError
from zoo.training.recipe import load_recipe, parse_overrides

TOKENS = list(load_rules()["tokens"])


def names(found, part="ranked"):
    return [one["encoding"] for one in found[part]]


def of(found, encoding):
    return next(one for one in [*found["ranked"], *found["excluded"]] if one["encoding"] == encoding)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", ["fixed", "changing"])
def test_every_encoding_is_ranked_or_excluded_with_a_reason(tokens, size):
    found = zoo.advise(tokens, size=size)
    assert sorted(names(found) + names(found, "excluded")) == sorted(candidates())
    assert set(zoo.encodings()) <= set(candidates())
    assert [one["rank"] for one in found["ranked"]] == list(range(1, len(found["ranked"]) + 1))
    points = [one["points"] for one in found["ranked"]]
    assert points == sorted(points, reverse=True)
    for one in found["excluded"]:
        assert one["reasons"]
    for one in [*found["ranked"], *found["excluded"]]:
        for reason in one["reasons"]:
            assert reason["text"] and "{" not in reason["text"]
            assert reason["source"]["kind"] in rules.SOURCES and reason["source"]["ref"]
    json.dumps(found, allow_nan=False)


def test_measurements_decide_the_order_of_grids():
    """The gap to the best of the default settings, recomputed from the file."""
    found = zoo.advise("grid")
    rows = [row for row in measurements.comparison() if row["extend"] == "none"]
    trained = {
        row["model_options"].get("encoding", registry.entry(row["model"]).encoding): row["top1"]["112"]["mean"]
        for row in rows
        if "encoding_options" not in row["model_options"]
    }
    best = max(trained[name] for name in names(found) if name in trained)
    for one in found["ranked"]:
        counted = [result for result in one["measured"] if result["counts"]]
        if one["encoding"] in trained:
            assert counted[0]["gap"] == pytest.approx(best - trained[one["encoding"]], abs=0.006)
            total = sum(reason["points"] for reason in one["reasons"]) - counted[0]["gap"]
            assert one["points"] == pytest.approx(total, abs=0.011)
        else:
            assert not counted


def test_another_measurement_is_another_order(monkeypatch):
    """Nothing is typed in: a file in which rope is best at the training size puts rope first."""
    changed = copy.deepcopy(measurements.comparison())
    for row in changed:
        if row["name"] == "rope" and row["extend"] == "none":
            row["top1"]["112"]["mean"] = 99.0
    monkeypatch.setattr(measurements, "comparison", lambda: changed)
    measurements.tables.cache_clear()
    try:
        assert names(zoo.advise("grid"))[0] == "rope"
    finally:
        measurements.tables.cache_clear()


def test_larger_sizes_take_the_best_extension():
    small, large = zoo.advise("grid", size="changing", times=2), zoo.advise("grid", size="changing", times=5)
    assert of(large, "rope")["extend"] == "yarn"
    assert "--extend yarn" in of(large, "rope")["commands"][1]
    assert of(large, "pape")["extend"] is None
    gap = [of(found, "pape")["measured"][0]["gap"] for found in (small, large)]
    assert gap[0] < gap[1]
    assert of(zoo.advise("grid", times=5), "rope")["extend"] is None


def test_options_that_were_tried_are_shown_and_do_not_count():
    pape = of(zoo.advise("grid"), "pape")
    tried = {one["options"]["parabolas"]: one for one in pape["options_tried"]}
    assert set(tried) == {2, 8, 16, 100} and tried[2]["mean"] != pape["measured"][0]["mean"]


def test_rotation_leaves_what_is_invariant():
    found = zoo.advise("points", rotation="invariant")
    assert names(found)[0] == "pape-ri" and set(names(found)) == {"pape-ri", "alibi", "kerple"}
    assert of(found, "pape-ri")["measured"][0]["metric"] == "top1_so3"
    models = found["ranked"][0]["models"]
    assert [one["name"] for one in models][:1] == ["pape-ri-point-vit-n-modelnet10"]
    for one in found["ranked"]:  # Networks whose features are invariant too.
        assert "pape-ri-point-vit-n-modelnet10" in one["commands"][0]


def test_axes_exclude():
    for tokens in ("line", "space-time", "points", "mixed"):
        out = names(zoo.advise(tokens), "excluded")
        assert {"lookhere", "golden-rope", "spiral-rope"} <= set(out)
    assert "learned" in names(zoo.advise("points"), "excluded")
    assert "lookhere" in names(zoo.advise("grid"))


def test_inference_leaves_what_has_weights():
    for tokens in TOKENS:
        for one in zoo.advise(tokens, phase="inference")["ranked"]:
            assert one["models"][0]["weights"] != "none"
            assert all("zoo train" not in command for command in one["commands"])


def test_plain_kernels_leave_no_scores():
    found = zoo.advise("grid", kernel="plain", side=64)
    assert {"alibi", "lookhere", "kerple", "table", "cpb"} <= set(names(found, "excluded"))
    assert "pape" in names(found)
    assert "pape" in names(zoo.advise("grid", kernel="plain", side=92), "excluded")
    assert FOLD_RADIUS == SAFE_RADIUS_16_BIT
    for tokens, side in (("line", 129), ("grid", 91), ("space-time", 74)):
        for count, left in ((side, True), (side + 1, False)):
            assert ("pape" in names(zoo.advise(tokens, kernel="plain", side=count))) == left


def test_absolute_encodings_gain_with_landmarks():
    without, with_ = (of(zoo.advise("grid", landmarks=answer), "sincos")["points"] for answer in ("no", "yes"))
    assert with_ > without


def test_other_recipes_are_left_aside():
    """Eighteen epochs of one do not compare with twelve of the others."""
    table = measurements.tables()["simdrive"]
    epochs = {name: read_record(name)["training"]["epochs"] for name in table["left_aside"]}
    used = {read_record(row["model"])["training"]["epochs"] for row in table["rows"]}
    assert "pape-fusion-n-simdrive" in epochs and len(used) == 1 and epochs["pape-fusion-n-simdrive"] not in used


def test_missing_measurements_are_said():
    notes = zoo.advise("line")["notes"]
    assert bool(any(table["rows"] for table in zoo.advise("line")["tables"])) == ("no measurements" not in notes[0])
    mrope = of(zoo.advise("space-time"), "mrope")
    assert mrope["measured"] == [] and any("without a measurement" in note for note in zoo.advise("points")["notes"])


def test_controls_are_not_recommended():
    for tokens in TOKENS:
        assert {"none", "rope-1d"} <= set(names(zoo.advise(tokens), "excluded"))


@pytest.mark.parametrize("tokens", TOKENS)
def test_commands_and_models_exist(tokens):
    for one in zoo.advise(tokens, size="changing")["ranked"]:
        for model in one["models"]:
            assert registry.entry(model["name"]).encoding == one["encoding"]
        words = shlex.split(one["commands"][0])
        assert words[:2] == ["zoo", "train"]
        given = dict(zip(words[3::2], words[4::2], strict=False))
        settings = [value for flag, value in zip(words[3:], words[4:], strict=False) if flag == "--set"]
        model = {"model": given["--model"]} if "--model" in given else {}
        recipe = load_recipe(words[2], {**parse_overrides(settings), **model})
        found = recipe.model_options.get("encoding", registry.entry(recipe.model).encoding)
        assert found == one["encoding"]


def test_bad_answers_are_named():
    for given, words in (
        ({"tokens": "gird"}, "tokens must be one of line, grid"),
        ({"tokens": "grid", "size": "big"}, "size must be one of fixed, changing"),
        ({"tokens": "grid", "times": 0.5}, "times must be a number from 1"),
        ({"tokens": "grid", "side": True}, "side must be a number"),
    ):
        with pytest.raises(ConfigError, match=words):
            zoo.advise(**given)
    with pytest.raises(ConfigError, match="no question is called 'colour'"):
        check_answers({"tokens": "grid", "colour": "red"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda rule: rule.pop("reason"), "missing or unknown reason"),
        (lambda rule: rule.update(weight=1), "missing or unknown weight"),
        (lambda rule: rule.update(points=1), "either exclude or have points"),
        (lambda rule: rule["source"].update(kind="hearsay"), "a source has a kind"),
        (lambda rule: rule["source"].update(kind="measured", ref="nowhere"), "no table 'nowhere'"),
        (lambda rule: rule.update(answers={"tokens": "cubes"}), "no question has the answer"),
    ],
)
def test_rules_are_checked(change, words):
    made = copy.deepcopy(load_rules())
    change(made["rules"][0])
    with pytest.raises(ConfigError, match=words):
        check_rules(made)


def test_rules_ask_for_properties_that_there_are():
    known = properties("pape", check_answers({"tokens": "grid"})[0])
    for rule in load_rules()["rules"]:
        assert set(rule["encoding"]) <= set(known), rule["id"]


def test_a_page_has_what_it_takes():
    page = advice.page_data()
    assert set(page["properties"]) == set(TOKENS) and page["properties"]["grid"]["rope"]["ladder"] is True
    assert page["tables"]["imagenette"]["rows"] and page["rules"] and page["questions"]
    json.dumps(page, allow_nan=False)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_command(capsys):
    code, out, err = run(capsys, "advise", "--tokens", "grid", "--size", "changing", "--landmarks", "no", "--top", "2")
    assert (code, err) == (0, "")
    assert out.startswith("For tokens grid, size changing, landmarks no (assumed: times,")
    assert "\n1. " in out and "\n2. " in out and "\n3. " not in out and "\nExcluded:\n" in out
    code, out, err = run(capsys, "advise", "--tokens", "grid", "--json")
    assert json.loads(out) == json.loads(json.dumps(zoo.advise("grid")))


def test_command_without_a_terminal_does_not_ask(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("grid\n"))
    code, out, err = run(capsys, "advise")
    assert (code, out) == (2, "") and err.startswith("error: say how the tokens lie: --tokens line")


def test_command_asks_in_a_terminal(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    answers = "cubes\npoints\n\n\ninvariant\n\n\n\n\n"  # `times` is only asked of changing sizes.
    monkeypatch.setattr("sys.stdin", Terminal(answers))
    code, out, err = run(capsys, "advise", "--json")
    assert code == 0 and "one of: line, grid" in err and "How do the tokens lie?" in err
    found = json.loads(out)
    assert found["answers"]["rotation"] == "invariant" and found["ranked"][0]["encoding"] == "pape-ri"
