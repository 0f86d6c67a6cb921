"""Pictures of key frames with labelled boxes, or with the ones of a submission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modalities.driving.nuscenes.classes import DETECTION_CLASSES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.rigid import invert_rigid
from modalities.driving.scene import Sample
from modalities.driving.sheet import REACH, Layer, SceneSheet
from modalities.driving.submission import read_submission
from zoo.errors import DataError

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["WHITE", "key_frame_picture", "truth_layer"]

WHITE = (255, 255, 255)
"""Colour of labelled boxes below predicted ones."""


def truth_layer(sample: Sample, class_names: Sequence[str], colour: tuple[int, int, int] | None = None) -> Layer:
    """The labelled boxes of a key frame.

    Args:
        sample: The key frame.
        class_names: Names of the labels of its annotations.
        colour: See `Layer`.

    Raises:
        DataError: If it has no annotations.
    """
    if sample.annotations is None:
        raise DataError(f"{sample.token}: no annotations (a test set?): no labelled boxes to draw")
    return Layer(sample.annotations.boxes, class_names, "labelled", colour)


def key_frame_picture(
    data: NuScenes,
    token: str | None = None,
    *,
    predictions: str | Path | None = None,
    min_score: float = 0.25,
    sweeps: int = 1,
    reach: float = REACH,
    keep: bool = False,
) -> PIL.Image.Image:
    """Draws a key frame of a data set with its labelled boxes, or with predicted ones.

    Args:
        data: The data set.
        token: Of the key frame; by default the first in order of scene and time, of those with predictions where such
            are given.
        predictions: A file in the format of nuScenes submissions, whose boxes are drawn, and those labelled in white,
            where there are some.
        min_score: Predictions with a smaller score are left out.
        sweeps: Lidar sweeps that are laid together.
        reach: Metres from the car to the edge of the bird's-eye view.
        keep: Leave out pictures that cannot be decoded.

    Raises:
        DataError: If a file cannot be read, the predictions have no such key frame, or there are no boxes to draw.
        ConfigError: If an option cannot be used.
    """
    predicted = None if predictions is None else read_submission(predictions).results
    if token is None:
        if not (tokens := data.sample_tokens()):
            raise DataError(f"{data.tables.folder}: no key frames")
        token = next((one for one in tokens if predicted is not None and one in predicted), tokens[0])
    sample = data.sample(token, sweeps=sweeps)
    if predicted is None:
        return SceneSheet(sample, reach, keep=keep).paint([truth_layer(sample, data.classes)])
    found = predicted.get(token)
    if found is None:
        raise DataError(f"{predictions}: no entry for the key frame {token}")
    boxes = found.boxes.transform(invert_rigid(sample.global_from_ego))
    assert boxes.score is not None
    layers = [Layer(boxes[boxes.score >= min_score], DETECTION_CLASSES, "predicted")]
    if sample.annotations is not None:
        layers.insert(0, truth_layer(sample, data.classes, WHITE))
    return SceneSheet(sample, reach, keep=keep).paint(layers)
