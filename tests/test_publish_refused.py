"""What `zoo.publish` does not send: folders and cards with faults, all named at once, and arguments that cannot be."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import TINY_CONFIG
from hub_client import make_folder
from safetensors.torch import load_file, save_file
from saved_models import make_model

import zoo
from zoo.published_card import card_problems


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return make_folder(TINY_CONFIG, tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def folder(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "copy"))


def refused(folder: Path | str, **options) -> str:
    with pytest.raises(zoo.ZooError) as caught:
        zoo.publish(str(folder), "org/tiny", dry_run=True, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(folder: Path, pattern: str, text: str) -> None:
    card = folder / "README.md"
    old = card.read_text()
    new = re.sub(pattern, lambda _: text, old, count=1)
    assert new != old
    card.write_text(new)


def test_the_folder_itself_is_good(folder):
    (folder / "LICENSE").write_text("MIT")
    done = zoo.publish(str(folder), "org/tiny", dry_run=True)
    assert [file.path for file in done.files] == ["LICENSE", "README.md", "config.json", "model.safetensors"]


def test_every_fault_is_named_at_once(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    (folder / "checkpoint.pt").write_bytes(b"\x80\x02")
    (folder / "notes.txt").write_text("private")
    (folder / "sub").mkdir()
    (folder / "\x1b[31mred").write_text("")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "flavour": 1}))
    rewrite(folder, "license: mit\n", "")
    rewrite(folder, r"\| Parameters \| [\d,]+ \|", "| Parameters | 7 |")
    message = refused(folder)
    for part in (
        "pytorch_model.bin is a pickle",
        "checkpoint.pt is a pickle (the run is not finished)",
        "notes.txt is a foreign file",
        "sub/ is a folder",
        "?[31mred is a foreign file",
        "unknown keys ignored: flavour",
        "states no license",
        "states 7 parameters",
        "(8) ",
    ):
        assert part in message
    assert "(9)" not in message and "\x1b" not in message


def test_a_card_that_was_not_written(tmp_path):
    folder = zoo.save(make_model(TINY_CONFIG), tmp_path / "saved")
    message = refused(folder)
    assert "README.md still says 'Whoever publishes these weights says here" in message and "no license" in message


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert refused(tmp_path) == f"{tmp_path} holds no model: there is no config.json and no model.safetensors"


def test_many_faults(folder):
    for number in range(100):
        (folder / f"{number:03}.jpg").write_bytes(b"")
    message = refused(folder)
    assert "(30) 029.jpg is a foreign file: move it out" in message and message.endswith("(31) and 70 more")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_missing_files(folder, name):
    (folder / name).unlink()
    assert refused(folder) == f"{folder} cannot be published: there is no {name}"


FALSE = {
    "This model was not trained.": "says 'not trained'",
    "It was never trained; use it as it is.": "says 'never trained'",
    "There are no weights of this name: it stands for an architecture.": "says 'There are no weights of this name'",
    "| Weights | none |": "says '| Weights | none'",
    "These weights are not published yet.": "says 'not published yet'",
    "| Weights | embedded, sha256 `0123456789abcdef...` |": "states sha256 0123456789abcdef..., but that of",
    "- Licence of these weights: not stated; it must agree.": "say it, or give --license",
}


@pytest.mark.parametrize("text", FALSE)
def test_what_is_not_so(folder, text):
    card = folder / "README.md"
    card.write_text(re.sub(r"\n\| Weights \|[^\n]*", "", card.read_text()) + f"\n{text}\n")
    assert FALSE[text] in refused(folder)


def test_what_is_so_is_not_refused(folder):
    card = folder / "README.md"
    card.write_text(card.read_text() + "\nOn sizes that were not trained on it is worse. Video was not measured.\n")
    assert zoo.publish(str(folder), "org/tiny", dry_run=True).files


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        (r"\A---\n", "", "no YAML between --- lines"),
        (r"\A---\n", "---\n- a\n", "not valid"),
        (r"(?s)\A---\n.*?\n---", "---\n- a\n---", "not a mapping"),
        (r"\A---\n", "---\nx: !!python/object/apply:os.system ['false']\n", "not valid"),
        ("library_name: pape-zoo", "library_name: timm", "library_name is 'timm'"),
        ("- pape-zoo\n", "", "tags must be a list with 'pape-zoo'"),
        ("license: mit", "license: other", "of unknown name"),
        ("license: mit", "license: mit\nmodel-index: 3", "model-index is not in the form"),
        (
            "license: mit",
            "license: mit\nmodel-index: [{results: [{task: {type: 1}}]}]",
            "model-index is not in the form",
        ),
    ],
)
def test_front_matter(folder, pattern, text, message):
    rewrite(folder, pattern, text)
    assert message in refused(folder)


@pytest.mark.parametrize(
    ("metric", "message"),
    [("value: many", "without a number"), ("value: 1.0, verified: true", "calls a result verified")],
)
def test_results(folder, metric, message):
    result = "task: {type: other}, dataset: {type: a, name: a}, metrics: [{type: accuracy, " + metric + "}]"
    rewrite(folder, "license: mit", f"license: mit\nmodel-index: [{{name: tiny, results: [{{{result}}}]}}]")
    assert message in refused(folder)


def test_links_out_of_the_folder(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("---\nlicense: mit\n---\nsecret")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(secret)
    (folder / "LICENSE").symlink_to("/dev/zero")
    message = refused(folder)
    assert "README.md is a link" in message and "LICENSE is a link" in message


def test_cards_that_cannot_be_read(folder):
    (folder / "README.md").write_bytes(b"\xff\xfe")
    assert "README.md is not UTF-8" in refused(folder)
    (folder / "README.md").write_bytes(b" " * (1 << 20) + b"x")
    assert "larger than 1 MiB" in refused(folder)
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    assert "not a regular file" in refused(folder)


def test_weights_that_do_not_load(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    key = next(iter(state))
    save_file({key: value for key, value in state.items() if key != next(iter(state))}, path)
    assert f"missing: {key}" in refused(folder)
    save_file({**state, key: torch.full_like(state[key], float("nan"))}, path)
    assert "NaN" in refused(folder)
    torch.save({}, path)
    assert "pickle" in refused(folder)


def test_records(folder):
    for text, message in {
        "weights: {sha256: abc}": "record.yaml states sha256 abc...",
        "- a": "is not the record of a model",
        "a: [": "is not the record of a model",
    }.items():
        (folder / "record.yaml").write_text(text)
        assert message in refused(folder)


HOSTILE = {
    "huge": "[" + " " * (2 << 20) + "]",
    "deep": "[" * 100_000,
    "wrong type": "[1, 2]",
    "no version": "{}",
    "a class to import": json.dumps({**TINY_CONFIG, "architecture": "os:system"}),
    "a large model": json.dumps({**TINY_CONFIG, "model": {**TINY_CONFIG["model"], "dim": 1 << 20, "depth": 1 << 20}}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_configurations(folder, what):
    (folder / "config.json").write_text(HOSTILE[what])
    assert "cannot be published: " in refused(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "a..b"}, "revision 'a..b' cannot be"),
        ({"revision": "../../x"}, "cannot be the name"),
        ({"revision": "0" * 40}, "is a commit"),
        ({"tag": "a b"}, "tag 'a b' cannot be"),
        ({"tag": "x.lock"}, "cannot be"),
        ({"tag": "v1", "pull_request": True}, "without revision and tag"),
        ({"message": "a\nb"}, "one line"),
        ({"licence": "other"}, "license_name"),
        ({"licence": "My License"}, "expected one that the Hub lists"),
    ],
)
def test_arguments(good, options, message):
    assert message in refused(good, **options)


@pytest.mark.parametrize("repo_id", ["tiny", "a/b/c", "org/..", "org/a b", "../x/y", "hf-hub:org/x"])
def test_repository_names(good, repo_id):
    with pytest.raises(zoo.ConfigError, match="expected ORGANISATION/REPOSITORY"):
        zoo.publish(str(good), repo_id, dry_run=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rope-vit-t-imagenette", "has no published weights"),
        ("pape-vit-t-imagenete", "did you mean"),
        ("hf-hub:org/x", "on the Hub already"),
        ("local-dir:/no/such", "there is no folder"),
        ("x" * 5000, "no model is called"),
        ("a\0b", "no model is called"),
    ],
)
def test_sources(name, message):
    assert message in refused(name)


def test_embedded_cards_pass(good):
    from zoo.cards import card
    from zoo.registry import entry

    for name in zoo.list_models(weights="embedded"):
        digest = card(name).record["weights"]["sha256"]
        assert not card_problems(card(name).text, entry(name).config, digest), name
    for name in ("rope-vit-t-imagenette", "pape-vit-b-in1k", "rope-vit-n-in1k"):
        problems = card_problems(card(name).text, entry(name).config, None)
        assert any("but there are weights here" in problem for problem in problems), name
