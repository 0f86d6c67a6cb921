"""The glue to ultralytics (AGPL-3.0): the only module that imports it. Use `zoo.to_ultralytics`.

A detector becomes two layers of a `DetectionModel` of theirs, what is below the pyramid and what is above, which
share all modules with it: `freeze=1` trains pyramid and head alone. Their trainer, validator, predictor and exporter
then work as with their own networks, apart from what would use the network unasked.

Shapes: B batch, A cells of all levels (finest first), K classes.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionPredictor, DetectionTrainer, DetectionValidator
from ultralytics.nn.modules.head import Detect
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils import DEFAULT_CFG_DICT, LOGGER
from ultralytics.utils.loss import E2EDetectLoss

from zoo import registry
from zoo.detection.decode import decode, select
from zoo.detection.parameter_count import BINS
from zoo.errors import ConfigError, WeightsError
from zoo.interop.parts import Backbone, flat, same_names, stem

__all__ = ["ZooNetwork", "ZooYOLO"]

_TOWERS = ("cv2", "cv3", "one2one_cv2", "one2one_cv3")
_GRID = 32  # Sides of their batches are multiples of it.
# Their callbacks that send analytics, or talk to their platform.
_REPORTING = ("ultralytics.utils.events", "ultralytics.utils.callbacks.platform")


class Head(Detect):
    """Pyramid and YOLOv10 head, with what the code of ultralytics looks for in a head.

    Args:
        detector: What they belong to; all modules stay shared with it.
    """

    fused = False

    def __init__(self, detector: Any) -> None:
        nn.Module.__init__(self)  # That of Detect makes towers of its own.
        self.pyramid, self.towers = detector.pyramid, detector.head
        self.nl, self.reg_max = len(detector.strides), BINS
        self.stride = torch.tensor([float(stride) for stride in detector.strides])
        self.max_det, self.min_score = detector.max_detections, detector.min_score
        self.end2end = True

    @property
    def nc(self) -> int:
        """Classes."""
        return int(self.towers.num_classes)

    @property
    def no(self) -> int:
        """Channels of a raw map."""
        return self.nc + 4 * self.reg_max

    def __getattr__(self, name: str) -> Any:
        return getattr(self.towers, name) if name in _TOWERS else super().__getattr__(name)

    def fuse(self) -> None:
        """Leaves out the branch that inference does not use; nothing is removed."""
        self.fused = True

    def bias_init(self) -> None:
        """Does nothing: the head has its priors from the start."""

    def forward(self, features: Tensor) -> Any:
        """Predictions of both branches, decoded in eval mode.

        Args:
            features: (B, C, rows, columns).

        Returns:
            In training mode `{"one2many": ..., "one2one": ...}`, each as `flat` gives it. In eval mode a pair of
            detections and that: (B, max_det, 6) as x1, y1, x2, y2, score and class, or (B, 4 + K, A) of the one2many
            branch, with boxes as centre and size. In export mode the detections alone.
        """
        levels = self.pyramid(features)
        if self.end2end and (self.export or self.fused) and not self.training:
            maps = {"one2one": self.towers.one2one(levels)}
        else:
            maps = self.towers(levels)
        raw = {name: flat(branch) for name, branch in maps.items()}
        if self.training:
            return raw
        found = self._detect(maps["one2one"]) if self.end2end else self._candidates(maps["one2many"])
        return found if self.export else (found, raw)

    def _detect(self, maps: Sequence[Tensor]) -> Tensor:
        boxes, scores = decode(maps, self.towers.strides)
        if self.agnostic_nms:  # One class a cell.
            scores = scores.masked_fill(scores < scores.amax(dim=2, keepdim=True), 0.0)
        return select(boxes, scores, self.max_det, self.min_score)

    def _candidates(self, maps: Sequence[Tensor]) -> Tensor:
        boxes, scores = decode(maps, self.towers.strides)
        if not self.xyxy:
            near, far = boxes.split(2, dim=2)
            boxes = torch.cat([(near + far) / 2, far - near], dim=2)
        return torch.cat([boxes, scores], dim=2).transpose(1, 2)


class YOLOv10Loss(E2EDetectLoss):
    """Their loss with the assignments of YOLOv10, 10 cells and 1 for an object, both branches weighted alike."""

    def update(self) -> None:
        """Does nothing: the weights stay. Their trainer calls it after an epoch."""


class ZooNetwork(DetectionModel):
    """A detector of ours as a network of theirs.

    Args:
        detector: An image detector with its `config`; all modules stay shared with it.
    """

    def __init__(self, detector: Any) -> None:
        nn.Module.__init__(self)  # That of DetectionModel parses a description of their layers.
        config = detector.config
        layers: list[Any] = [Backbone(detector), Head(detector)]
        for index, layer in enumerate(layers):
            layer.i, layer.f, layer.type = index, -1, type(layer).__name__
            layer.np = sum(parameter.numel() for parameter in layer.parameters())
        self.model: Any = nn.Sequential(*layers)
        self.save: Any = []  # Of no layer but the last.
        self.inplace, self.task = True, "detect"
        self.args: Any = {}
        labels = config.get("labels") or [str(index) for index in range(detector.num_classes)]
        self.names, self.nc = dict(enumerate(labels)), detector.num_classes
        self.yaml = {
            "yaml_file": f"{stem(config)}.yaml",
            "zoo": config,
            "channels": detector.in_chans,
            "nc": detector.num_classes,
        }
        # Their batches are multiples of the greatest, which must hold whole patches on every level.
        grid = math.lcm(_GRID, round(max(detector.strides)))
        self.stride = torch.tensor([*(float(stride) for stride in sorted(detector.strides)[:-1]), float(grid)])
        self.train(detector.training)

    @property
    def zoo_model(self) -> Any:
        """The detector."""
        return self.model[0].detector

    def train(self, mode: bool = True) -> ZooNetwork:
        """Sets training mode, of the detector also."""
        self.zoo_model.training = mode  # The one module of it that is not registered.
        super().train(mode)
        return self

    def is_fused(self) -> bool:
        """Whether inference leaves a branch out."""
        return bool(self.model[-1].fused)

    def init_criterion(self) -> YOLOv10Loss:
        """The loss of YOLOv10 in their implementation."""
        return YOLOv10Loss(self)

    def rename(self, names: Mapping[int, str]) -> None:
        """Takes over the classes of a data set; another number of them re-initialises the class layers."""
        labels = [str(names[index]) for index in sorted(names)]
        detector = self.zoo_model
        if len(labels) != detector.num_classes:
            detector.reset_classifier(len(labels))
        named = labels != [str(index) for index in range(len(labels))]
        detector.config = {**detector.config, "labels": labels if named else None}
        self.names, self.nc, self.criterion = dict(enumerate(labels)), len(labels), None
        self.yaml = {**self.yaml, "zoo": detector.config, "nc": self.nc}

    def load(self, weights: Any, verbose: bool = True) -> None:
        """Takes the weights that fit from another network of ours; rows of class layers go by the names of the classes.

        Args:
            weights: The network, or a checkpoint with it.
            verbose: Log how many fit.

        Raises:
            WeightsError: If it is another kind of network, or most of its encoder does not fit.
        """
        source = (weights.get("ema") or weights["model"]) if isinstance(weights, dict) else weights
        if not isinstance(source, ZooNetwork):
            raise WeightsError(
                f"these weights are those of a {type(source).__name__}, not of a model that to_ultralytics made"
            )
        own, given = self.state_dict(), source.state_dict()
        state = {key: value.float() for key, value in given.items() if key in own and value.shape == own[key].shape}
        blocks = [key for key in own if key.startswith("model.0.encoder.blocks.")]
        if 2 * sum(key in state for key in blocks) < len(blocks):
            raise WeightsError("most weights of the encoder do not fit: these are of a model with other sizes")
        rows = same_names(source.names, self.names)
        if rows and source.names != self.names:
            to, origin = (torch.tensor(index) for index in zip(*rows, strict=True))
            for key in self._class_layers():
                if own[key].shape[1:] == given[key].shape[1:]:
                    state[key] = own[key].clone().cpu()
                    state[key][to] = given[key][origin].to("cpu", state[key].dtype)
        self.load_state_dict(state, strict=False)
        self.pt_path = getattr(source, "pt_path", None)
        if verbose:
            LOGGER.info(f"Transferred {len(state)}/{len(own)} items from pretrained weights")

    def adopt(self, trained: ZooNetwork) -> None:
        """Becomes equal to a network of the same sizes that was trained from this one, in place."""
        self.rename(trained.names)
        self.load_state_dict(trained.state_dict())
        self.args, self.pt_path = trained.args, getattr(trained, "pt_path", None)

    def _class_layers(self) -> list[str]:
        return [
            f"model.1.towers.{branch}.{level}.2.{kind}"
            for branch in ("cv3", "one2one_cv3")
            for level in range(self.model[-1].nl)
            for kind in ("weight", "bias")
        ]


class _Silent:
    """Runs all callbacks but those that report to the makers of ultralytics."""

    callbacks: dict[str, list[Any]]

    def run_callbacks(self, event: str) -> None:
        """Runs those of an event."""
        for callback in self.callbacks.get(event, []):
            if getattr(callback, "__module__", None) not in _REPORTING:
                callback(self)


class ZooPredictor(_Silent, DetectionPredictor):
    """Their predictor; it squashes pictures for a model that was trained so."""

    def setup_model(self, model: Any, verbose: bool = True) -> None:
        """Prepares the network."""
        if isinstance(model, ZooNetwork):
            self.scale_fill = model.zoo_model.data_config.resize == "squash"
        super().setup_model(model, verbose)


class ZooValidator(_Silent, DetectionValidator):
    """Their validator."""


class ZooTrainer(_Silent, DetectionTrainer):
    """Their trainer, of our networks."""

    def _setup_train(self) -> None:
        # Their check of float16 downloads a network of theirs.
        if self.device.type == "cuda" and self.args.amp in (True, "fp16"):
            self.args.amp = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else False
            LOGGER.info(f"Mixed precision: amp={self.args.amp!r}")
        super()._setup_train()

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> ZooNetwork:
        """A new network for the classes of the data set.

        Args:
            cfg: The description `yaml` of one.
            weights: The network to take weights from, or `None` for random ones.
            verbose: Log how many fit.
        """
        config = cfg.get("zoo") if isinstance(cfg, Mapping) else None
        if config is None:
            raise ConfigError(
                "this trainer builds models of pape-zoo alone: start it with to_ultralytics(model).train()"
            )
        channels = config["model"]["in_chans"]
        if self.data["channels"] != channels:
            raise ConfigError(
                f"the model takes {channels} channels, the data set has {self.data['channels']}: set `channels: "
                f"{channels}` in its description, or load the model with in_chans={self.data['channels']}"
            )
        settings = {**config["model"], "num_classes": self.data["nc"]}
        new = {**copy.deepcopy(config), "model": settings, "labels": None}
        network = ZooNetwork(registry.architecture(new).build(new))
        network.rename(self.data["names"])
        if weights is not None:
            network.load(weights, verbose)
            network.zoo_model.encoder.grad_checkpointing = weights.zoo_model.encoder.grad_checkpointing
        return network

    def get_validator(self) -> ZooValidator:
        """The validator of the epochs."""
        return ZooValidator(
            self.test_loader, save_dir=self.save_dir, args=copy.copy(self.args), _callbacks=self.callbacks
        )


class ZooYOLO(YOLO):
    """Their `YOLO` with a detector of ours; made by `zoo.to_ultralytics`."""

    def __init__(self, model: str, network: ZooNetwork | None = None) -> None:
        self.__dict__["given"] = network  # What `_load` takes; attributes of modules need their own constructor first.
        super().__init__(model, task="detect")

    @classmethod
    def from_model(cls, detector: Any) -> ZooYOLO:
        """Of a detector, whose weights it shares."""
        return cls(stem(detector.config), ZooNetwork(detector))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ZooYOLO:
        """Of a checkpoint of their trainer or of `save`."""
        file = Path(path)
        if file.suffix.lower() != ".pt" or not file.is_file():  # They would look for others on the network.
            raise WeightsError(f"there is no .pt file {str(path)!r:.200}")
        return cls(str(file))

    @property
    def zoo_model(self) -> Any:
        """The detector."""
        return self.model.zoo_model

    @property
    def task_map(self) -> dict[str, dict[str, Any]]:
        """The classes that work on our networks."""
        classes = {"model": ZooNetwork, "trainer": ZooTrainer, "validator": ZooValidator, "predictor": ZooPredictor}
        return {"detect": classes}

    def _load(self, weights: str, task: str | None = None) -> None:
        network = self.__dict__.pop("given", None)
        if network is not None:
            self.model, self.task, self.model_name = network, "detect", weights
            self.overrides.update(model=weights, task="detect")
            self._use_own_defaults()
            network.args = {**DEFAULT_CFG_DICT, **self.overrides}
            self.ckpt = {"epoch": -1, "train_args": dict(self.overrides)}  # What `save` adds.
        else:
            try:
                super()._load(weights, task)
            except Exception as error:  # Damaged pickles raise anything.
                raise WeightsError(f"{weights} cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(self.model, ZooNetwork):
            raise WeightsError(f"{weights} holds a {type(self.model).__name__}, not a model that to_ultralytics made")
        self._use_own_defaults()

    def _use_own_defaults(self) -> None:
        size, limit = max(self.zoo_model.data_config.input_size[1:]), self.zoo_model.max_detections
        self.overrides: dict[str, Any] = {"imgsz": size, "max_det": limit, **self.overrides, "nms": False}

    def predict(self, source: Any = None, stream: bool = False, predictor: Any = None, **kwargs: Any) -> Any:
        """Their `predict`, by default with `rect=False`: the whole letterbox, as the model was trained."""
        kwargs.setdefault("rect", False)
        return super().predict(source, stream, predictor, **kwargs)

    def val(self, validator: Any = None, **kwargs: Any) -> Any:
        """Their `val`, by default with `rect=False`.

        Raises:
            ConfigError: If there is no `data`: theirs would download an example.
        """
        self._check_data("val", kwargs)
        kwargs.setdefault("rect", False)
        return super().val(validator, **kwargs)

    def train(self, trainer: Any = None, **kwargs: Any) -> Any:
        """Their `train`; at the end the detector holds the best weights.

        Raises:
            ConfigError: If there is no `data`: theirs would download an example.
        """
        if not kwargs.get("resume"):
            self._check_data("train", kwargs)
        network = self.model
        try:
            metrics = super().train(trainer, **kwargs)
        except BaseException:
            self.model, self.predictor = network, None
            raise
        if self.model is not network:
            network.adopt(self.model)
            self.model = network
        self._use_own_defaults()
        return metrics

    def _check_data(self, mode: str, arguments: dict[str, Any]) -> None:
        if not arguments.get("data"):
            known = self.overrides.get("data")
            if not known or not Path(str(known)).exists():
                raise ConfigError(f"{mode} needs data='...yaml', the description of a data set in ultralytics' format")
            arguments["data"] = known
