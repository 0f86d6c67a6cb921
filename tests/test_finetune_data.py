"""What is wrong with data is said before training, all of it at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import finetune_toys as toys
import numpy as np
import point_files
import pytest
from detection_toys import toy, write_boxes
from finetune_toys import SHORT, base
from training_toys import toy_picture, write_parquet

import zoo
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.finetune.report import Report
from zoo.training.holdout import split_by_class

PICTURES = {"patch_size": 8, "input_size": 16}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return base(tmp_path_factory.mktemp("base"), "pape-vit-n-imagenette", **PICTURES)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> str:
    options = {"pyramid_dim": 32, "class_width": 32, "input_size": (64, 64)}
    return base(tmp_path_factory.mktemp("base"), "pape-vit-det-n-bccd", **options)


def found(report: Report) -> dict[str, tuple[bool, int]]:
    """Kind of problem -> whether it is fatal, and how often it occurs."""
    return {problem.what: (problem.fatal, problem.count) for problem in [*report.errors, *report.notes]}


def test_good_data_have_no_problems(tmp_path: Path, classifier: str, detector: str) -> None:
    assert zoo.finetune.check(classifier, toys.write_pictures(tmp_path / "a", 3)).lines() == []
    report = zoo.finetune.check(detector, toys.write_yolo(tmp_path / "b"))
    assert found(report) == {"pictures without boxes": (False, 2)}  # Every fifth toy.
    report.raise_errors()


def test_class_folders_with_everything_wrong(tmp_path: Path, classifier: str) -> None:
    root = tmp_path / "pets"
    toys.write_pictures(root / "train", 8, names=("cat", "dog"))
    toys.write_pictures(root / "val", 2, 50, names=("cat", "bird"))
    (root / "train" / "Cat").mkdir()
    (root / "train" / "Cat" / "one.png").write_bytes(toy_picture(0, 90))
    (root / "train" / "empty").mkdir()
    for number in range(7):
        (root / "train" / "dog" / f"bad{number}.png").write_bytes(toy_picture(1, number)[:60])
    (root / "train" / "dog" / "notes.txt").write_text("mine")
    (root / "train" / "loose.png").write_bytes(toy_picture(0, 91))
    (root / "val" / "cat" / "copy.png").write_bytes((root / "train" / "cat" / "0.png").read_bytes())
    (root / "train" / "dog" / "again.png").write_bytes((root / "train" / "cat" / "1.png").read_bytes())
    (root / "train" / "cat" / "double.png").write_bytes((root / "train" / "cat" / "2.png").read_bytes())
    (root / "train" / "cat" / "small.png").write_bytes(toy_picture(0, 92, size=(8, 30)))

    report = zoo.finetune.check(classifier, root)
    problems = found(report)
    assert problems == {
        "files without a class, outside of the class folders, that are not used": (False, 1),
        "files of no known kind, that are not used": (False, 1),
        "files that cannot be read": (True, 7),
        "samples both in training and in validation": (True, 1),
        "the same sample with two classes": (False, 1),
        "copies of samples within a split": (False, 1),
        "names of classes that differ by case or blanks alone": (True, 1),
        "classes without samples": (True, 1),
        "classes in validation that are not in training": (True, 1),
        "classes of training that validation lacks": (False, 2),
        "pictures smaller than 16 px, which are enlarged": (False, 1),
    }
    unreadable = next(line for line in report.lines() if "cannot be read" in line)
    assert unreadable.count(".png") >= 5 and "2 more" in unreadable and len(unreadable) < 1500
    with pytest.raises(DataError, match="7 .*differ by case.*not in training") as error:
        zoo.finetune(classifier, root, tmp_path / "out", **SHORT)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
    assert found(zoo.finetune.check(classifier, root, skip_bad=True))["files that cannot be read"] == (False, 7)


@pytest.mark.parametrize(
    ("names", "per_class", "what"),
    [(("one",), 3, "two classes or more"), (("one", "two"), 1, "nothing can be held out")],
)
def test_too_few(tmp_path: Path, classifier: str, names: tuple[str, ...], per_class: int, what: str) -> None:
    root = toys.write_pictures(tmp_path, per_class, names=names)
    with pytest.raises(DataError, match=what):
        zoo.finetune(classifier, root, tmp_path / "out")


def test_parquet_labels(tmp_path: Path, classifier: str) -> None:
    records: list[Any] = [(toy_picture(i % 2, i), i % 2) for i in range(8)]
    records += [(toy_picture(0, 50), None), (toy_picture(0, 51), 7), (b"no picture", 1)]
    write_parquet(tmp_path / "train.parquet", records, ["dark", "bright", "never"])
    problems = found(zoo.finetune.check(classifier, tmp_path))
    assert problems["labels that are missing or no class number"] == (True, 2)
    assert problems["pictures that cannot be read"] == (True, 1)
    assert problems["classes without samples"] == (True, 1)


def test_coco_with_everything_wrong(tmp_path: Path, detector: str) -> None:
    root = toys.write_coco(tmp_path / "coco", {"train": 4, "val": 2})
    path = root / "annotations" / "instances_train.json"
    values = json.loads(path.read_text())
    image = values["images"][0]["id"]
    boxes = [[60, 60, 40, 40], [10, 10, 0, 5], [200, 200, 5, 5], [1, 2, 3], [0, 0, float("nan"), 4], [0, 0, 5, 5]]
    for number, box in enumerate(boxes):
        category = 999 if number == 5 else 1
        values["annotations"].append({"id": 100 + number, "image_id": image, "category_id": category, "bbox": box})
    values["annotations"].append({"id": 100, "image_id": 777, "category_id": 1, "bbox": [0, 0, 5, 5]})
    values["images"].append({"id": 50, "file_name": "gone.png", "height": 64, "width": 64})
    values["images"][1]["width"] = 65
    values["categories"].append({"id": 70, "name": "Square"})
    path.write_text(json.dumps(values))
    (root / "train" / "2.png").write_bytes((root / "train" / "2.png").read_bytes()[:80])
    (root / "val" / "0.png").write_bytes((root / "train" / "0.png").read_bytes())
    problems = found(zoo.finetune.check(detector, root))
    assert problems == {
        "ids of annotations that occur twice": (True, 1),
        "annotations of pictures that are not listed": (True, 1),
        "annotations without a known category": (True, 1),
        "boxes that are not four numbers": (True, 1),
        "boxes that reach beyond their picture, which are cut": (False, 1),
        "boxes without area, which are left out": (False, 1),
        "boxes outside of their picture, which are left out": (False, 1),
        "boxes with numbers that are not finite": (True, 1),
        "pictures of another size than their annotations say": (True, 1),
        "pictures that are missing or cannot be read": (True, 2),
        "samples both in training and in validation": (True, 1),
        "names of classes that differ by case or blanks alone": (True, 1),
        "classes without boxes in training": (False, 1),
    }
    path.write_text("{")
    assert found(zoo.finetune.check(detector, root))["annotations that cannot be used"] == (True, 1)


def test_yolo_lines(tmp_path: Path, detector: str) -> None:
    root = toys.write_yolo(tmp_path / "yolo", {"train": 4})
    lines = ["0 0.5 0.5 0.2 0.2", "5 0.5 0.5 0.2 0.2", "0 0.5 0.5", "cat 1 1 1 1", "0 0.5 nan 0.2 0.2"]
    lines += ["1 0.1 0.1 0.4 0.1 0.4 0.4", "0 0.5 0.5 0 0.1"]  # A polygon, and a box without area.
    (root / "labels" / "train" / "0.txt").write_text("\n".join(lines))
    (root / "labels" / "train" / "1.txt").unlink()
    problems = found(zoo.finetune.check(detector, root))
    assert problems == {
        "lines of label files that are no boxes": (True, 4),
        "pictures without a label file, taken as without objects": (False, 1),
        "pictures without boxes": (False, 1),
        "boxes without area, which are left out": (False, 1),
    }
    from modalities.image.yolo_source import parse_lines

    boxes, labels, _ = parse_lines(root / "labels" / "train" / "0.txt", 2)
    assert labels.tolist() == [0, 1, 0] and np.allclose(boxes[1], [0.1, 0.1, 0.4, 0.4])
    (root / "data.yaml").write_text("train: images/train\nnc: 3\nnames: [a, b]\n")
    with pytest.raises(DataError, match="nc is 3"):
        zoo.finetune(detector, root, tmp_path / "out")


def test_yolo_is_read_as_pixels(tmp_path: Path) -> None:
    from modalities.image.detection_data import boxed_pictures

    root = toys.write_yolo(tmp_path / "yolo", {"train": 3, "val": 2})
    data = boxed_pictures(root, "train", cache=tmp_path / "cache")
    _, boxes, labels = toy(0)
    assert data.class_names == ["square", "bar"] and data.labels[: len(labels)].tolist() == labels
    assert np.allclose(data.boxes[: len(boxes)], boxes, atol=1e-3)
    assert len(boxed_pictures(root / "data.yaml", "validation", cache=tmp_path / "cache")) == 2
    with pytest.raises(DataError, match="no split 'test'; it has train, val"):
        boxed_pictures(root, "test")


def test_parquet_boxes(tmp_path: Path, detector: str) -> None:
    records = [dict(zip(("image", "boxes", "labels"), toy(number), strict=True)) for number in range(4)]
    records[0]["labels"] = [0]
    records[1]["labels"] = [0, 9]
    write_boxes(tmp_path / "train.parquet", records)
    problems = found(zoo.finetune.check(detector, tmp_path))
    assert problems["pictures with another number of labels than boxes"] == (True, 1)
    with pytest.raises(DataError, match="no column 'label'"):  # Boxes are nothing for a classifier.
        zoo.finetune.check("pape-vit-t-imagenette", tmp_path)
    assert problems["labels that are missing or no class number"] == (True, 1)


def test_damaged_videos_recordings_and_clouds(tmp_path: Path) -> None:
    video = toys.write_videos(tmp_path / "videos", 3)
    (video / "dim" / "0.avi").write_bytes(b"nothing")
    name = base(tmp_path / "a", "pape-video-vit-n-imagenette-motion", patch_size=8, input_size=16)
    problems = found(zoo.finetune.check(name, video))
    assert problems["files that cannot be read"] == (True, 1)
    assert problems["videos of fewer than 16 frames, whose clips are shorter"][0] is False

    events = toys.write_recordings(tmp_path / "events", 3)
    (events / "left" / "0.bin").write_bytes(b"")
    name = base(tmp_path / "b", "pape-event-vit-n-nmnist1100")
    assert found(zoo.finetune.check(name, events)) == {"files that cannot be read": (True, 1)}

    clouds = toys.write_clouds(tmp_path / "clouds", 3)
    (clouds / "mesh" / "0.off").write_bytes(b"OFF\n3 1 0\n0 0")
    (clouds / "mesh" / "9.ply").write_bytes(point_files.ply(point_files.cloud(60, 900)))
    name = base(tmp_path / "c", "pape-point-vit-n-modelnet10")
    problems = found(zoo.finetune.check(name, clouds))
    assert problems["files that cannot be read"] == (True, 1)
    assert problems["clouds of fewer than 1024 points, some of which are taken again"] == (False, 4)


def test_a_model_may_need_what_clouds_lack(tmp_path: Path) -> None:
    import point_training_sets
    from test_finetune import PTV3

    name = base(tmp_path / "a", "pape-ptv3-n-als3", **PTV3)
    (tmp_path / "scans").mkdir()
    report = zoo.finetune.check(name, point_training_sets.write_scannet(tmp_path / "scannet"))
    assert any("intensity" in example for problem in report.errors for example in problem.examples)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "pape-vit-t-imagenette",
            "image classification.*class folders.*Parquet.*Found: folders docs; files in all 2 .md",
        ),
        ("pape-vit-det-n-bccd", r"object detection.*COCO.*YOLO: data\.yaml.*2 \.md"),
        ("pape-video-vit-n-imagenette-motion", "video classification.*UCF101"),
        ("pape-event-vit-n-nmnist1100", "event classification.*N-MNIST"),
        ("pape-event-det-n-nmnist-canvas", "event detection.*GEN1"),
        ("pape-point-vit-n-modelnet10", "point classification.*ModelNet"),
        ("pape-ptv3-n-als3", "point segmentation.*S3DIS"),
    ],
)
def test_an_unknown_layout_says_what_is_known_and_what_is_there(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "docs").mkdir()
    for file in ("a.md", "docs/b.md"):
        (tmp_path / file).write_text("text")
    with pytest.raises(DataError, match=words):
        zoo.finetune.check(name, tmp_path)
    with pytest.raises(DataError, match="Found: nothing"):
        zoo.finetune.check(name, tmp_path / "absent")


def test_models_that_are_not_tuned_and_sizes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="driving detection are not fine-tuned"):
        zoo.finetune.check("pape-fusion-n-simdrive", tmp_path)
    with pytest.raises(ConfigError, match="size must be"):
        zoo.finetune.check("pape-vit-t-imagenette", tmp_path, size=0)
    with pytest.raises(ConfigError, match="sensor"):
        zoo.finetune.check("pape-event-vit-n-nmnist1100", toys.write_recordings(tmp_path / "e"), size=32)


def test_data_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from zoo.finetune.hub_data import local_data

    asked: dict[str, Any] = {}

    def snapshot(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(DataError, match="has no Parquet files"):
        local_data("hf-hub:me/pets@v1")
    (tmp_path / "train.parquet").touch()
    assert local_data("hf-hub:me/pets@v1") == tmp_path
    assert (asked["repo_id"], asked["revision"], asked["repo_type"]) == ("me/pets", "v1", "dataset")

    def fails(repo_id: str, **options: Any) -> str:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(DataError, match="hf-hub:me/pets: the data set cannot be fetched.*offline"):
        local_data("hf-hub:me/pets")
    with pytest.raises(ConfigError, match="expected hf-hub:"):
        local_data("hf-hub:pets")


def test_check_prints_all_and_trains_nothing(
    tmp_path: Path, classifier: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = toys.write_pictures(tmp_path / "mine", 3)
    arguments = ["finetune", classifier, "--data", str(root), "--out", str(tmp_path / "out"), "--check"]
    for code in (0, 2):
        monkeypatch.setattr(sys, "argv", ["zoo", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        assert (stop.value.code or 0) == code and "20% of each class" in shown.out and not (tmp_path / "out").exists()
        (root / "dark" / "0.png").write_bytes(b"damaged")
        (root / "DARK").mkdir(exist_ok=True)
    assert (
        "error: files that cannot be read: 1" in shown.err and "error: classes without samples: 1 (DARK)" in shown.err
    )
    assert shown.err.strip().splitlines()[-1].startswith(f"error: {root}: ")


def test_split_by_class() -> None:
    labels = np.array([0] * 10 + [1] * 4 + [2])
    kept, held = split_by_class(labels, 0.2)
    assert sorted([*kept, *held]) == list(range(15)) and np.bincount(labels[held], minlength=3).tolist() == [2, 1, 0]
    assert np.array_equal(split_by_class(labels, 0.2)[1], held)
    assert np.bincount(labels[split_by_class(labels, 0.99)[0]], minlength=3).tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="held out"):
        split_by_class(np.arange(5), 0.2)
