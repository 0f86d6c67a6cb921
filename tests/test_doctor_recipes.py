"""`zoo doctor` on training recipes and on coordinates that somebody made."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.coordinates import Coordinates, concatenate, grid
from zoo.diagnosis import check_coordinates, examination
from zoo.position_ids import V2PE, Image, MRoPE, ResetMRoPE, Text, TransformersMRoPE, Video
from zoo.training.recipe import built_in_recipes


def codes(report):
    return {(finding["code"], finding["severity"]) for finding in report["findings"]}


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_no_false_alarm_on_built_in_recipes(name, monkeypatch):
    monkeypatch.setattr(examination, "build_check", lambda config: None)
    report = zoo.doctor(name)
    assert report["target"] and all(finding["severity"] == "note" for finding in report["findings"])


def test_recipes_say_the_size(tmp_path):
    text = "task: image-classification\nmodel: rope-vit-t-imagenette\nimage_size: 224\n"
    fresh = zoo.doctor(write(tmp_path, text))
    assert fresh["trained"] == fresh["target"] and fresh["target"][0]["extent"] == 28 and not fresh["findings"]
    tuned = zoo.doctor(write(tmp_path, text + "pretrained: true\n"))
    assert tuned["trained"][0]["extent"] == 14 and codes(tuned) == {("unseen-angles", "warning")}


def test_fine_tuning_in_other_coordinates(tmp_path):
    options = "model_options: {coordinate_origin: 1, class_token_position: origin}\n"
    text = "task: image-classification\nmodel: sincos-vit-t-imagenette\npretrained: true\n" + options
    found = codes(zoo.doctor(write(tmp_path, text)))
    assert found >= {("origin-differs", "error"), ("origin-differs", "warning"), ("class-token-corner", "warning")}
    relative = codes(
        zoo.doctor(write(tmp_path, text.replace("sincos", "alibi").replace(", class_token_position: origin", "")))
    )
    assert relative == {("origin-differs", "note")}  # Differences do not change.


def test_a_class_token_at_the_origin_of_a_new_model(tmp_path):
    options = "model_options: {class_token_position: origin}\n"
    text = "task: image-classification\nmodel: pape-vit-t-imagenette\n" + options
    assert codes(zoo.doctor(write(tmp_path, text))) == {("class-token-corner", "warning")}


@pytest.mark.parametrize(
    "backbone, expected",
    [
        ("pape-vit-t-imagenette", set()),
        ("pape-vit-b-in1k", {("origin-differs", "error"), ("unit-differs", "error")}),
        ("rope-vit-t-imagenette", {("recipe-refused", "error")}),
    ],
)
def test_backbones_have_the_coordinates_of_the_detector(backbone, expected, tmp_path):
    text = f"task: image-detection\nmodel: pape-vit-det-t-bccd\nbackbone: {backbone}\n"
    assert codes(zoo.doctor(write(tmp_path, text))) == expected


@pytest.mark.parametrize(
    "text, words",
    [
        ("task: image-classification\nmodel: pape-vit-t-imagenette\nlearning_rate: 1\n", "unknown key 'learning_rate'"),
        ("task: image-classification\nmodel: pape-vit-t-imagenette\nlr: fast\n", "lr must be a number"),
        ("task: image-classification\nmodel: pape-vit-t-imagenette\nmodel_options: {foo: 1}\n", "unknown option 'foo'"),
        ("task: image-classification\nmodel: pape-vit-t-imagenette\nmodel_options: {head_dim: 0}\n", "head_dim"),
        ("task: sequence-generation\nmodel: pape-decoder-n-index\ndataset: nosuch\n", "dataset must be one of"),
    ],
)
def test_refused_recipes(text, words, tmp_path):
    report = zoo.doctor(write(tmp_path, text))
    (finding,) = report["findings"]
    assert finding["severity"] == "error" and words in finding["what"]


def test_made_up_tasks_have_their_own_axes():
    assert [axis["name"] for axis in zoo.doctor("picture-questions")["target"]] == ["time", "row", "column"]
    assert [axis["name"] for axis in zoo.doctor("text2d-copy")["target"]] == ["row", "column"]
    assert zoo.doctor("shakespeare")["target"][0]["extent"] == 256


def test_pictures_at_the_same_place_collide():
    two = concatenate([grid(3, 4), grid(3, 4)])
    (finding,) = check_coordinates(two)
    assert finding["code"] == "collision" and finding["severity"] == "error" and "12 of 24 tokens" in finding["what"]
    assert not check_coordinates(concatenate([grid(3, 4), grid(3, 4).shifted([0.0, 3.0])]))


def test_schemes_of_ids_do_not_collide():
    mixed = [Text(2), Image(3, 4), Text(1), Image(3, 4), Text(2)]
    for scheme in (MRoPE(), ResetMRoPE(), V2PE(64)):
        assert not check_coordinates(scheme(mixed))
    # As that network has it: frames less than a second apart share their ids.
    (finding,) = check_coordinates(TransformersMRoPE()([Video(2, 2, 2, seconds_per_frame=0.5)]))
    assert finding["code"] == "collision"


def test_samples_and_tokens_without_position_do_not_collide():
    values = grid(2, 2).values
    assert not check_coordinates(Coordinates(values.expand(3, -1, -1)))
    packed = Coordinates(values[0].repeat(2, 1), cu_seqlens=torch.tensor([0, 4, 8]))
    assert not check_coordinates(packed)
    assert check_coordinates(Coordinates(values[0].repeat(2, 1), cu_seqlens=torch.tensor([0, 8])))
    assert not check_coordinates(MRoPE().batch([[Text(3)], [Text(1)]]))


def test_far_origins_are_found():
    near = torch.tensor([[[0.0, 0.0], [0.5, 0.0], [1.0, 1.0]]])
    assert not check_coordinates(Coordinates(near))
    assert [one["code"] for one in check_coordinates(Coordinates(near + 6e5))] == ["far-origin"]
    assert not check_coordinates(Coordinates(near.double() + 6e5))


def test_class_tokens_at_a_corner_are_found():
    corner = grid(4, 4, origin=1).with_prefix(1, at=(0.0, 0.0))
    assert [one["code"] for one in check_coordinates(corner, prefix=1)] == ["class-token-corner"]
    assert not check_coordinates(grid(4, 4).with_prefix(1), prefix=1)
    assert not check_coordinates(grid(5, 5).with_prefix(1, at=(2.2, 2.2)), prefix=1)
    with pytest.raises(zoo.DataError, match="fewer than the 30"):
        check_coordinates(grid(2, 2), prefix=30)
