from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_toys import TINY, toy_picture, write_parquet, write_toys

import zoo
from modalities.image.transforms import preprocess
from zoo.cli.eval import _rate
from zoo.errors import ConfigError, DataError
from zoo.evaluate import evaluate, evaluate_data, evaluating
from zoo.matching import align_labels


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = zoo.load("pape-vit-t-imagenette", pretrained=False, input_size=16, **TINY)
    torch.nn.init.normal_(model.head.weight)
    return model


def random_pictures(sizes: list[tuple[int, int]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (3, *size), dtype=np.uint8) for size in sizes]


def by_hand(model: torch.nn.Module, pictures: list[np.ndarray], labels: np.ndarray, size: int) -> tuple[float, float]:
    hits1 = hits5 = 0
    for picture, label in zip(pictures, labels, strict=True):
        with torch.no_grad():
            logits = model(preprocess(picture.transpose(1, 2, 0).copy(), model.data_config, size)[None])[0]
        order = logits.argsort(descending=True).tolist()
        hits1 += order[0] == label
        hits5 += label in order[:5]
    return 100 * hits1 / len(labels), 100 * hits5 / len(labels)


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_equals_a_loop_by_hand(model: torch.nn.Module, batch_size: int | None) -> None:
    pictures = random_pictures([(20, 20)] * 30)
    labels = np.arange(30) % 10
    results = evaluate(model, np.stack(pictures), labels, [16, 24], batch_size=batch_size)
    for result in results:
        assert (result.top1, result.top5) == pytest.approx(by_hand(model, pictures, labels, int(result.size)))
        assert result.images == 30 and result.images_per_s > 0
    assert [r.size for r in results] == [16, 24]
    assert 0 < results[0].top5 < 100  # neither trivial


def test_unequal_pictures_and_rectangles(model: torch.nn.Module) -> None:
    pictures = random_pictures([(20, 30), (40, 18), (16, 16), (25, 25)])
    labels = np.array([1, 2, 3, 4])
    (result,) = evaluate(model, pictures, labels, [16])
    assert (result.top1, result.top5) == pytest.approx(by_hand(model, pictures, labels, 16))
    (wide,) = evaluate(model, pictures, labels, [(16, 32)])
    assert wide.size == (16, 32)


def test_perfect_and_wrong_labels(model: torch.nn.Module) -> None:
    pictures = np.stack(random_pictures([(16, 16)] * 12))
    with torch.no_grad():
        logits = torch.cat([model(preprocess(p.transpose(1, 2, 0).copy(), model.data_config)[None]) for p in pictures])
    order = logits.argsort(dim=1, descending=True)
    assert evaluate(model, pictures, order[:, 0], [16])[0].top1 == 100
    (second,) = evaluate(model, pictures, order[:, 1], [16])
    assert (second.top1, second.top5) == (0, 100)
    assert evaluate(model, pictures, order[:, 9], [16])[0].top5 == 0


def test_bfloat16_is_close_and_leaves_the_model(model: torch.nn.Module) -> None:
    pictures, labels = np.stack(random_pictures([(16, 16)] * 40)), np.arange(40) % 10
    (full,) = evaluate(model, pictures, labels, [16])
    model.train()
    (half,) = evaluate(model, pictures, labels, [16], dtype="bfloat16")
    assert model.training and next(model.parameters()).dtype == torch.float32
    model.eval()
    assert abs(full.top1 - half.top1) <= 10


def test_bad_arguments(model: torch.nn.Module) -> None:
    pictures = np.stack(random_pictures([(16, 16)] * 2))
    with pytest.raises(DataError, match="2 pictures and 3 labels"):
        evaluate(model, pictures, [0, 1, 2], [16])
    with pytest.raises(DataError, match="labels go to 10"):
        evaluate(model, pictures, [0, 10], [16])
    with pytest.raises(DataError, match="0 pictures"):
        evaluate(model, pictures[:0], [], [16])
    with pytest.raises(ConfigError, match="dtype"):
        evaluate(model, pictures, [0, 1], [16], dtype="int8")
    with pytest.raises(ConfigError, match="size"):
        evaluate(model, pictures, [0, 1], [])
    with pytest.raises(DataError):
        evaluate(model, pictures, [0, 1], [17])  # not a multiple of the patch


def test_labels_are_matched_by_name(model: torch.nn.Module) -> None:
    names = model.config["labels"]
    shuffled = sorted(names)
    labels = np.arange(10)
    assert [names[i] for i in align_labels(labels, 10, shuffled, model)] == shuffled
    assert (align_labels(labels, 10, [f"n{i}" for i in range(10)], model) == labels).all()
    assert (align_labels(labels, 10, None, model) == labels).all()
    assert align_labels(np.array([1, 0]), 2, [names[7], names[3]], model).tolist() == [3, 7]
    with pytest.raises(DataError, match="the data have 2 classes, the model has 10"):
        align_labels(np.array([0, 1]), 2, None, model)
    with pytest.raises(DataError, match="the data have 2 classes, the model has 10, and by their names it is not"):
        align_labels(np.array([0, 1]), 2, [names[7], "other"], model)
    with pytest.raises(DataError, match=rf"class 1 is '{names[0]}' of the data and '{names[1]}' of the model"):
        align_labels(labels, 10, ["other", names[0], *names[2:]], model)  # In order it would count as another class.


def test_evaluate_data_reports(tmp_path: Path, model: torch.nn.Module) -> None:
    with pytest.raises(DataError, match="2 classes"):
        evaluate_data(model, write_toys(tmp_path / "two"))
    records = [(toy_picture(i % 2, i, (18, 16 + i)), i % 10) for i in range(10)]
    write_parquet(tmp_path / "ten" / "validation.parquet", records)
    report = evaluate_data(model, tmp_path / "ten", sizes=[16, 32], name="m", limit=6, command="zoo eval m")
    assert report["images"] == 6 and report["dataset"] == "ten" and report["split"] == "validation"
    assert [set(row) for row in report["results"]] == [{"size", "top1", "top5", "images_per_s"}] * 2
    assert report["command"] == "zoo eval m" and report["device"] == "cpu" and len(report["data_sha256"]) == 64
    assert evaluate_data(model, tmp_path / "ten")["results"][0]["size"] == 16


def test_the_mode_comes_back_and_only_the_model_runs_in_autocast(model: torch.nn.Module) -> None:
    model.train()
    inputs = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="midway"), evaluating(model, "bfloat16") as autocast:
        assert not model.training and (inputs @ inputs).dtype == torch.float32
        for _ in range(2):
            with autocast():
                assert (inputs @ inputs).dtype == torch.bfloat16
        raise RuntimeError("midway")
    assert model.training
    with evaluating(model.eval()) as autocast, autocast():
        assert (inputs @ inputs).dtype == torch.float32
    assert not model.training
    with pytest.raises(ConfigError, match=r"dtype must be one of float32, bfloat16, float16, got \['int8'\]"):
        evaluating(model, ["int8"]).__enter__()  # type: ignore[arg-type]


def test_rates_below_one_a_second_are_not_zero():
    assert [_rate(value) for value in (12345.6, 10.4, 9.96, 0.351, 0.0)] == ["12,346", "10", "10", "0.35", "0"]
