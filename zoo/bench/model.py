"""Throughput and memory of whole image models, next to timm's vision transformer or another model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import zoo
from zoo.bench.goals import judge
from zoo.bench.timing import (
    compile_afresh,
    environment,
    interleaved,
    parse_whole,
    peak_mib,
    pick_batch,
    pick_device,
    pick_dtype,
    precision,
    recorded,
    threads,
)
from zoo.errors import ConfigError, ZooError
from zoo.registry import entry
from zoo.results import one_line

__all__ = ["BASELINE", "TIMM", "measure", "parse_models", "parse_pixels"]

TIMM = "timm:"
BASELINE = f"{TIMM}vit_base_patch16_224"
_PAPE = "pape-vit-b-in1k"
_DETECTOR = "pape-vit-det-b-coco"
_BOXES = 20  # Of a picture, in the train step of a detector.
_PATCH = 16  # For the default batch only.
_MAX_SIDE = 4096


def parse_models(text: str, baseline: str | None = None) -> list[str]:
    """Comma-separated names, the baseline first.

    Args:
        text: Names that `zoo.load` takes, and names of timm with the prefix `timm:`.
        baseline: Such a name; by default timm's ViT-B/16 with absolute positions.

    Raises:
        ConfigError: If timm has no such model.
        UnknownModelError: If a name without a prefix is not registered.
    """
    import timm

    names = [name.strip() for name in (baseline or BASELINE, *text.split(",")) if name.strip()]
    for name in names:
        if ":" not in name:
            entry(name)
        elif name.startswith(TIMM) and not timm.is_model(name.removeprefix(TIMM)):
            raise ConfigError(f"timm has no model {name.removeprefix(TIMM)!r:.80}: see timm.list_models()")
    return list(dict.fromkeys(names))


def parse_pixels(text: str) -> list[int]:
    """Comma-separated sides of square inputs in pixels.

    Raises:
        ConfigError: If a side is not a whole number from 1 to 4096.
    """
    return parse_whole(text, "sizes", highest=_MAX_SIDE, example="224,512,1024")


def measure(
    *,
    models: Sequence[str],
    sizes: Sequence[int],
    batch: int | None = None,
    train: bool = False,
    compiled: bool = False,
    graphs: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 10,
) -> dict[str, Any]:
    """Measures models in turn, with weights as they are drawn: values do not change the time.

    In 16 bit, inference runs a converted model and a train step (forward and backward, without optimiser) float32
    parameters under autocast. The train step of a detector has its loss, on 20 boxes a picture; inference ends with
    the chosen boxes.

    Args:
        models: Names from `parse_models`; the first is the baseline of the ratios.
        sizes: Sides of square inputs in pixels; timm's models are made for each.
        batch: Pictures; by default about 16,384 patches of 16 pixels on CUDA and one picture on the CPU.
        train: Forward and backward, instead of inference.
        compiled: Use `torch.compile`.
        graphs: Time CUDA graphs of the calls, which leaves out the launches from Python.
        device: `cpu`, `cuda` or `cuda:N`; by default CUDA where there is one.
        dtype: float32, bfloat16 or float16.
        cpu_threads: Threads of torch on the CPU.
        repeats: Samples of each timing.

    Returns:
        A JSON-ready dict; `rows` has one entry per size and model with `parameters`, `median_ms` and `p90_ms` of a
        batch, `images_per_s`, `ratio` (of medians to the baseline's), and on CUDA `memory_mib` (peak above what was
        held) and `memory_ratio`; a model that failed has `refused` with the reason instead. `goals` are those of
        `zoo.bench.goals` that this run can be held against.

    Raises:
        ConfigError: If timm cannot make a model for a size.
        DataError: If a size is not one that a registered model takes.
    """
    device, torch_dtype = pick_device(device), pick_dtype(dtype)
    rows: list[dict[str, Any]] = []
    with threads(cpu_threads):
        for size in sizes:
            pictures = pick_batch(batch, (size // _PATCH) ** 2 + 1, device)
            runs: dict[str, _Run] = {}
            timed: dict[str, Callable[[], object]] = {}
            with compile_afresh(compiled):
                for name in models:
                    run = _Run(name, size, pictures, train=train, compiled=compiled, device=device, dtype=torch_dtype)
                    try:
                        run()
                        timed[name] = recorded(run, device) if graphs else run
                    except Exception as error:
                        if name == models[0] or isinstance(error, ZooError):
                            raise
                        # Another library's model that fails must not cost the figures of the others.
                        rows.append({"size": size, "batch": pictures, "model": name, "refused": one_line(str(error))})
                    else:
                        runs[name] = run
                timings = interleaved(timed, repeats=repeats, device=device)
                memory = {name: peak_mib(run, device) for name, run in runs.items()}
            for name in runs:
                median, base = timings[name].median_ms, memory[models[0]]
                own = memory[name]
                rows.append(
                    {
                        "size": size,
                        "batch": pictures,
                        "model": name,
                        "refused": None,
                        "parameters": runs[name].parameters,
                        "median_ms": median,
                        "p90_ms": timings[name].p90_ms,
                        "images_per_s": 1e3 * pictures / median,
                        "ratio": median / timings[models[0]].median_ms,
                        "memory_mib": own,
                        "memory_ratio": None if own is None or not base else own / base,
                    }
                )
        made = environment(device)
    done = [row for row in rows if not row["refused"]]
    step, goals = "train" if train else "inference", []
    for bench, baseline, model in (("model", BASELINE, _PAPE), ("detector", _PAPE, _DETECTOR)):
        if models[0] == baseline:
            ratios = {(row["size"] // _PATCH) ** 2 + 1: row["ratio"] for row in done if row["model"] == model}
            goals += judge(
                bench,
                lambda goal, ratios=ratios: ratios.get(goal.tokens),  # type: ignore[misc]
                step=step,
                device=device,
                dtype=dtype,
                compiled=compiled,
            )
    return {
        "bench": "model",
        "train": train,
        "compiled": compiled,
        "graphs": graphs,
        "dtype": dtype,
        "repeats": repeats,
        "environment": made,
        "rows": rows,
        "goals": goals,
    }


class _Run:
    """One model with its input; calling it runs inference or a train step."""

    def __init__(
        self, name: str, size: int, batch: int, *, train: bool, compiled: bool, device: str, dtype: torch.dtype
    ) -> None:
        torch.manual_seed(0)
        wide, self._context = precision(device, dtype, train)
        model = _build(name, size).to(device, wide).train(train)
        self._parameters = list(model.parameters())
        self.parameters = sum(parameter.numel() for parameter in self._parameters)
        self._model: Callable[..., Any] = torch.compile(model) if compiled else model
        self._pixels = torch.randn(batch, 3, size, size, device=device, dtype=wide)
        self._train = train
        config: Any = getattr(model, "config", {})
        self._loss: Callable[[Any], torch.Tensor] = torch.sum
        if config.get("task") == "detection":
            self._loss = _DetectorLoss(model, size, batch, device, compiled)

    def __call__(self) -> Any:
        """One batch: logits or detections; of a train step the loss, with the gradients of all parameters."""
        if not self._train:
            with torch.inference_mode():
                return self._model(self._pixels)
        for parameter in self._parameters:
            parameter.grad = None
        with self._context:
            outputs = self._model(self._pixels)
        loss = self._loss(outputs)
        loss.backward()
        return loss


class _DetectorLoss:
    """Loss of a detector's raw maps on drawn boxes; compiled where it is in training."""

    def __init__(self, model: Any, size: int, batch: int, device: str, compiled: bool) -> None:
        from zoo.detection.compiled_loss import detection_loss
        from zoo.detection.loss import DetectionLoss
        from zoo.detection.targets import Targets

        corners = torch.rand(batch, _BOXES, 2, 2, device=device) * size
        self._targets = Targets(
            torch.cat([corners.amin(dim=2), corners.amax(dim=2)], dim=2),
            torch.randint(model.num_classes, (batch, _BOXES), device=device),
            torch.ones(batch, _BOXES, dtype=torch.bool, device=device),
        )
        self._loss = detection_loss(DetectionLoss(model.strides), compiled=compiled, device=device)

    def __call__(self, maps: Any) -> torch.Tensor:
        loss: torch.Tensor = self._loss(maps, self._targets)["loss"]
        return loss


def _build(name: str, size: int) -> nn.Module:
    if not name.startswith(TIMM):
        model: nn.Module = zoo.load(name, pretrained=False)
        return model
    import timm

    try:
        # Made for the size: its table of positions is not resampled in every forward.
        return timm.create_model(name.removeprefix(TIMM), pretrained=False, img_size=size)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be made for {size} x {size} px: {error}") from error
