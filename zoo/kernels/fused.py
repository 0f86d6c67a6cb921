"""Attention with the position term inside our Triton kernels, as operators that compiling and exporting see through.

Legend: B batch, H heads, N tokens, D head width, p coordinate axes, S packed samples.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Columns, Distances, Parabolas, Terms
from zoo.errors import DataError

__all__ = ["MAX_AXES", "fused_attention", "interpreted", "shapes_problem"]

HEAD_WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)
MAX_AXES = 4
_PLAIN, _COLUMNS, _PARABOLAS, _DISTANCES = range(4)


@dataclass(frozen=True)
class Tiling:
    """Queries and keys of a tile, warps of a program, and stages of the software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiling(kernel: str, width: int, kind: int) -> Tiling:
    """The tiling of `"forward"`, `"queries"` or `"keys"` (backward) for a head width and a kind of term.

    Differences of coordinates take registers, so those kinds have smaller tiles.
    """
    if kind in (_PARABOLAS, _DISTANCES) or width == 128:
        return Tiling(64, 64, 4, 2)
    return _TILINGS[kernel]


# The fastest of those tried on an H200 with columns at 64 x 64 tokens, and within a tenth at 14 x 14 and 32 x 32; see
# zoo/kernels/README.md.
_TILINGS = {
    "forward": Tiling(128, 64, 8, 3),
    "queries": Tiling(64, 32, 4, 3),
    "keys": Tiling(64, 64, 4, 3),
}


# Found once: compiling traces what asks for it.
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = _HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


def interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, by its interpreter (`TRITON_INTERPRET=1` at import), for tests."""
    return _INTERPRETED


def shapes_problem(device: torch.device, dtype: torch.dtype, width: int, value_width: int) -> str | None:
    """Why the kernels cannot run at all for tensors like these, or `None`."""
    if not _HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"it runs on CUDA, not on {device.type}"
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs compute capability 8.0"
    if dtype not in DTYPES:
        return f"it runs in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if width not in HEAD_WIDTHS or value_width != width:
        widths = ", ".join(map(str, HEAD_WIDTHS))
        return f"it takes q, k and v of equal width {widths}; these are {width} and {value_width}"
    return None


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | None,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention with a position term, forward and backward in Triton; arguments as `zoo.kernels.attend` has them.

    Args:
        q: (B, H, N, D) float16 or bfloat16, D contiguous.
        k: (B, H, N, D).
        v: (B, H, N, D).
        terms: Position term or `None`. Gradients flow to M and t of `Columns` and to `Parabolas.coefficients`.
        scale: Softmax scale, above 0.
        mask: Bool (B, N), True for visible keys.
        causal: Query i sees keys 0..i of its sample.
        cu_seqlens: Offsets (S + 1,) of packed samples, B = 1.

    Returns:
        (B, H, N, D) like q.
    """
    if not scale > 0:  # The largest product would not be that of the largest logit.
        raise DataError(f"the softmax scale must be above 0, got {scale!r:.80}: turn the sign of q instead")
    queries = slope = keys = values = known = heads = None
    kind, inexact, powers, order, border = _PLAIN, 0, 0, 2, 0.0
    match terms:
        case Columns():
            kind, values, known, keys = _COLUMNS, terms.values, terms.positioned, terms.keys
            queries = terms.curvature.expand(*q.shape[:3], -1)  # Either may be the same for some.
            slope = None if terms.slope is None else terms.slope.expand(*q.shape[:3], -1)
            inexact, powers = terms.inexact, _packed_powers(terms.powers)
        case Parabolas():
            kind, queries, values, known = _PARABOLAS, terms.coefficients.contiguous(), terms.values, terms.positioned
        case Distances():
            kind, values, known, order, border = _DISTANCES, terms.values, terms.positioned, terms.order, terms.border
            heads = terms.slopes.reshape(-1, 1)
            if terms.fields is not None:
                heads = torch.cat([heads, terms.fields.flatten(1)], dim=1)
            heads = heads.contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    keys, values, known, mask = (None if x is None else x.contiguous() for x in (keys, values, known, mask))
    out, _ = _forward(
        q, k, v, queries, slope, keys, values, known, heads, mask,
        None if cu_seqlens is None else cu_seqlens.to(torch.int32),
        scale, kind, inexact, powers, order, border, causal,
    )  # fmt: skip
    return out


def _packed_powers(powers: tuple[int, ...]) -> int:
    """The powers of all columns in one number, 4 bits each; kernels then are the same for all extents."""
    assert all(-1 <= power <= 14 for power in powers) and len(powers) < 16
    return sum((power + 1) << (4 * i) for i, power in enumerate(powers))


def _rows_first(like: Tensor) -> Tensor:
    """Empty (B, H, N, D) with the memory order (B, N, H, D), in which heads are joined without a copy."""
    b, h, n, d = like.shape
    return like.new_empty(b, n, h, d).transpose(1, 2)


class _Launch:
    """What the kernels of one call have in common."""

    def __init__(
        self,
        q: Tensor,
        queries: Tensor | None,
        slope: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        known: Tensor | None,
        heads: Tensor | None,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
        settings: tuple[float, int, int, int, int, float, bool],
    ) -> None:
        scale, kind, inexact, powers, order, border, causal = settings
        self.batch, self.heads, self.tokens, width = q.shape
        self.kind, self.width, self.cu_seqlens = kind, width, cu_seqlens
        axes = 1 if values is None else values.shape[-1]
        self.pieces = 16 if keys is None else keys.shape[-1]
        self.pointers = [q if x is None else x for x in (queries, slope, keys, values, known, heads, mask)]
        self.shared = {"H": self.heads, "N": self.tokens, "scale": scale}
        self.shared |= {"key_batch": 0 if values is None or values.shape[0] == 1 else self.tokens}
        self.shared |= {"mask_batch": self.tokens}
        self.constants: dict[str, Any] = {"D": width, "W": self.pieces, "KIND": kind, "AXES": axes, "ORDER": order}
        self.constants |= {"FIELDS": heads is not None and heads.shape[1] > 1, "BORDER": border}
        self.constants |= {"HAS_KNOWN": known is not None, "HAS_MASK": mask is not None, "CAUSAL": causal}
        self.constants |= {"PACKED": cu_seqlens is not None}
        self.for_queries: dict[str, Any] = {"inexact": inexact, "HAS_LINEAR": slope is not None, "POWERS": powers}
        for tensor, names in ((queries, ("ab", "ah", "an", "ac")), (slope, ("tb", "th", "tn", "tc"))):
            strides = (0, 0, 0, 0) if tensor is None else tensor.stride()
            self.for_queries |= dict(zip(names, strides, strict=True))

    def run(self, kernel: Any, name: str, tensors: list[Tensor], strided: list[Tensor], **constants: Any) -> None:
        """Launches a kernel over the tiles of its queries, or of its keys for `"keys"`."""
        shape = tiling(name, self.width, self.kind)
        block = shape.keys if name == "keys" else shape.queries
        tiles, count = self._tiles(block)
        strides = [stride for x in strided for stride in x.stride()[:3]]
        settings = {**self.shared, **self.constants, **constants, "BM": shape.queries, "BN": shape.keys}
        settings |= {"num_warps": shape.warps, "num_stages": shape.stages}
        with torch.cuda.device_of(tensors[0]):  # Triton launches on the current device.
            kernel[(count, self.batch * self.heads)](*tensors, *self.pointers, *tiles, *strides, **settings)

    def _tiles(self, block: int) -> tuple[list[Tensor], int]:
        """For packed samples: offsets, and (sample, tile within it) of every program; computed without a wait."""
        cu = self.cu_seqlens
        if cu is None:
            return [self.pointers[0], self.pointers[0]], -(-self.tokens // block)
        samples = cu.shape[0] - 1
        count = self.tokens // block + samples
        tiles = (cu.diff() + block - 1) // block
        ends = tiles.cumsum(0)
        index = torch.arange(count, device=cu.device)
        sample = torch.searchsorted(ends, index, right=True).clamp(max=max(samples - 1, 0))
        within = index - (ends - tiles)[sample]  # Past the last tile this lies beyond the sample: nothing to do.
        return [cu, torch.stack([sample, within], dim=1).to(torch.int32)], count


@torch.library.custom_op("zoo::attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor | None,
    slope: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    powers: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    from zoo.kernels.triton_attention import forward

    out, lse = _rows_first(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    if q.numel():
        settings = (scale, kind, inexact, powers, order, border, causal)
        launch = _Launch(q, queries, slope, keys, values, known, heads, mask, cu_seqlens, settings)
        launch.run(forward, "forward", [q, k, v, out, lse], [q, k, v, out], **launch.for_queries)
    return out, lse


@_forward.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _rows_first(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("zoo::attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    queries: Tensor | None,
    slope: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    powers: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from zoo.kernels.triton_attention import row_stats
    from zoo.kernels.triton_attention_backward import backward_keys, backward_queries

    dq, dk, dv = _rows_first(q), _rows_first(k), _rows_first(v)
    dterms, dslope = _planes(q, queries), _planes(q, slope)
    if not q.numel():
        return dq, dk, dv, dterms, dslope
    settings = (scale, kind, inexact, powers, order, border, causal)
    launch = _Launch(q, queries, slope, keys, values, known, heads, mask, cu_seqlens, settings)
    stats = lse.new_empty(*lse.shape, 2)
    batch, count, tokens, width = q.shape
    with torch.cuda.device_of(q):
        row_stats[(-(-tokens // 128), batch * count)](
            out, grad, lse, stats, *out.stride()[:3], *grad.stride()[:3], H=count, N=tokens, D=width, BM=128
        )
    pieces = q.new_empty((*q.shape[:3], launch.pieces) if kind == _COLUMNS else (0,))
    common = [q, k, v, grad, stats]
    strided = [q, k, v, grad]
    outputs = [dq, dterms, dslope, pieces]
    launch.run(backward_queries, "queries", [*common, *outputs], [*strided, dq], **launch.for_queries)
    launch.run(backward_keys, "keys", [*common, dk, dv, pieces], [*strided, dk])
    return dq, dk, dv, dterms, dslope


def _planes(q: Tensor, like: Tensor | None) -> Tensor:
    """Empty float32 (B, H, N, numbers), each number a plane (H, B, N) in memory; without numbers if there are none."""
    b, h, n, _ = q.shape
    return q.new_empty(0 if like is None else like.shape[-1], h, b, n, dtype=torch.float32).permute(2, 1, 3, 0)


@_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, queries: Tensor | None,
    slope: Tensor | None, *_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _rows_first(q), _rows_first(k), _rows_first(v), _planes(q, queries), _planes(q, slope)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:11])
    ctx.settings = inputs[11:]


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    queries, slope = ctx.saved_tensors[5:7]
    dq, dk, dv, dterms, dslope = _backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None if queries is None else dterms, None if slope is None else dslope, *[None] * 13


_forward.register_autograd(_gradients, setup_context=_save)
