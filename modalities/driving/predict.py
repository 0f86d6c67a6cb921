"""What prediction needs to know of driving scenes: how a key frame becomes the input of a model, and boxes a result."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from modalities.driving.batch import DrivingBatch, DrivingInput
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.frames import open_data
from modalities.driving.metrics import MAX_BOXES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.prepare import model_input
from modalities.driving.query_head import decode
from modalities.driving.results import DrawnScene, SceneDetections
from modalities.driving.scene import Sample
from modalities.driving.submission import Modalities
from zoo.errors import ConfigError, DataError
from zoo.predict_inputs import require_finite
from zoo.reading import Source

__all__ = ["KeyFrame", "KeyFrames"]

_FRAME_OPTIONS = ("limit", "sample", "split", "version")
_OPTIONS = ("errors", "truth")


@dataclass(frozen=True, eq=False)
class KeyFrame:
    """One key frame of a data set."""

    data: NuScenes
    token: str


class KeyFrames:
    """Makes inputs of key frames, and results.

    A source is the folder of a data set in the format of nuScenes, a `NuScenes`, or a `Sample` in memory (whose
    annotations, if they are to be drawn, are labelled in the order of the model's classes). Of a data set every key
    frame is predicted, unless options say which.

    What happens without a sensor: a model for cameras and lidar goes on with those there are, and warns the first time
    that they are absent; results name the sensors that were there. One for cameras alone needs a picture, one for lidar
    alone points: without them a `DataError` says so, as it does where there is nothing at all. A camera that the tables
    do not have is absent; a picture or lidar sweep whose file is missing, or a picture that is damaged, is an error,
    and with `errors="keep"` an absent sensor. A damaged lidar sweep is always an error. Files of sensors that the model
    does not look at may be missing.

    Args:
        model: A fusion detector.
        data_config: Its preprocessing, at the size asked for.
    """

    kind = "driving"
    timed = False
    result_types = {"detection": SceneDetections}
    most = 4  # Frames of a batch: six pictures and a lidar each.

    def __init__(self, model: nn.Module, data_config: DrivingDataConfig) -> None:
        self.data_config = data_config
        self.labels: tuple[str, ...] = tuple(model.config["labels"] or ())  # type: ignore[index]
        self.sizes = FusionConfig.from_dict(model.config["model"])  # type: ignore[index, arg-type]
        self.uses = Modalities(use_camera=self.sizes.has_cameras, use_lidar=self.sizes.has_lidar)
        self._opened: dict[tuple[Any, ...], NuScenes] = {}
        self._told: set[tuple[str, ...]] = set()

    def sources(self, source: Any, options: Mapping[str, Any]) -> tuple[list[Source], bool]:
        """The key frames that a source stands for, and whether it may stand for several.

        Args:
            source: See the class.
            options: `sample`, a token or a list of them; `split`, such as `"val"`; `version`, the name of the folder of
                tables, where there are several; `limit`, the most key frames, the first ones in order of scene and
                time; `errors`, see the class. Others are for `samples`.

        Raises:
            ConfigError: If an option cannot be used.
            DataError: If there is no such data set or key frame.
        """
        chosen = {name: value for name in _FRAME_OPTIONS if (value := options.get(name)) is not None}
        if isinstance(source, Source):
            source = source.value if isinstance(source.value, (Sample, KeyFrame)) else source.name
        if isinstance(source, Sample | KeyFrame):
            if chosen:
                raise ConfigError(f"{', '.join(sorted(chosen))}: a single key frame leaves nothing to choose")
            return [Source(source, source.token)], False
        data = source if isinstance(source, NuScenes) else self._open(source, chosen, options.get("errors"))
        tokens, many = _tokens(data, **chosen)
        return [Source(KeyFrame(data, token), token) for token in tokens], many

    def samples(self, source: Source, options: Mapping[str, Any]) -> Iterator[tuple[DrivingInput, dict[str, Any]]]:
        """The input of a key frame and the fields of its result.

        Args:
            source: From `sources`.
            options: `errors`: see the class; `truth`: draw the labelled boxes too, in white. Those of `sources` change
                nothing.

        Raises:
            ConfigError: If an option is not known.
            DataError: If a file is missing or damaged, or there is nothing that the model looks at.
        """
        known = sorted((*_OPTIONS, *_FRAME_OPTIONS))
        if unknown := sorted(name for name in options if name not in known):
            raise ConfigError(f"unknown option {unknown[0]!r}; of driving scenes: {', '.join(known)}")
        keep = options.get("errors") == "keep"
        value = source.value
        names: Sequence[str]
        if isinstance(value, KeyFrame):
            read = partial(
                value.data.sample, value.token, sweeps=self.data_config.sweeps if self.sizes.has_lidar else 1
            )
            path, names = value.data.dataroot, value.data.classes
            sample = read()
        else:
            sample, read, path = value, partial(_same, value), None
            names = self.labels
        prepared = model_input(
            sample,
            self.data_config,
            cameras=self.sizes.has_cameras,
            lidar=self.sizes.has_lidar,
            damaged="mask" if keep else "raise",
        )
        mask = prepared.image_mask
        cameras = (
            []
            if mask is None
            else [n for n, there in zip(self.data_config.cameras, mask.tolist(), strict=True) if there]
        )
        self._check(sample, cameras, prepared.points)
        keep = keep or not self.sizes.has_cameras
        drawn = DrawnScene(read, tuple(names), bool(options.get("truth", False)), keep)
        yield (
            prepared,
            {
                "name": sample.token,
                "path": path,
                "global_from_ego": sample.global_from_ego,
                "scene": sample.scene,
                "timestamp_us": sample.timestamp,
                "cameras": tuple(cameras),
                "points": None if prepared.points is None else len(prepared.points),
                "uses": self.uses,
                "_picture": lambda: drawn,
            },
        )

    def collate(self, inputs: list[DrivingInput], device: torch.device, dtype: torch.dtype) -> DrivingBatch:
        """A batch for the model."""
        return DrivingBatch.from_samples(inputs).to(device, dtype)

    def results(
        self,
        model: Any,
        inputs: list[DrivingInput],
        drafts: list[dict[str, Any]],
        *,
        class_names: tuple[str, ...],
        min_score: float,
        top_k: int,
    ) -> list[SceneDetections]:
        """Runs the model on a batch.

        Raises:
            WeightsError: If its outputs are not finite.
        """
        parameter = next(model.parameters())
        outputs = model.forward_raw(self.collate(inputs, parameter.device, parameter.dtype))
        for values in (outputs.heatmap, outputs.classes, outputs.boxes):
            for row, draft in enumerate(drafts):
                require_finite(values[row], draft["name"], parameter.dtype)
        made = []
        # Every query, as in evaluation: average precision wants the weak ones too, which are not shown.
        for boxes, draft in zip(decode(outputs, MAX_BOXES, 0.0), drafts, strict=True):
            found = boxes.to("cpu", torch.float32)
            assert found.score is not None
            shown = found[found.score >= min_score][:top_k]
            made.append(SceneDetections(boxes=shown, found=found, class_names=class_names, **draft))
        return made

    def video(self, path: str | os.PathLike[str], **_: object) -> NoReturn:
        """Driving scenes have no video.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{path}: key frames make no video; save .png, .json, or to a folder")

    def _open(self, source: Any, chosen: dict[str, Any], errors: Any) -> NuScenes:
        """Opens a data set, or gives the one opened last: the tables of the full one take a minute to read."""
        if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
            raise DataError(
                "a driving model takes the folder of a data set in the format of nuScenes, a NuScenes or a Sample, not "
                f"{type(source).__name__}"
            )
        root = Path(source).expanduser()
        version = chosen.pop("version", None)
        if version is not None and not isinstance(version, str):
            raise ConfigError(f"version must be the name of a folder of tables, not {version!r:.60}")
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; a driving model takes the root of a data set (--dataroot)")
        key = (str(root), version, errors)
        if key not in self._opened:
            # Sensors that the model does not look at are drawn where they are there.
            missing: Literal["raise", "mask"] = "mask" if errors == "keep" else "raise"
            data = open_data(root, version, self.sizes.sensors, missing_images=missing, missing_lidar=missing)
            self._opened = {key: data}
        return self._opened[key]

    def _check(self, sample: Sample, cameras: list[str], points: torch.Tensor | None) -> None:
        """Warns of absent sensors; raises where nothing is left."""
        wanted = self.data_config.cameras if self.sizes.has_cameras else ()
        absent = [name for name in wanted if name not in cameras]
        lidar = points is not None and len(points) > 0
        if not cameras and not lidar:
            looks = {"camera": "cameras", "lidar": "a lidar"}
            needs = " or ".join(looks[sensor] for sensor in self.sizes.sensors.split("+"))
            has = [camera.name for camera in sample.cameras if camera.image is not None]
            has += ["points of a lidar"] if sample.points is not None and len(sample.points) else []
            raise DataError(
                f"{sample.token}: the model looks at {needs} ({', '.join(wanted) or 'LIDAR_TOP'}), and this key frame "
                f"has {', '.join(has) or 'neither pictures nor points'}"
            )
        if self.sizes.has_lidar and not lidar:
            absent.append("the lidar")
        if absent and tuple(absent) not in self._told:
            self._told.add(tuple(absent))
            warnings.warn(
                f"{sample.token}: predicted without {', '.join(absent)}, which it has not; key frames after it that "
                "lack the same are not told",
                stacklevel=2,
            )


def _same(sample: Sample) -> Sample:
    return sample


def _tokens(
    data: NuScenes,
    *,
    sample: str | Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    version: str | None = None,
) -> tuple[list[str], bool]:
    if version is not None:
        raise ConfigError("version is for the folder of a data set; this one is open already")
    if sample is not None and split is not None:
        raise ConfigError("sample and split exclude each other")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"limit must be a positive whole number, not {limit!r:.60}")
    if isinstance(sample, str):
        data.tables.sample(sample)
        return [sample], False
    if sample is None:
        found = data.sample_tokens(split)
    else:
        if not isinstance(sample, (list, tuple)):
            raise ConfigError(f"sample must be a token or a list of them, not {sample!r:.60}")
        found = list(sample)
        for token in found:
            data.tables.sample(token)
    if not found:
        raise DataError(f"{data.tables.folder}: no key frames")
    return found[:limit], True
