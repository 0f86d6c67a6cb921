"""Key frames as driving models take them, and scores of models with and without sensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import zoo
from modalities.driving.augment import TrainingScene
from modalities.driving.batch import DrivingBatch
from modalities.driving.evaluate import Dropped, as_metrics, detect_frames, evaluate_driving, score_boxes
from modalities.driving.frames import FrameReader, ResidentFrames, collate, open_frames, to_model, training_boxes
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.truth import detection_truth
from modalities.driving.options import DrivingOptions
from tests.driving_models import AUGMENTED, CLASSES, write_model
from tests.driving_tables import write_drive
from tests.driving_toys import scenes
from zoo.errors import ConfigError, DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, of mini_train and of mini_val."""
    return write_drive(tmp_path_factory.mktemp("drive"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small network; its name for `zoo.load`."""
    return write_model(tmp_path_factory.mktemp("network") / "model")


def test_frames_hold_what_a_model_looks_at(drive: Path, network: str, tmp_path: Path) -> None:
    model = zoo.load(network)
    data = NuScenes(drive, classes=CLASSES)
    tokens = data.sample_tokens("mini_val")
    frames = FrameReader(data, tokens, model.data_config, model.sizes)
    frame = frames[1]
    assert frame.images is not None and frame.images.shape == (3, 3, 32, 48) and frame.images.dtype == torch.uint8
    assert frame.image_mask.tolist() == [True, True, False]  # The drive has no third camera.
    assert frame.points is not None and frame.points.shape[1] == 5 and frame.points[:, 4].max() > 0  # Two sweeps.
    sample = data.sample(tokens[1])
    assert sample.annotations is not None
    # Neither the animal and the rack (no class of ours) nor the barrier.
    assert sorted(frame.boxes.label.tolist()) == [0, 1, 2, 2]
    # What no ray met is not trained on.
    counts = sample.annotations.num_lidar_points.copy()
    counts[:] = 0
    empty = type(sample.annotations)(**{**vars(sample.annotations), "num_lidar_points": counts})
    assert len(training_boxes(empty)) == 0
    with pytest.raises(DataError, match="no annotations"):
        training_boxes(None)
    kept = open_frames(frames, 1.0, workers=2)
    assert isinstance(kept, ResidentFrames) and open_frames(frames, 1e-9) is frames
    assert torch.equal(kept[1].images, frame.images) and torch.equal(kept[1].points, frame.points)
    raw = collate([kept[0], kept[1]])
    batch = to_model(raw, model.data_config, CPU)
    assert len(batch) == 2 and batch.images is not None and batch.images.dtype == torch.float32
    with pytest.raises(DataError, match="to_model"):
        model.forward_raw(raw)
    lidar = FrameReader(data, tokens, model.data_config, zoo.load(write_model(tmp_path / "l", sensors="lidar")).sizes)
    alone = open_frames(lidar, 1.0)[0]
    assert isinstance(alone, TrainingScene) and alone.images is None and alone.points is not None
    assert collate([alone]).images is None


def test_images_may_be_on_another_device_than_all_else(drive: Path, network: str) -> None:
    options = DrivingOptions(**{k: v for k, v in AUGMENTED.items() if k not in ("balance",) and "paste" not in k})
    model = zoo.load(network)
    data = NuScenes(drive, classes=CLASSES)
    frame = FrameReader(data, data.sample_tokens("mini_val"), model.data_config, model.sizes)[0]
    assert frame.images is not None
    steps = options.augmentations(model.data_config)
    assert len(steps) == 11
    elsewhere = frame.replaced(images=frame.images.to("meta"))
    for seed, step in enumerate(steps):
        here, there = (step(f, torch.Generator().manual_seed(seed)) for f in (frame, elsewhere))
        assert there.images is not None and there.images.device.type == "meta" and there.points is not None
        assert torch.equal(here.points, there.points) and torch.equal(here.intrinsics, there.intrinsics)
        assert torch.equal(here.boxes.as_tensor()[:, :7], there.boxes.as_tensor()[:, :7])


def test_the_truth_scores_best_and_a_shift_costs(drive: Path) -> None:
    data = NuScenes(drive, classes=CLASSES)
    tokens = data.sample_tokens("mini_val")
    truth = detection_truth(data, tokens)
    boxes = {}
    for token in tokens:
        annotations = data.sample(token, sweeps=1).annotations
        assert annotations is not None
        own = training_boxes(annotations)
        boxes[token] = own.with_(score=torch.ones(len(own)), velocity=own.velocity.nan_to_num(0.0))
    perfect = as_metrics(score_boxes(boxes, truth, data))
    # The default attribute of a standing bicycle is right here, and a car of these is always moving.
    assert perfect["map"] == pytest.approx(100) and perfect["mate"] < 1e-3 and perfect["maae"] < 1e-3
    assert perfect["nds"] == pytest.approx(100, abs=0.5) and perfect["map/car"] == pytest.approx(100)
    moved = {token: own.with_(centre=own.centre + torch.tensor([1.5, 0, 0])) for token, own in boxes.items()}
    shifted = as_metrics(score_boxes(moved, truth, data))
    assert 40 < shifted["map"] < 60 and shifted["mate"] == pytest.approx(1.5, abs=1e-2)


def test_sensors_are_switched_off_by_name(drive: Path, network: str) -> None:
    model = zoo.load(network)
    config = model.data_config
    off = Dropped.parse("CAM_BACK+lidar", config, "camera+lidar")
    assert off == Dropped(frozenset({"CAM_BACK"}), True)
    data = NuScenes(drive, classes=CLASSES)
    frames = FrameReader(data, data.sample_tokens("mini_val"), config, model.sizes, boxes=False)
    frame = off(frames[0], config)
    assert frame.image_mask.tolist() == [True, False, False] and frame.points is not None and not len(frame.points)
    whole, blind = (detect_frames(model, frames, dropped=d, batch_size=3, workers=0) for d in (None, off))
    assert len(whole) == len(blind) == len(frames) and len(whole[0]) == 16
    assert not torch.equal(whole[0].centre, blind[0].centre)
    for text, sensors, words in (
        ("CAM_TOP", "camera+lidar", "'CAM_TOP' is no sensor"),
        ("lidar", "camera", "'lidar' is no sensor"),
        ("cameras+lidar", "camera+lidar", "nothing to look at"),
        ("CAM_FRONT+CAM_BACK+CAM_LEFT", "camera", "nothing to look at"),
        ("lidar", "lidar", "nothing to look at"),
    ):
        with pytest.raises(ConfigError, match=words):
            Dropped.parse(text, config, sensors)
    with pytest.raises(ConfigError, match="leave out sizes"):
        evaluate_driving(model, drive, split="mini_val", sizes=[32])
    with pytest.raises(ConfigError, match="no split 'valley'"):
        evaluate_driving(model, drive, split="valley")
    each = evaluate_driving(model, drive, split="mini_val", limit=1, drop=["each"])
    assert each["images"] == 1 and [row.get("condition") for row in each["results"]] == [
        None,
        *(f"without {sensor}" for sensor in ("CAM_FRONT", "CAM_BACK", "CAM_LEFT", "cameras", "lidar")),
    ]


def test_batches_are_trees_of_tensors() -> None:
    batch = scenes(20, 30)
    assert len(tree_leaves(batch)) == 6
    doubled = tree_map(lambda tensor: tensor, batch)
    assert isinstance(doubled, DrivingBatch) and torch.equal(doubled.points, batch.points)
    blind = DrivingBatch(None, batch.intrinsics, batch.camera_from_ego, batch.points, batch.offsets, batch.image_mask)
    again = tree_map(lambda tensor: tensor, blind)
    assert len(tree_leaves(blind)) == 5 and again.images is None
