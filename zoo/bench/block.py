"""What each position encoding costs a transformer block, measured next to the same block without positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.bench.goals import Goal, judge
from zoo.bench.timing import (
    Timing,
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
from zoo.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["BASELINE", "BlockShape", "measure", "parse_grids", "parse_names"]

BASELINE = "none"
_MAX_GRID = 256


@dataclass(frozen=True)
class BlockShape:
    """What is measured: the widths of ViT-B by default.

    Attributes:
        dim: Feature width.
        heads: Attention heads.
        mlp_dim: Width of the MLP.
        attention_only: Measure `CoordinateAttention` instead of a whole `Block`.
    """

    dim: int = 768
    heads: int = 12
    mlp_dim: int = 3072
    attention_only: bool = False

    def build(self, encoding: str) -> torch.nn.Module:
        """A module that is called as `module(x, coords, frame=frame)`."""
        from zoo.attention import CoordinateAttention
        from zoo.transformer import Block

        if self.attention_only:
            return CoordinateAttention(self.dim, self.heads, 2, encoding)
        return Block(self.dim, self.heads, 2, mlp_dim=self.mlp_dim, encoding=encoding)


def parse_names(text: str) -> list[str]:
    """Comma-separated names of attention encodings, the baseline `none` first.

    Raises:
        ConfigError: On an unknown encoding, or one that is added to the features before the first block.
    """
    from zoo.encodings import split_name

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        token, _ = split_name(name)
        if token is not None:
            raise ConfigError(f"encoding {token!r} is added once before the first block and costs a block nothing")
    return list(dict.fromkeys([BASELINE, *names]))


def parse_grids(text: str) -> list[int]:
    """Comma-separated sides of square token grids.

    Raises:
        ConfigError: If a side is not a whole number from 1 to 256.
    """
    return parse_whole(text, "grids", highest=_MAX_GRID, example="14,32,64")


def measure(
    shape: BlockShape,
    *,
    encodings: list[str],
    grids: list[int],
    batch: int | None = None,
    train: bool = False,
    compiled: bool = False,
    graphs: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 15,
) -> dict[str, Any]:
    """Measures one block per encoding, in turn, on a square grid with a class token that has no position.

    The frame (what follows from coordinates alone) is made once per forward and shared by all layers of a network, so
    it is timed apart. In 16 bit, inference runs a converted block and a train step runs under autocast.

    Args:
        shape: Widths, and whether to measure attention alone.
        encodings: Names from `parse_names`; the first is the baseline of the ratios.
        grids: Sides of the token grids.
        batch: Samples; by default about 16,384 tokens on CUDA and one sample on the CPU.
        train: Forward and backward, instead of inference.
        compiled: Use `torch.compile`.
        graphs: Time CUDA graphs of the calls, which leaves out the launches from Python.
        device: `cpu`, `cuda` or `cuda:N`; by default CUDA where there is one.
        dtype: float32, bfloat16 or float16.
        cpu_threads: Threads of torch on the CPU.
        repeats: Samples of each timing.

    Returns:
        A JSON-ready dict; `rows` has one entry per grid and encoding with `median_ms`, `p90_ms`, `ratio` (of medians
        to the baseline's), `frame_ms`, and on CUDA `memory_mib` (peak above what was held) and `memory_ratio`. `goals`
        are those of `zoo.bench.goals` that this run can be held against.
    """
    device, torch_dtype = pick_device(device), pick_dtype(dtype)
    rows: list[dict[str, Any]] = []
    with threads(cpu_threads):
        for grid in grids:
            samples = pick_batch(batch, grid * grid + 1, device)
            with compile_afresh(compiled):
                runs = {
                    name: _Run(
                        shape, name, grid, samples, train=train, compiled=compiled, device=device, dtype=torch_dtype
                    )
                    for name in encodings
                }
                timed = {name: recorded(run, device) if graphs else run for name, run in runs.items()}
                timings = interleaved(timed, repeats=repeats, device=device)
                memory = {name: peak_mib(run, device) for name, run in runs.items()}
            frames = interleaved({name: run.make_frame for name, run in runs.items()}, repeats=repeats, device=device)
            rows += [_row(name, encodings[0], grid, samples, timings, frames, memory) for name in encodings]
        made = environment(device)

    def ratio(goal: Goal) -> float | None:
        found = [row for row in rows if row["encoding"] == "pape" and row["tokens"] == goal.tokens]
        return found[0]["ratio" if goal.quantity == "time" else "memory_ratio"] if found else None

    step = "train" if train else "inference"
    judged = (
        judge("block", ratio, step=step, device=device, dtype=dtype, compiled=compiled) if shape == BlockShape() else []
    )
    return {
        "bench": "attention" if shape.attention_only else "block",
        "train": train,
        "compiled": compiled,
        "graphs": graphs,
        "dim": shape.dim,
        "heads": shape.heads,
        "mlp_dim": shape.mlp_dim,
        "dtype": dtype,
        "repeats": repeats,
        "environment": made,
        "rows": rows,
        "goals": judged,
    }


def _row(
    name: str,
    baseline: str,
    grid: int,
    batch: int,
    timings: dict[str, Timing],
    frames: dict[str, Timing],
    memory: dict[str, float | None],
) -> dict[str, Any]:
    own, base = memory[name], memory[baseline]
    return {
        "grid": grid,
        "tokens": grid * grid + 1,
        "batch": batch,
        "encoding": name,
        "median_ms": timings[name].median_ms,
        "p90_ms": timings[name].p90_ms,
        "ratio": timings[name].median_ms / timings[baseline].median_ms,
        "frame_ms": frames[name].median_ms,
        "memory_mib": own,
        "memory_ratio": None if own is None or not base else own / base,
    }


class _Run:
    """One block with its input; calling it runs inference or a train step (without optimiser)."""

    def __init__(
        self,
        shape: BlockShape,
        encoding: str,
        grid: int,
        batch: int,
        *,
        train: bool,
        compiled: bool,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        import torch

        from zoo.coordinates import grid as make_grid

        torch.manual_seed(0)
        wide, self._context = precision(device, dtype, train)
        module = shape.build(encoding).to(device, wide).train(train)
        self._attention: Any = module if shape.attention_only else module.attn
        self._module: Callable[..., torch.Tensor] = torch.compile(module) if compiled else module
        self._parameters = list(module.parameters())
        self.coords = make_grid(grid, grid, device=device).with_prefix(1)
        self.x = torch.randn(batch, grid * grid + 1, shape.dim, device=device, dtype=wide)
        self._gradient = torch.randn_like(self.x)
        self._train = train
        with torch.inference_mode(not train), self._context:
            self.frame = self.make_frame()

    def make_frame(self) -> Any:
        """What follows from the coordinates alone."""
        return self._attention.frame(self.x, self.coords)

    def __call__(self) -> torch.Tensor:
        """One inference, or one forward and backward."""
        import torch

        if not self._train:
            with torch.inference_mode():
                return self._module(self.x, self.coords, frame=self.frame)
        # The input asks for a gradient, as it does in the middle of a network.
        x = self.x.detach().requires_grad_()
        for parameter in self._parameters:
            parameter.grad = None
        with self._context:
            out = self._module(x, self.coords, frame=self.frame)
        out.backward(self._gradient.to(out.dtype))
        return out
