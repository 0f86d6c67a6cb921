"""Cards of hostile, incomplete and wrong files: refused, or shown as the text they are."""

from __future__ import annotations

import copy
import re

import pytest
from card_records import (
    DETECTED,
    IMAGE_DETECTOR,
    NAMES,
    folder_of,
    front_matter,
    publish,
    results,
    tables,
    with_seeds,
)
from markdown_it import MarkdownIt  # Comes with rich.

import zoo
from zoo import card_facts, card_tables, cards

HOSTILE = "x`|</script>\n\n# Free weights [click](http://evil)\n---\n| a | b |"


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


def test_text_of_files_cannot_break_out_of_its_place(published):
    row = {**DETECTED["results"][0], f"map/{HOSTILE}": 12.0}
    bad = results(DETECTED, IMAGE_DETECTOR, 0, dataset=HOSTILE, split=HOSTILE, device=HOSTILE, results=[row])
    record = card_facts.add_evaluation(cards.read_record(IMAGE_DETECTOR), bad)
    record = card_facts.add_evaluation(record, bad | {"model": HOSTILE}, HOSTILE)
    record["comparison_note"] = HOSTILE
    cards.write_record(IMAGE_DETECTOR, record)
    text = zoo.card(IMAGE_DETECTOR).text
    assert "\n# Free" not in text and "\n| a | b |" not in text
    assert len(re.findall(r"^---$", text, re.MULTILINE)) == 2
    for rows in tables(text):
        assert len({len(row) for row in rows}) == 1
    tokens = MarkdownIt("commonmark").enable("table").parse(re.split(r"^---$", text, flags=re.MULTILINE)[2])
    inline = [child for token in tokens for child in token.children or ()]
    assert not [token for token in inline if token.type in ("html_inline", "link_open")]
    assert [token.content[:14] for token in tokens if token.type == "html_block"] == ["<!-- Generated"]
    assert not [token for token in tokens if token.type == "inline" and token.content.startswith("Free weights")]
    shown = " ".join(HOSTILE.split())
    assert shown in "".join(token.content for token in inline if token.type == "text").replace("\n", " ")
    front = front_matter(text)
    assert front["model-index"][0]["results"][0]["dataset"]["type"] == HOSTILE
    assert front["model-index"][0]["results"][0]["metrics"][-1]["name"] == f"mAP of {HOSTILE} at 240 x 320 px"


@pytest.mark.parametrize("text", ["a", "`", "a ``b` c", HOSTILE])
def test_code_in_a_line_has_a_fence_that_is_not_in_it(text):
    made = card_tables.code(text)
    fence = re.match("`+", made)[0]
    assert made.endswith(fence) and "\n" not in made
    assert fence not in re.findall("`+", made[len(fence) : -len(fence)])


@pytest.mark.parametrize("command", ["zoo eval x\n```\n# y", "zoo eval 'x", "zoo\x1b[2J eval"])
def test_commands_are_one_line(folder, command):
    with pytest.raises(zoo.ConfigError, match="not a command line"):
        card_facts.add_evaluation(cards.read_record(IMAGE_DETECTOR), results(DETECTED, IMAGE_DETECTOR, command=command))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "classification"}, "of a model for 'classification'"),
        ({"task": None}, "of a model for None"),
        ({"images": 0}, "images and seed are whole numbers"),
        ({"images": True}, "images and seed are whole numbers"),
        ({"seed": "0"}, "images and seed are whole numbers"),
        ({"map": 101.0}, "a map in percent"),
        ({"map": float("nan")}, "a map in percent"),
        ({"map": True}, "a map in percent"),
        ({"ap50": "high"}, "a map in percent"),
        ({"size": [0, 3]}, "a map in percent"),
        ({"size": "large"}, "a map in percent"),
        ({"results": [{"size": 3, "ap50": 1.0}]}, "a map in percent"),
        ({"results": []}, "lacks results"),
    ],
)
def test_other_files_are_no_results(folder, change, message):
    record = cards.read_record(IMAGE_DETECTOR)
    before = copy.deepcopy(record)
    with pytest.raises(zoo.ConfigError, match=message):
        card_facts.add_evaluation(record, results(DETECTED, IMAGE_DETECTOR, **change))
    assert record == before


@pytest.mark.parametrize("key", ["dataset", "split", "images", "command", "device", "dtype"])
@pytest.mark.parametrize("compared", [False, True])
def test_no_number_without_its_data_split_and_device(folder, key, compared):
    incomplete = results(DETECTED, IMAGE_DETECTOR, 0)
    del incomplete[key]
    with pytest.raises(zoo.ConfigError, match=f"lacks {key}"):
        card_facts.add_evaluation(cards.read_record(IMAGE_DETECTOR), incomplete)
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    record = card_facts.add_evaluation(record, results(DETECTED, "other", 0))
    numbers = record["comparison"][0]["evaluation"] if compared else record["evaluation"]
    kept = numbers[0].pop(key)
    with pytest.raises(zoo.ConfigError, match=key):
        cards.write_record(IMAGE_DETECTOR, record)
    numbers[0][key] = 0 if key == "images" else " "
    with pytest.raises(zoo.ConfigError, match=key):
        cards.write_record(IMAGE_DETECTOR, record)
    numbers[0][key] = kept
    cards.write_record(IMAGE_DETECTOR, record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": 51.2}, "value is 51.2, but the runs give 51.0"),
        ({"std": 0.1}, "std is 0.1, but the runs give 1.0"),
        ({"seeds": 9}, "seeds is 9, but the runs give 3"),
        ({"runs": [50.0]}, "runs must be a mapping"),
        ({"runs": {"0": 50.0}}, "runs must be a mapping"),
        ({"value": "51", "runs": {}}, "value must be a number"),
        ({"size": [1, 2, 3]}, "positive whole numbers"),
    ],
)
def test_means_that_are_not_those_of_the_runs_are_refused(folder, change, message):
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    record["evaluation"][0] |= change
    with pytest.raises(zoo.ConfigError, match=message):
        cards.write_record(IMAGE_DETECTOR, record)


def test_rows_of_a_comparison_have_one_form(folder):
    record = with_seeds(IMAGE_DETECTOR, DETECTED)
    for row in ({"name": "a"}, {"name": "a", "sizes": {}, "evaluation": []}, {"name": "a", "evaluation": ["x"]}):
        with pytest.raises(zoo.ConfigError, match="of comparison"):
            cards.write_record(IMAGE_DETECTOR, {**record, "comparison": [row]})
