"""Cards: in step with their records, in the form the Hub reads, and honest about what was measured."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

import zoo
from zoo import card_facts, cards, registry
from zoo.reproduce_report import markdown
from zoo.training.sweep import load_sweep, summarise

RECORDED = [name for name in zoo.list_models() if (cards.card_folder(name) / "record.yaml").exists()]

ROOT = Path(__file__).parents[1]

RESULTS = {
    "name": "pape-vit-t-imagenette",
    "dataset": "imagenette",
    "split": "validation",
    "images": 3925,
    "command": "zoo eval pape-vit-t-imagenette --data DIR --sizes 112,512",
    "device": "cpu",
    "dtype": "float32",
    "results": [
        {"size": 512, "top1": 85.4321, "top5": 99.0, "images_per_s": 10.0},
        {"size": 112, "top1": 90.5, "top5": 99.5, "images_per_s": 100.0},
    ],
}


@pytest.fixture
def cards_folder(tmp_path, monkeypatch):
    """A copy of the package's record of the PaPE model, to change."""
    record = cards.read_record("pape-vit-t-imagenette")
    monkeypatch.setattr(cards, "card_folder", lambda name: tmp_path / name)
    (tmp_path / "pape-vit-t-imagenette").mkdir()
    cards.write_record("pape-vit-t-imagenette", {**record, "evaluation": [], "comparison": []})
    return tmp_path


def front_matter(text):
    import yaml

    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


def test_records_are_of_registered_names_and_published_ones_have_one():
    assert set(zoo.list_models(weights="embedded")) <= set(RECORDED)
    sets = (
        "imagenette",
        "bccd",
        "nmnist1100",
        "canvas",
        "modelnet10",
        "modelnet10-invariant",
        "als3",
        "motion",
        "simdrive",
        "simdrive-camera",
        "simdrive-lidar",
        "jsb",
    )
    trained_here = {name for data in sets for name in zoo.list_models(f"*-{data}")}
    assert set(RECORDED) <= trained_here


def test_records_have_the_numbers_of_the_comparison():
    table = json.loads((ROOT / "docs" / "comparison.json").read_text(encoding="utf-8"))
    assert table["rows"] == summarise(ROOT / "docs" / "comparison", load_sweep("comparison"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for line in markdown(table["rows"]).splitlines()[2:]:
        assert line.split(" | ", 3)[3] in readme, line  # The cells behind name, extension and seeds.
    models = {row["model"] for row in table["rows"] if not row["model_options"]}
    assert len(models) >= 4
    for name in models:
        record = cards.read_record(name)
        assert card_facts.add_sweep(record, table) == record or record["weights"]["source"] == "embedded", name


@pytest.mark.parametrize("name", RECORDED)
def test_cards_are_in_step_with_their_records(name):
    made = zoo.card(name)
    assert made.path.read_text(encoding="utf-8") == made.text, f"run `zoo card {name} --write`"


@pytest.mark.parametrize("name", zoo.list_models(weights="embedded"))
def test_the_config_beside_embedded_weights_is_the_registered_one(name):
    path = cards.card_folder(name) / "config.json"
    if not path.exists():
        assert not (path.parent / "model.safetensors").exists()
        pytest.skip("the embedded weights are not in this checkout")
    assert json.loads(path.read_text()) == registry.entry(name).config


@pytest.mark.parametrize("name", zoo.list_models())
def test_every_name_has_a_card(name):
    made = zoo.card(name)
    assert made.text.count(f"# {name}\n") == 1
    assert f"{registry.entry(name).parameters:,}" in made.text
    front = front_matter(made.text)
    assert front["library_name"] == "pape-zoo"
    pipelines = {  # The Hub has none that takes recordings of event cameras.
        ("image", "classification"): "image-classification",
        ("image", "detection"): "object-detection",
        ("video", "classification"): "video-classification",
    }
    entry = registry.entry(name)
    assert front.get("pipeline_tag") == pipelines.get((entry.modality, entry.task))
    assert made.text.count("```") % 2 == 0
    assert str(made) == made.text
    if registry.entry(name).weights == "none":
        assert "model-index" not in front
        assert "There are no weights of this name" in made.text or "No weights are published" in made.text
    if name.endswith(("-in1k", "-coco")):
        assert (made.record, made.path) == (None, None)
        assert "## Results" not in made.text  # Nothing was measured.


@pytest.mark.parametrize("name", zoo.list_models(weights="release"))
def test_released_names_say_how_to_get_their_weights(name):
    text = zoo.card(name).text
    assert "32076279" in text
    assert "zoo convert FOLDER OUT --install" in text


def test_sections_and_licence_of_the_embedded_card():
    made = zoo.card("pape-vit-t-imagenette")
    front = front_matter(made.text)
    assert front["license"] == "other"
    assert front["license_name"] and front["license_link"].startswith("https://image-net.org")
    titles = re.findall(r"^## (.*)$", made.text, re.MULTILINE)
    for title in ("Use", "Results", "Intended use", "Limits", "Data and licences", "Training", "Citation"):
        assert title in titles
    assert "Reported elsewhere, not measured here" in titles
    assert "non-commercial" in made.text


def test_unknown_name():
    with pytest.raises(zoo.UnknownModelError, match="did you mean"):
        zoo.card("pape-vit-t-imagenet")


def test_results_become_tables_and_a_model_index(cards_folder):
    name = "pape-vit-t-imagenette"
    assert "model-index" not in front_matter(zoo.card(name).text)
    assert "Not measured yet." in zoo.card(name).text
    record = cards.read_record(name)
    before = copy.deepcopy(record)
    record = card_facts.add_evaluation(record, RESULTS)
    record = card_facts.add_evaluation(record, {**RESULTS, "name": "rope-vit-t-imagenette"})
    again = {**RESULTS, "results": [{"size": 112, "top1": 91.0}], "command": "again"}
    record = card_facts.add_evaluation(record, again)
    assert cards.read_record(name) == before
    cards.write_record(name, record)
    path = cards.write_card(name)
    text = path.read_text()
    assert cards.read_record(name) == record
    assert "| 112 (training size) | 14 x 14 | 91.0 |" in text
    assert "| 512 | 64 x 64 | 85.4 |" in text
    assert "| Model | 112 | 512 |" in text
    assert "| rope-vit-t-imagenette | 90.5 | 85.4 |" in text
    (index,) = front_matter(text)["model-index"]
    (result,) = index["results"]
    assert result["source"]["name"] == "self-reported"
    assert result["dataset"]["revision"] == record["data"]["revision"]
    assert result["dataset"]["split"] == "validation"
    assert [(m["args"]["size"], m["value"], m["args"]["command"]) for m in result["metrics"]] == [
        (112, 91.0, "again"),
        (512, 85.43, RESULTS["command"]),
    ]


def test_the_hub_library_reads_the_front_matter(cards_folder):
    from huggingface_hub import ModelCard

    name = "pape-vit-t-imagenette"
    cards.write_record(name, card_facts.add_evaluation(cards.read_record(name), RESULTS))
    data = ModelCard(zoo.card(name).text).data
    assert data.model_name == name
    assert [(item.metric_value, item.dataset_split) for item in data.eval_results] == [
        (90.5, "validation"),
        (85.43, "validation"),
    ]
    assert {item.source_name for item in data.eval_results} == {"self-reported"}


@pytest.mark.parametrize(
    "change",
    [
        {"results": []},
        {"results": [{"size": 112}]},
        {"results": [{"size": [112, 96], "top1": 3.0}]},
        {"results": [{"size": 112, "top1": 101}]},
        {"results": ["x"]},
        {"results": None},
    ],
)
def test_other_files_are_no_results(cards_folder, change):
    with pytest.raises(zoo.ConfigError, match="results"):
        card_facts.add_evaluation(cards.read_record("pape-vit-t-imagenette"), {**RESULTS, **change})
    with pytest.raises(zoo.ConfigError, match="lacks name, dataset"):
        card_facts.add_evaluation(cards.read_record("pape-vit-t-imagenette"), {})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r.pop("limits"), "limits must be a list"),
        (lambda r: r["data"].pop("terms"), "data lacks terms"),
        (lambda r: r.update(parameters=1), "parameters is 1"),
        (lambda r: r["weights"].update(source="hub"), r"weights\.source is 'hub'"),
        (lambda r: r.update(name="other"), "name is 'other'"),
        (lambda r: r.update(extra=1), "unknown parts extra"),
        (lambda r: r.update(evaluation=[{"size": 112}]), "evaluation lacks dataset"),
        (lambda r: r.update(paper=["x"]), "paper lacks claim"),
    ],
)
def test_records_are_checked(cards_folder, edit, message):
    name = "pape-vit-t-imagenette"
    record = cards.read_record(name)
    good = copy.deepcopy(record)
    edit(record)
    with pytest.raises(zoo.ConfigError, match=message):
        cards.write_record(name, record)
    assert cards.read_record(name) == good


def test_damaged_records(cards_folder):
    path = cards_folder / "pape-vit-t-imagenette" / "record.yaml"
    for text, message in (
        ("a: [", "not valid YAML"),
        ("- 1", "expected a mapping"),
        ("!!python/name:os.system x", "YAML"),
    ):
        path.write_text(text)
        with pytest.raises(zoo.ConfigError, match=message):
            zoo.card("pape-vit-t-imagenette")
    with pytest.raises(zoo.ConfigError, match="no record"):
        cards.write_card("rope-vit-t-imagenette")


def test_a_generated_card_is_told_from_an_edited_one(tiny_config):
    text = cards.model_card(tiny_config)
    assert cards.is_generated(text)
    assert "circle, square, triangle" in text
    assert not cards.is_generated(text.replace("circle", "disc"))
    assert not cards.is_generated(text + "more")
    assert not cards.is_generated("my words")


RUN = {
    "name": "pape-vit-t-imagenette",
    "command": "zoo train imagenette --model pape-vit-t-imagenette --data /home/me/imagenette --out=/tmp/run",
    "recipe": {"model": "x", "data": "/home/me", "output": "/tmp", "lr": 0.001, "betas": [0.9, 0.999], "clip": None},
    "epochs": 3,
    "seed": 1,
    "device": "a processor",
    "duration_s": 90.0,
    "final_train_loss": 1.234567,
    "date": "2026-11-30",
}


def test_a_training_run_is_folded_in(cards_folder):
    name = "pape-vit-t-imagenette"
    record = card_facts.add_training(cards.read_record(name), RUN)
    assert record["training"]["recipe"] == {"lr": 0.001, "betas": "0.9, 0.999"}
    assert record["training"]["command"] == "zoo train imagenette --model pape-vit-t-imagenette --data DIR --out OUT"
    cards.write_record(name, record)
    text = zoo.card(name).text
    for part in (
        "| hardware | a processor |",
        "| duration | 1.5 minutes |",
        "| final training loss | 1.2346 |",
        "2026-11-30",
    ):
        assert part in text
    assert "/home/me" not in text
    with pytest.raises(zoo.ConfigError, match="training run is of other"):
        card_facts.add_training(record, {**RUN, "name": "other"})
    with pytest.raises(zoo.ConfigError, match="lacks seed"):
        card_facts.add_training(record, {key: value for key, value in RUN.items() if key != "seed"})


def test_results_of_a_folder_count_for_the_name_in_it(cards_folder, tmp_path):
    made = zoo.load("none-vit-t-imagenette", pretrained=False)
    zoo.save(made, tmp_path / "run")
    results = {**RESULTS, "name": f"local-dir:{tmp_path / 'run'}", "results": [{"size": [112, 112], "top1": 70}]}
    record = card_facts.add_evaluation(cards.read_record("pape-vit-t-imagenette"), results)
    ((row,),) = [item["evaluation"] for item in record["comparison"] if item["name"] == "none-vit-t-imagenette"]
    assert (row["size"], row["metric"], row["value"], row["device"]) == (112, "top1", 70.0, "cpu")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("zoo eval x --data ../shared/data --sizes 112,224", "zoo eval x --data DIR --sizes 112,224"),
        ("zoo eval local-dir:/tmp/run --data=/a/b", "zoo eval local-dir:OUT --data DIR"),
        (
            "zoo train /home/me/recipe.yaml --set output=/tmp/x --set lr=1e-3",
            "zoo train recipe.yaml --set output=... --set lr=1e-3",
        ),
    ],
)
def test_commands_in_cards_hold_no_folders_of_a_machine(command, expected):
    assert card_facts.portable_command(command) == expected
