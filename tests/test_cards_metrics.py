"""Cards of detectors and event models: seeds, comparisons, the form the Hub reads, and the way from `zoo eval`."""

from __future__ import annotations

import json
import re

import pytest
from card_records import (
    CASES,
    CLASSIFIED,
    DETECTED,
    EVENT_DETECTOR,
    EVENT_VIT,
    IMAGE_DETECTOR,
    NAMES,
    folder_of,
    front_matter,
    publish,
    results,
    tables,
    with_seeds,
)
from detection_toys import toy, write_boxes

import zoo
from zoo import card_facts, cards
from zoo.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Cards without numbers of the three kinds of models."""
    folder_of(NAMES, tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def published(monkeypatch, folder):
    """The same, as if their weights came with the package."""
    publish(NAMES, monkeypatch)
    return folder


# ---- seeds


@pytest.mark.parametrize(("name", "base"), CASES)
def test_seeds_become_mean_and_standard_deviation(folder, name, base):
    record = with_seeds(name, base, (2, 0, 1))
    first = record["evaluation"][0]
    main_metric = {"detection": "map", "classification": "top1"}[base["task"]]
    middle = round(base["results"][0][main_metric], 2) + 1
    assert (first["metric"], first["value"], first["std"], first["seeds"]) == (main_metric, middle, 1.0, 3)
    assert first["runs"] == {0: middle - 1, 1: middle, 2: middle + 1}
    assert first["command"] == "zoo eval local-dir:OUT --data DIR --split test"
    cards.write_record(name, record)
    assert cards.read_record(name) == record
    text = cards.write_card(name).read_text()
    assert "| Metric (%) | Seed 0 | Seed 1 | Seed 2 | Mean ± standard deviation |" in text
    assert f"| {middle - 1:.1f} | {middle:.1f} | {middle + 1:.1f} | {middle:.1f} ± 1.0 |" in text
    assert "test split, 12 " in text and "in float32 on a processor, measured by us:" in text
    assert ("pictures" if name == IMAGE_DETECTOR else "samples") in text.split("test split, 12 ")[1][:10]


def test_a_seed_measured_again_replaces_its_number(folder):
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    record = card_facts.add_evaluation(record, results(DETECTED, IMAGE_DETECTOR, 1, map=57.0))
    assert record["evaluation"][0]["runs"] == {0: 50.0, 1: 57.0, 2: 52.0}
    assert record["evaluation"][0]["value"] == 53.0
    alone = card_facts.add_evaluation(cards.read_record(IMAGE_DETECTOR), results(DETECTED, IMAGE_DETECTOR, 4))
    assert alone["evaluation"][0]["runs"] == {4: 50.0} and "std" not in alone["evaluation"][0]
    again = card_facts.add_evaluation(alone, results(DETECTED, IMAGE_DETECTOR, 4, device="another"))
    assert {item["device"] for item in again["evaluation"]} == {"another"}


def test_results_of_the_published_name_are_of_the_seed_of_its_training(folder):
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    own = results(DETECTED, IMAGE_DETECTOR, map=49.0) | {"name": IMAGE_DETECTOR}
    assert record["training"]["seed"] == 0
    assert card_facts.add_evaluation(record, own)["evaluation"][0]["runs"] == {0: 49.0, 1: 51.0, 2: 52.0}


@pytest.mark.parametrize("change", [{"device": "another"}, {"dtype": "bfloat16"}, {"images": 11}])
def test_seeds_measured_in_another_way_are_refused(folder, change):
    record = with_seeds(IMAGE_DETECTOR, DETECTED, (0, 1))
    with pytest.raises(zoo.ConfigError, match=f"{next(iter(change))} .* the other seeds were measured with"):
        card_facts.add_evaluation(record, results(DETECTED, IMAGE_DETECTOR, 2, **change))


def test_a_number_without_a_seed_is_shown_as_such(folder):
    record = card_facts.add_evaluation(cards.read_record(EVENT_VIT), results(CLASSIFIED, EVENT_VIT))
    cards.write_record(EVENT_VIT, record)
    assert "| Metric (%) | Value |\n| --- | --- |\n| top-1 | 90.0 |" in zoo.card(EVENT_VIT).text


# ---- comparison


@pytest.mark.parametrize(("name", "base"), CASES)
def test_other_encodings_stand_in_one_table(folder, name, base):
    record = with_seeds(name, base)
    rope, none = (name.replace("pape", other) for other in ("rope", "none"))
    record = card_facts.add_evaluation(record, results(base, rope, 0))
    record = card_facts.add_evaluation(record, results(base, rope, 1))
    record = card_facts.add_evaluation(record, results(base, none, 0))
    record = card_facts.add_evaluation(record, results(base, name, 0), "from scratch")
    assert [item["name"] for item in record["comparison"]] == [rope, none, name]
    assert not any(
        number["metric"].startswith("map/") for item in record["comparison"] for number in item["evaluation"]
    )
    cards.write_record(name, record)
    section = zoo.card(name).text.split("## Comparison")[1].split("## Intended")[0]
    ((head, _, *rows),) = tables(section)
    assert [cell.strip() for cell in head][:2] == ["Model", "Seeds"]
    cells = [[cell.strip() for cell in row[:2]] for row in rows]
    assert cells == [[name, "0, 1, 2"], [rope, "0, 1"], [none, "0"], [f"{name} (from scratch)", "0"]]
    for part in ("Toys (data set `toys`), test split, 12 ", "on a processor", "`zoo eval local-dir:OUT --data DIR"):
        assert part in section


def test_numbers_of_another_device_stand_in_a_table_of_their_own(folder):
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    other = IMAGE_DETECTOR.replace("pape", "rope")
    record = card_facts.add_evaluation(record, results(DETECTED, other, 0))
    record = card_facts.add_evaluation(record, results(DETECTED, other, 0, device="another"), "elsewhere")
    cards.write_record(IMAGE_DETECTOR, record)
    section = zoo.card(IMAGE_DETECTOR).text.split("## Comparison")[1].split("## Intended")[0]
    assert [len(rows) - 2 for rows in tables(section)] == [2, 1]
    assert "on a processor" in section and "on another" in section


# ---- the Hub


@pytest.mark.parametrize(
    ("name", "base", "pipeline", "task", "types"),
    [
        (IMAGE_DETECTOR, DETECTED, "object-detection", "object-detection", ["mAP", "AP50", "AP75", "AR", "mAP", "mAP"]),
        (EVENT_DETECTOR, DETECTED, None, "other", ["mAP", "AP50", "AP75", "AR", "mAP", "mAP"]),
        (EVENT_VIT, CLASSIFIED, None, "other", ["accuracy"]),
    ],
)
def test_the_hub_library_reads_numbers_of_the_seed_of_the_weights(published, name, base, pipeline, task, types):
    from huggingface_hub import ModelCard

    cards.write_record(name, with_seeds(name, base))
    data = ModelCard(zoo.card(name).text).data
    assert data.pipeline_tag == pipeline
    assert [item.task_type for item in data.eval_results] == [task] * len(types)
    assert [item.metric_type for item in data.eval_results] == types
    first = data.eval_results[0]
    assert first.metric_value == (50.0 if base is DETECTED else 90.0)  # Seed 0, not the mean.
    assert first.metric_args["seed"] == 0 and first.metric_args["device"] == "a processor"
    assert (first.dataset_name, first.dataset_type, first.dataset_split) == ("Toys", "toys", "test")
    assert "Seed 0 (these weights)" in zoo.card(name).text
    assert ("event-camera" in data.tags) == (pipeline is None)
    record = (published / name / "record.yaml").read_text()
    assert "&id" not in record and "&id" not in zoo.card(name).text  # Easier to read and to edit.


def test_no_index_where_the_seed_of_the_weights_was_not_measured_or_there_are_none(published, monkeypatch):
    cards.write_record(IMAGE_DETECTOR, with_seeds(IMAGE_DETECTOR, DETECTED, (1, 2)))
    text = zoo.card(IMAGE_DETECTOR).text
    assert "model-index" not in front_matter(text)
    assert "| Metric (%) | Seed 1 | Seed 2 |" in text and "these weights" not in text


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("cc-by-sa-4.0", {"license": "cc-by-sa-4.0"}),
        ("imagenet-research-non-commercial", {"license": "other", "license_name": "imagenet-research-non-commercial"}),
    ],
)
def test_licences_that_the_hub_knows_go_by_their_names(folder, weights, expected):
    record = cards.read_record(EVENT_VIT)
    record["license"]["weights"] = weights
    cards.write_record(EVENT_VIT, record)
    front = front_matter(zoo.card(EVENT_VIT).text)
    assert {key: front[key] for key in ("license", "license_name") if key in front} == expected


# ---- what else a card says


def test_a_notice_stands_above_all_else(folder):
    record = cards.read_record(EVENT_DETECTOR)
    cards.write_record(EVENT_DETECTOR, {**record, "notice": "Semi-synthetic data.\nRead on."})
    body = zoo.card(EVENT_DETECTOR).text.split(f"# {EVENT_DETECTOR}\n")[1]
    assert body.startswith("\n> Semi-synthetic data.\n> Read on.\n\n" + record["summary"][:20])
    with pytest.raises(zoo.ConfigError, match="notice must be a str"):
        cards.write_record(EVENT_DETECTOR, {**record, "notice": 3})


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (IMAGE_DETECTOR, "photo.jpg --save out/"),
        (EVENT_VIT, "Test/7/1.bin --save out.mp4"),
        (EVENT_DETECTOR, "Test/7/1.bin --save out.mp4"),
    ],
)
def test_use_by_task(published, name, command):
    record = cards.read_record(name)
    if name != IMAGE_DETECTOR:
        record["data"]["example"] = "Test/7/1.bin"
    cards.write_record(name, record)
    text = zoo.card(name).text
    assert f"zoo predict {name} {command}" in text
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, name, "exec")


# ---- from an evaluation to a card, at the command line


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def test_results_of_a_training_folder_reach_the_card(folder, tmp_path, capsys):
    data = tmp_path / "cells"
    records = [dict(zip(("image", "boxes", "labels"), toy(i, (120, 160)), strict=True)) for i in range(2)]
    write_boxes(data / "test.parquet", records, ["RBC", "WBC", "Platelets"])
    for seed in (0, 3):
        out = tmp_path / f"run{seed}"
        zoo.save(zoo.load(IMAGE_DETECTOR, pretrained=False), out)
        (out / "train_record.json").write_text(json.dumps({"seed": seed}))
        target = tmp_path / f"{seed}.json"
        code = run("eval", f"local-dir:{out}", "--data", data, "--split", "test", "--out", target, "--quiet")
        assert code == 0, capsys.readouterr().err
        report = json.loads(target.read_text())
        assert (report["model"], report["seed"]) == (IMAGE_DETECTOR, seed)
        (out / "config.json").unlink()  # The card needs the file alone.
    files = ("--eval", tmp_path / "0.json", "--eval", tmp_path / "3.json")
    assert run("card", IMAGE_DETECTOR, *files) == 0
    assert run("card", IMAGE_DETECTOR, *files, "--note", "again") == 0
    record = cards.read_record(IMAGE_DETECTOR)
    assert all(set(item["runs"]) == {0, 3} for item in record["evaluation"])
    assert [(row["name"], row["note"]) for row in record["comparison"]] == [(IMAGE_DETECTOR, "again")]
    text = zoo.card(IMAGE_DETECTOR).text
    assert "| Metric (%) | Seed 0 | Seed 3 | Mean ± standard deviation |" in text
    assert "mAP of RBC" in text and "2 pictures, at 240 x 320 px (height x width), in float32 on cpu" in text
    assert str(tmp_path) not in text
    capsys.readouterr()
    assert run("card", IMAGE_DETECTOR, "--note", "x") == 2
    assert "--note is of the files of --eval" in capsys.readouterr().err


def test_seed_of_a_folder(tmp_path):
    assert card_facts.training_seed("pape-vit-t-imagenette") is None
    assert card_facts.training_seed(f"local-dir:{tmp_path}") is None
    for text, seed in (('{"seed": 4}', 4), ('{"seed": "4"}', None), ("{}", None)):
        (tmp_path / "train_record.json").write_text(text)
        assert card_facts.training_seed(f"local-dir:{tmp_path}") == seed
    (tmp_path / "train_record.json").write_text("{")
    with pytest.raises(zoo.ConfigError, match="train_record"):
        card_facts.training_seed(f"local-dir:{tmp_path}")


def test_curves_have_no_place_for_detectors(folder, monkeypatch):
    import hub_cards
    from zoo.curves import _from_record, common_trained_size, read_curves

    monkeypatch.setattr(hub_cards, "__path__", [str(folder)])
    record = card_facts.add_evaluation(with_seeds(IMAGE_DETECTOR, DETECTED), results(DETECTED, "other", 0))
    cards.write_record(IMAGE_DETECTOR, record)
    with pytest.raises(zoo.DataError, match="no measured top-1"):
        list(_from_record(IMAGE_DETECTOR))
    record = card_facts.add_evaluation(with_seeds(EVENT_VIT, CLASSIFIED), results(CLASSIFIED, "other", 0))
    cards.write_record(EVENT_VIT, record)
    assert list(_from_record(EVENT_VIT)) == [(EVENT_VIT, 34, 91.0), ("other", 34, 90.0)]
    assert common_trained_size(curve for curve in read_curves([EVENT_VIT]) if curve.name == EVENT_VIT) == 34
