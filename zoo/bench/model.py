"""Throughput and memory of whole image classifiers, next to timm's vision transformer of the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import zoo
from zoo.bench.goals import Goal, judge
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
_PATCH = 16  # For the default batch only.
_MAX_SIDE = 4096


def parse_models(text: str) -> list[str]:
    """Comma-separated names, the baseline (timm's ViT-B/16 with absolute positions) first.

    Args:
        text: Names that `zoo.load` takes, and names of timm with the prefix `timm:`.

    Raises:
        ConfigError: If timm has no such model.
        UnknownModelError: If a name without a prefix is not registered.
    """
    import timm

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if ":" not in name:
            entry(name)
        elif name.startswith(TIMM) and not timm.is_model(name.removeprefix(TIMM)):
            raise ConfigError(f"timm has no model {name.removeprefix(TIMM)!r:.80}: see timm.list_models()")
    return list(dict.fromkeys([BASELINE, *names]))


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
    """Measures classifiers in turn, with weights as they are drawn: values do not change the time.

    In 16 bit, inference runs a converted model and a train step (forward and backward, without optimiser) float32
    parameters under autocast.

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

    def ratio(goal: Goal) -> float | None:
        found = [row for row in done if row["model"] == _PAPE and (row["size"] // _PATCH) ** 2 + 1 == goal.tokens]
        return found[0]["ratio"] if found else None

    step = "train" if train else "inference"
    return {
        "bench": "model",
        "train": train,
        "compiled": compiled,
        "graphs": graphs,
        "dtype": dtype,
        "repeats": repeats,
        "environment": made,
        "rows": rows,
        "goals": judge("model", ratio, step=step, device=device, dtype=dtype, compiled=compiled),
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
        self._model: Callable[..., torch.Tensor] = torch.compile(model) if compiled else model
        self._pixels = torch.randn(batch, 3, size, size, device=device, dtype=wide)
        self._train = train

    def __call__(self) -> torch.Tensor:
        """One batch: logits, and in a train step the gradients of all parameters."""
        if not self._train:
            with torch.inference_mode():
                return self._model(self._pixels)
        for parameter in self._parameters:
            parameter.grad = None
        with self._context:
            logits = self._model(self._pixels)
        logits.sum().backward()
        return logits


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
