"""What clouds of different lengths cost in one batch and one by one, and how long a single cloud takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zoo.bench.timing import environment, interleaved, pick_device, pick_dtype, precision, threads
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from modalities.points import PointBatch

__all__ = ["LENGTHS", "LIMIT_MS", "LIMIT_RATIO", "measure", "surface"]

LENGTHS = (40, 1_000, 30_000)
"""Points of the clouds of the batch."""

LIMIT_RATIO, LIMIT_MS = 1.1, 500.0
"""What the batch may cost over the sum of its clouds, and a cloud of 1,024 points in the smallest size on a CPU."""

STEPS = ("inference", "train")


def surface(points: int, features: int, voxel: float, seed: int = 0) -> tuple[Any, Any]:
    """Points on the faces of a box, as many as the faces have voxels: where real clouds have their points.

    Args:
        points: Number of points N.
        features: Number of features F.
        voxel: Edge of a voxel.
        seed: Of the random numbers.

    Returns:
        Coordinates (N, 3) and features (N, F), float32.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    side = voxel * math.sqrt(max(points, 1) / 6)
    xyz = torch.rand(points, 3, generator=generator)
    face = torch.randint(0, 6, (points,), generator=generator)
    xyz[torch.arange(points), face % 3] = (face // 3).float()
    return (xyz - 0.5) * side, torch.rand(points, features, generator=generator) * 2 - 1


def measure(
    name: str,
    *,
    lengths: Sequence[int] = LENGTHS,
    points: int = 1024,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 10,
    train: bool = False,
    pretrained: bool = False,
) -> dict[str, Any]:
    """Times a batch of clouds together and one by one, in turn: the whole model and one layer of attention.

    Args:
        name: A model for points.
        lengths: Points of the clouds of the batch.
        points: Points of the single cloud.
        device: See `zoo.bench.timing.pick_device`.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        cpu_threads: Threads of PyTorch.
        repeats: Samples of each timing.
        train: Forward and backward (in 16 bit under autocast) instead of inference.
        pretrained: With weights; the time is the same without.

    Returns:
        `model`, `lengths`, `step`, `dtype`, `rows` (what, together_ms, apart_ms, ratio), `single` (points, median_ms,
        p90_ms), `limits`, `environment`.

    Raises:
        ConfigError: On values that cannot be used, or a model that does not take clouds.
    """
    import zoo
    from modalities.points import PointBatch

    if not lengths or min(lengths) < 1 or points < 1:
        raise ConfigError(f"clouds need at least one point each, got {list(lengths)} and {points}")
    place, wanted = pick_device(device), pick_dtype(dtype)
    wide, context = precision(place, wanted, train)
    model = zoo.load(name, pretrained=pretrained, device=place, dtype=str(wide).removeprefix("torch.")).train(train)
    if model.config["modality"] != "points":
        raise ConfigError(f"{name} takes {model.config['modality']}, not clouds: see `zoo list --modality points`")
    voxel = model.data_config.grid_size or 2 / math.sqrt(points)
    chans = model.data_config.in_chans
    clouds = [surface(length, chans, voxel, seed) for seed, length in enumerate(lengths)]

    def batch(chosen: Sequence[tuple[Any, Any]]) -> PointBatch:
        return PointBatch.from_clouds(chosen).to(place)

    together, apart = batch(clouds), [batch([one]) for one in clouds]
    single = batch([surface(points, chans, voxel, len(clouds))])

    def run(one: PointBatch) -> None:
        _step(model, lambda: model(one), context, train)

    calls: dict[str, Callable[[], object]] = {
        "model together": lambda: run(together),
        "model apart": lambda: list(map(run, apart)),
        "single": lambda: run(single),
    }
    if hasattr(model, "geometry"):
        calls |= _attention_calls(model, together, apart, context, train)
    with threads(cpu_threads):
        timings = interleaved(calls, repeats=repeats, warmup=2, device=place)
        made = environment(place)
    rows = [
        {
            "what": what,
            "together_ms": timings[f"{what} together"].median_ms,
            "apart_ms": timings[f"{what} apart"].median_ms,
            "ratio": timings[f"{what} together"].median_ms / timings[f"{what} apart"].median_ms,
        }
        for what in ("model", "attention")
        if f"{what} together" in timings
    ]
    one = timings["single"]
    return {
        "model": name,
        "lengths": list(lengths),
        "step": STEPS[train],
        "dtype": dtype,
        "rows": rows,
        "single": {"points": points, "median_ms": one.median_ms, "p90_ms": one.p90_ms},
        "limits": {"ratio": LIMIT_RATIO, "single_ms": LIMIT_MS},
        "environment": made,
    }


def _step(model: Any, forward: Callable[[], Any], context: Any, train: bool) -> None:
    """One inference, or one forward and backward."""
    import torch

    if not train:
        with torch.inference_mode(), context:
            forward()
        return
    with context:
        out = forward()
    model.zero_grad(set_to_none=True)
    out.float().square().mean().backward()


def _attention_calls(
    model: Any, together: PointBatch, apart: Sequence[PointBatch], context: Any, train: bool
) -> dict[str, Callable[[], object]]:
    """The attention of the first block alone, on the patches of its first curve."""
    import torch

    layer = model.encoder[0][0].block.attn
    weight = layer.qkv.weight

    def prepared(batch: PointBatch) -> Callable[[], None]:
        coords = model.geometry(batch).serial(0, 0).coords
        x = torch.randn(len(coords.values), layer.dim, device=weight.device, dtype=weight.dtype)
        with context, torch.inference_mode(not train):
            frame = layer.frame(x, coords)
        return lambda: _step(layer, lambda: layer(x, coords, frame=frame), context, train)

    whole, parts = prepared(together), [prepared(one) for one in apart]
    return {"attention together": whole, "attention apart": lambda: [part() for part in parts]}
