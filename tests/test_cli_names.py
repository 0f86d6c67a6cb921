"""`zoo list`, `zoo card` and `zoo convert` at the command line."""

from __future__ import annotations

import json

import pytest
from test_cards import RESULTS
from test_convert import official_config, official_state

import zoo
from zoo import cards
from zoo.cli.main import main


@pytest.fixture
def run(capsys):
    """Runs the command in this process: exit code, stdout, stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def test_list(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == zoo.list_models()
    assert ["pape-vit-t-imagenette", "image", "classification", "pape", "4462586", "embedded"] in rows


def test_list_filters_and_json(run):
    code, out, _ = run("list", "*-t-*", "--encoding", "rope", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == [
        *(f"rope-decoder-t-{data}" for data in ("hg38", "index", "jsb", "shakespeare")),
        "rope-event-det-t-gen1",
        "rope-event-vit-t-dvsgesture",
        "rope-fusion-t-nuscenes",
        "rope-fusion-t-simdrive",
        "rope-point-vit-t-modelnet10",
        "rope-ptv3-t-als3",
        "rope-ptv3-t-modelnet10",
        "rope-video-vit-t-imagenette-motion",
        "rope-video-vit-t-ucf101",
        "rope-vit-det-t-bccd",
        "rope-vit-det-t-coco",
        "rope-vit-t-imagenette",
        "rope-vit-t-in1k",
    ]
    code, out, err = run("list", "nothing*")
    assert (code, out) == (0, "")
    assert "no model matches" in err
    code, out, err = run("list", "--weights", "some")
    assert (code, out) == (2, "")
    assert err.startswith("error: weights='some'")
    assert len(err.splitlines()) == 1


def test_list_in_a_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run("list", "pape-vit-*")
    assert code == 0
    assert "4,462,586" in out
    assert "pape-vit-t-imagenette" in out


def test_card(run):
    code, out, err = run("card", "pape-vit-t-imagenette")
    assert (code, err) == (0, "")
    assert out == zoo.card("pape-vit-t-imagenette").text
    code, out, _ = run("card", "rope-vit-b-in1k")
    assert code == 0
    assert "There are no weights of this name" in out
    code, out, _ = run("card", "pape-vit-t-imagenette", "--json")
    assert json.loads(out)["record"]["name"] == "pape-vit-t-imagenette"


def test_card_in_a_terminal_is_rendered(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run("card", "pape-vit-t-imagenette")
    assert code == 0
    assert "library_name" not in out
    assert "<!--" not in out
    assert "Intended use" in out
    assert "## Intended use" not in out
    assert "## Intended use" in run("card", "pape-vit-t-imagenette", "--plain")[1]


def test_unknown_card(run):
    code, out, err = run("card", "pape-vit-t-imagenete")
    assert (code, out) == (2, "")
    assert err.startswith("error: no model is called 'pape-vit-t-imagenete'; did you mean pape-vit-t-imagenette")
    assert len(err.splitlines()) == 1


def test_card_is_brought_up_to_date(run, tmp_path, monkeypatch):
    name = "pape-vit-t-imagenette"
    record = cards.read_record(name)
    monkeypatch.setattr(cards, "card_folder", lambda asked: tmp_path / asked)
    zoo.save(zoo.load(name, pretrained=False), tmp_path / name, dtype="float16")
    cards.write_record(name, {**record, "evaluation": [], "comparison": []})
    (tmp_path / "own.json").write_text(json.dumps(RESULTS))
    (tmp_path / "other.json").write_text(json.dumps({**RESULTS, "name": "none-vit-t-imagenette"}))
    arguments = ("--eval", tmp_path / "own.json", "--eval", tmp_path / "other.json", "--weights")
    code, out, err = run("card", name, *arguments)
    assert (code, out) == (0, "")
    assert str(tmp_path / name / "README.md") in err
    updated = cards.read_record(name)
    assert [item["size"] for item in updated["evaluation"]] == [112, 512]
    (other,) = updated["comparison"]
    assert other["name"] == "none-vit-t-imagenette"
    assert [(item["size"], item["value"]) for item in other["evaluation"]] == [(112, 90.5), (512, 85.43)]
    assert (updated["weights"]["dtype"], len(updated["weights"]["sha256"])) == ("float16", 64)
    assert (tmp_path / name / "README.md").read_text() == zoo.card(name).text
    assert zoo.load(name).load_report.sha256 == updated["weights"]["sha256"]

    (tmp_path / "bad.json").write_text("{}")
    code, _, err = run("card", name, "--eval", tmp_path / "bad.json")
    assert code == 2
    assert "results file" in err
    assert cards.read_record(name) == updated
    code, _, err = run("card", "rope-vit-b-in1k", "--write")
    assert code == 2
    assert "no record" in err


def test_convert(run, tmp_path):
    import torch

    source = tmp_path / "official"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(official_config()))
    torch.save(official_state(official_config()), source / "model.pt")
    code, out, err = run("convert", source, tmp_path / "ours")
    assert (code, err) == (0, "")
    assert out == f"local-dir:{tmp_path / 'ours'}\n"
    zoo.load(out.strip())
    code, out, err = run("convert", source, tmp_path / "second", "--install")
    assert (code, out) == (2, "")
    assert "not pape-vit-b-in1k" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "second").exists()
    code, _, err = run("convert", tmp_path / "absent", tmp_path / "third")
    assert code == 2
    assert "no folder" in err
