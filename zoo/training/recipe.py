"""Recipes: what a training run does, as a flat YAML file with strict keys.

A recipe holds the keys of `Recipe` and, flat beside them, those of its task: for images
`modalities.image.augment.ImageOptions`, for those in shards `modalities.image.shard_task.ShardOptions`, and
`modalities.image.detection_augment.DetectionOptions`, for events
`modalities.events.options.ClassificationOptions` and `DetectionOptions`, for video
`modalities.video.options.VideoOptions` and `MotionOptions`, for point clouds
`modalities.points.options.ClassificationOptions` and `SegmentationOptions`, for driving scenes
`modalities.driving.options.DrivingOptions`, for sequences `modalities.sequence.options.SequenceOptions`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zoo.errors import ConfigError
from zoo.training.settings import check, field_names, parse, read_settings, unknown_key

__all__ = ["TASKS", "Recipe", "built_in_recipes", "load_recipe", "parse_overrides", "recipe_from_dict"]

# Task -> "module:class" that supplies data, augmentation, loss and metric; imported when a recipe uses it.
TASKS = {
    "image-classification": "modalities.image.task:ImageClassification",
    "image-classification-shards": "modalities.image.shard_task:ShardedClassification",
    "image-detection": "modalities.image.detection_task:ImageDetection",
    "event-classification": "modalities.events.task:EventClassification",
    "event-detection": "modalities.events.task:EventDetection",
    "video-classification": "modalities.video.task:VideoClassification",
    "video-motion": "modalities.video.motion_task:MotionClassification",
    "point-classification": "modalities.points.task:PointClassification",
    "point-segmentation": "modalities.points.task:PointSegmentation",
    "driving-detection": "modalities.driving.task:DrivingDetection",
    "sequence-generation": "modalities.sequence.task:SequenceGeneration",
}

# Keys that may differ between a run and its continuation, since they do not change what is computed.
FREE_KEYS = frozenset(
    {"data", "output", "max_minutes", "checkpoint_every", "checkpoint_seconds", "device", "weights_dtype"}
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The keys common to all tasks.

    Attributes:
        model: Name for `zoo.load`.
        data: Folder with the data, or a packed data set.
        output: Folder of the run.
        task: A key of `TASKS`.
        pretrained: Start from the model's weights (fine-tuning) and not from random ones.
        model_options: Keyword arguments for `zoo.load`, such as sizes or encoding options.
        epochs: Passes over the training data.
        steps: End after so many steps, where that is before the last epoch is over; the schedule is one of these.
        batch_size: Samples of one optimiser step, over all processes.
        accumulate: Parts in which the samples of a step are computed, one after the other, where they do not fit into
            memory at once; the gradient is the mean over the parts. Each part is augmented by itself.
        lr: Peak learning rate.
        final_lr: Learning rate at the end of the cosine.
        betas: Of AdamW.
        weight_decay: Of AdamW; not applied to biases, norms and what the model's `no_weight_decay()` names.
        layer_decay: Learning-rate factor from one layer to the one below, or `None`.
        head_lr: Learning-rate factor of the head, above 1 for a new head on a trained network.
        head_first: Share of the steps, at the beginning, in which only the head learns.
        lora: Rank of the adapters (LoRA) that learn in place of the weights, beside the head; 0 for none.
        block_lr: Learning-rate factor of the transformer blocks, as published point networks have it.
        warmup: Share of all steps that warm up linearly.
        clip: Bound on the gradient's norm; 0 for none.
        drop_path: Stochastic-depth rate.
        ema: Decay of the moving average of the weights (with warm-up); 0 for none.
        precision: `"bf16"` (mixed) or `"float32"`.
        compile: Use `torch.compile`, after its first step has been checked against the eager one.
        seed: Of weights, data order, augmentation and stochastic depth.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        log_every: Steps between metric lines; `None` = once an epoch, at most 50 steps.
        eval_every: Epochs between evaluations on the dev split; 0 for none.
        select: Metric of these evaluations, such as `dev_top1`, whose best weights are kept; `None` keeps the last.
        patience: Evaluations in a row that are worse than the best, after which training ends; 0 for never.
        checkpoint_every: Epochs between checkpoints; 0 for none.
        checkpoint_seconds: Seconds between checkpoints; 0 for none. Several processes look at the clock, and whether
            they were asked to stop, where metrics are logged.
        max_minutes: Save a checkpoint and stop after this time; `None` for no limit.
        weights_dtype: Of the exported file, `"float32"`, `"float16"` or `"int8"` (see `zoo.save`). What is
            measured at the end of a run is the model before it is rounded to that.
        options: The task's own keys.
    """

    model: str
    data: str | None = None
    output: str | None = None
    task: str = "image-classification"
    pretrained: bool = False
    model_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    epochs: int = 100
    steps: int | None = None
    batch_size: int = 512
    accumulate: int = 1
    lr: float = 1e-3
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.05
    layer_decay: float | None = None
    block_lr: float = 1.0
    head_lr: float = 1.0
    head_first: float = 0.0
    lora: int = 0
    warmup: float = 0.05
    clip: float = 1.0
    drop_path: float = 0.1
    ema: float = 0.0
    precision: str = "bf16"
    compile: bool = False
    seed: int = 0
    device: str = "auto"
    log_every: int | None = None
    eval_every: int = 0
    select: str | None = None
    patience: int = 0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 60.0
    max_minutes: float | None = None
    weights_dtype: str = "float32"
    options: Any = dataclasses.field(default=None, metadata={"internal": True})

    def __post_init__(self) -> None:
        check("epochs", self.epochs, self.epochs >= 1, "at least 1")
        if self.steps is not None:
            check("steps", self.steps, self.steps >= 1, "at least 1 or null")
        check("batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        check("accumulate", self.accumulate, self.accumulate >= 1, "at least 1")
        if self.batch_size % self.accumulate:
            raise ConfigError(f"recipe: batch_size {self.batch_size} cannot be cut into {self.accumulate} equal parts")
        check("lr", self.lr, 0 < self.lr < math.inf, "above 0")
        check("final_lr", self.final_lr, 0 <= self.final_lr <= self.lr, "between 0 and lr")
        check("betas", self.betas, all(0 <= b < 1 for b in self.betas), "in [0, 1)")
        check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "0 or more")
        if self.layer_decay is not None:
            check("layer_decay", self.layer_decay, 0 < self.layer_decay <= 1, "in (0, 1] or null")
        check("block_lr", self.block_lr, 0 < self.block_lr <= 1, "in (0, 1]")
        if self.block_lr != 1 and self.layer_decay is not None:
            raise ConfigError("recipe: block_lr and layer_decay are two ways to slow blocks down: give one of them")
        check("head_lr", self.head_lr, 0 < self.head_lr <= 1000, "above 0 and at most 1000")
        check("head_first", self.head_first, 0 <= self.head_first < 1, "in [0, 1)")
        check("lora", self.lora, 0 <= self.lora <= 1024, "between 0 and 1024")
        check("warmup", self.warmup, 0 <= self.warmup < 1, "in [0, 1)")
        check("clip", self.clip, self.clip >= 0, "0 or more")
        check("drop_path", self.drop_path, 0 <= self.drop_path < 1, "in [0, 1)")
        check("ema", self.ema, 0 <= self.ema < 1, "in [0, 1)")
        check("precision", self.precision, self.precision in ("bf16", "float32"), "bf16 or float32")
        check("device", self.device, self.device in ("auto", "cpu", "cuda"), "auto, cpu or cuda")
        if self.log_every is not None:
            check("log_every", self.log_every, self.log_every >= 1, "at least 1 or null")
        for key in ("eval_every", "checkpoint_every", "checkpoint_seconds"):
            check(key, getattr(self, key), getattr(self, key) >= 0, "0 or more")
        check("patience", self.patience, self.patience >= 0, "0 or more")
        if self.select is not None and not self.eval_every:
            raise ConfigError("recipe: select chooses among evaluations: set eval_every too")
        if self.patience and self.select is None:
            raise ConfigError("recipe: patience waits for a metric: set select, for example to dev_top1")
        if self.max_minutes is not None:
            check("max_minutes", self.max_minutes, self.max_minutes > 0, "above 0 or null")
        stored = ("float32", "float16", "int8")
        check("weights_dtype", self.weights_dtype, self.weights_dtype in stored, "float32, float16 or int8")

    def part_of_step(self) -> Recipe:
        """The recipe by which a task makes the batches that are parts of a step."""
        return dataclasses.replace(self, batch_size=self.batch_size // self.accumulate, accumulate=1)

    def to_dict(self) -> dict[str, Any]:
        """All keys, flat, as a YAML or JSON file holds them."""
        values = {name: getattr(self, name) for name in field_names(Recipe)}
        if self.options is not None:
            values |= {name: getattr(self.options, name) for name in field_names(type(self.options))}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def task_class(task: str) -> Any:
    """The class of a task, imported from where `TASKS` says.

    Raises:
        ConfigError: If there is no such task.
    """
    if task not in TASKS:
        raise ConfigError(f"recipe: task must be one of {', '.join(sorted(TASKS))}, got {task!r}")
    module, name = TASKS[task].split(":")
    return getattr(importlib.import_module(module), name)


def recipe_from_dict(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from its flat keys.

    Raises:
        ConfigError: For unknown keys (naming the nearest), wrong types and values out of range.
    """
    options_class = task_class(values.get("task", "image-classification")).Options
    core, own = field_names(Recipe), field_names(options_class)
    for key in values:
        if key not in core and key not in own:
            raise unknown_key(key, core + own, where)
    recipe = parse(Recipe, {k: v for k, v in values.items() if k in core}, where)
    options = parse(options_class, {k: v for k, v in values.items() if k in own}, where)
    return dataclasses.replace(recipe, options=options)


def built_in_recipes() -> dict[str, Path]:
    """Name -> file of the recipes that come with the modalities."""
    import modalities

    files = sorted(p for root in modalities.__path__ for p in Path(root).glob("*/recipes/*.yaml"))
    return {p.stem: p for p in files}


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """`["key=value", ...]` as a mapping; values are read as YAML.

    Raises:
        ConfigError: If there is no `=`, or the value is not YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, got {pair!r}")
        try:
            values[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key.strip()}: {text!r} is not YAML: {error}") from error
    return values


def load_recipe(config: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Reads a recipe.

    Args:
        config: Path of a YAML file, or the name of a built-in recipe such as `"imagenette"`.
        overrides: Keys that replace those of the file.

    Raises:
        ConfigError: If there is no such recipe, or it is not a good one.
    """
    path, values = read_settings(config, built_in_recipes(), "recipe")
    return recipe_from_dict({**values, **(overrides or {})}, where=str(path))
