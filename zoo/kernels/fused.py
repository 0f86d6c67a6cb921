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

from zoo.encodings.terms import Columns, Distances, Matrix, Parabolas, Terms

__all__ = ["MAX_AXES", "fused_attention", "interpreted", "shapes_problem"]

HEAD_WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)
MAX_AXES = 4
_PLAIN, _COLUMNS, _PARABOLAS, _DISTANCES, _MATRIX = range(5)


@dataclass(frozen=True)
class Tiling:
    """Queries and keys of a tile, warps of a program, and stages of the software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiling(kernel: str, width: int, kind: int) -> Tiling:
    """The tiling of `"forward"`, `"queries"` or `"keys"` (backward) for a head width and a kind of term.

    Differences of coordinates and tiles of a bias take registers, so those kinds have smaller tiles.
    """
    if kind in (_PARABOLAS, _DISTANCES, _MATRIX) or width == 128:
        return Tiling(64, 64, 4, 2)
    return _TILINGS[kernel]


# The fastest of those tried on an H200 at 64 x 64 tokens, see zoo/kernels/README.md.
_TILINGS = {
    "forward": Tiling(128, 64, 4, 3),
    "queries": Tiling(64, 32, 4, 3),
    "keys": Tiling(64, 64, 4, 2),
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
        q: (B, H, N, D) float16 or bfloat16; with a `Matrix` the rows that it is for.
        k: (B, H, N, D).
        v: (B, H, N, D).
        terms: Position term or `None`. Gradients flow to `Columns.queries` and `Parabolas.coefficients`; with a
            `Matrix` there are none, of q, k and v neither.
        scale: Softmax scale.
        mask: Bool (B, N), True for visible keys.
        causal: Query i sees keys 0..i of its sample.
        cu_seqlens: Offsets (S + 1,) of packed samples, B = 1; not with a `Matrix`.

    Returns:
        (B, H, N, D) like q.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if isinstance(terms, Matrix):
        bias = terms.bias.float()
        bias = bias if bias.stride(-1) == 1 else bias.contiguous()
        return _rows(q, k, v, bias, None if mask is None else mask.contiguous(), scale, terms.first, causal)
    queries = keys = known = heads = None
    kind, inexact, order, border = _PLAIN, 0, 2, 0.0
    match terms:
        case Columns():
            kind, queries, keys = _COLUMNS, terms.queries.contiguous(), terms.keys.contiguous()
            inexact = terms.inexact
        case Parabolas():
            kind, queries, keys, known = _PARABOLAS, terms.coefficients.contiguous(), terms.values, terms.positioned
        case Distances():
            kind, keys, known, order, border = _DISTANCES, terms.values, terms.positioned, terms.order, terms.border
            heads = terms.slopes.reshape(-1, 1)
            if terms.fields is not None:
                heads = torch.cat([heads, terms.fields.flatten(1)], dim=1)
            heads = heads.contiguous()
    out, _ = _forward(
        q, k, v, queries,
        None if keys is None else keys.contiguous(),
        None if known is None else known.contiguous(),
        heads,
        None if mask is None else mask.contiguous(),
        None if cu_seqlens is None else cu_seqlens.to(torch.int32),
        scale, kind, inexact, order, border, causal,
    )  # fmt: skip
    return out


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
        keys: Tensor | None,
        known: Tensor | None,
        heads: Tensor | None,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
        settings: tuple[float, int, int, int, float, bool],
    ) -> None:
        scale, kind, inexact, order, border, causal = settings
        self.batch, self.heads, self.tokens, width = q.shape
        self.kind, self.width, self.cu_seqlens = kind, width, cu_seqlens
        columns = kind == _COLUMNS
        axes = keys.shape[-1] if keys is not None and not columns else 1
        pieces = keys.shape[-1] if keys is not None and columns else 16
        self.pieces = max(16, 1 << (pieces - 1).bit_length())
        self.columns = queries.shape[-1] if columns and queries is not None else 1
        self.pointers = [q if x is None else x for x in (queries, keys if columns else None)]
        self.pointers += [q if x is None else x for x in (None if columns else keys, known, heads, mask)]
        self.shared = {"H": self.heads, "N": self.tokens, "scale": scale, "KW": pieces}
        self.shared |= {"key_batch": 0 if keys is None or keys.shape[0] == 1 else self.tokens}
        self.shared |= {"mask_batch": self.tokens}
        self.constants: dict[str, Any] = {"D": width, "W": self.pieces, "KIND": kind, "AXES": axes, "ORDER": order}
        self.constants |= {"FIELDS": heads is not None and heads.shape[1] > 1, "BORDER": border}
        self.constants |= {"HAS_KNOWN": known is not None, "HAS_MASK": mask is not None, "CAUSAL": causal}
        self.constants |= {"PACKED": cu_seqlens is not None}
        self.query_constants = {"n_columns": self.columns, "inexact": inexact}

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
    keys: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    from zoo.kernels.triton_attention import forward

    out, lse = _rows_first(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    if q.numel():
        settings = (scale, kind, inexact, order, border, causal)
        launch = _Launch(q, queries, keys, known, heads, mask, cu_seqlens, settings)
        launch.run(forward, "forward", [q, k, v, out, lse], [q, k, v, out], **launch.query_constants)
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
    keys: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from zoo.kernels.triton_attention import row_sums
    from zoo.kernels.triton_attention_backward import backward_keys, backward_queries

    dq, dk, dv = _rows_first(q), _rows_first(k), _rows_first(v)
    dterms = _term_gradient(q, queries)
    if not q.numel():
        return dq, dk, dv, dterms
    settings = (scale, kind, inexact, order, border, causal)
    launch = _Launch(q, queries, keys, known, heads, mask, cu_seqlens, settings)
    sums = torch.empty_like(lse)
    batch, count, tokens, width = q.shape
    with torch.cuda.device_of(q):
        row_sums[(-(-tokens // 128), batch * count)](
            out, grad, sums, *out.stride()[:3], *grad.stride()[:3], H=count, N=tokens, D=width, BM=128
        )
    pieces = q.new_empty((*q.shape[:3], launch.pieces) if kind == _COLUMNS else (0,))
    common = [q, k, v, grad, lse, sums]
    strided = [q, k, v, grad]
    launch.run(backward_queries, "queries", [*common, dq, dterms, pieces], [*strided, dq], **launch.query_constants)
    launch.run(backward_keys, "keys", [*common, dk, dv, pieces], [*strided, dk])
    return dq, dk, dv, dterms


def _term_gradient(q: Tensor, queries: Tensor | None) -> Tensor:
    return q.new_empty(0, dtype=torch.float32) if queries is None else torch.empty_like(queries)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, queries: Tensor | None, *_: Any) -> Any:
    return _rows_first(q), _rows_first(k), _rows_first(v), _term_gradient(q, queries)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:9])
    ctx.settings = inputs[9:]


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    queries = ctx.saved_tensors[5]
    dq, dk, dv, dterms = _backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None if queries is None else dterms, *[None] * 11


_forward.register_autograd(_gradients, setup_context=_save)


@torch.library.custom_op("zoo::attention_rows", mutates_args=())
def _rows(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, scale: float, first: int, causal: bool
) -> Tensor:
    """Attention of query rows `first` and on under a bias (B or 1, H or 1, rows, N)."""
    from zoo.kernels.triton_attention_rows import forward_rows

    out = _rows_first(q)
    if q.numel():
        (batch, heads, count, width), tokens = q.shape, k.shape[2]
        shape = tiling("forward", width, _MATRIX)
        strided = [q, k, v, out, bias.expand(batch, heads, count, tokens)]
        strides = [stride for x in strided for stride in x.stride()[:3]]
        settings = {"D": width, "HAS_MASK": mask is not None, "CAUSAL": causal, "BM": shape.queries, "BN": shape.keys}
        settings |= {"num_warps": shape.warps, "num_stages": shape.stages}
        grid = (-(-count // shape.queries), batch * heads)
        with torch.cuda.device_of(q):
            forward_rows[grid](
                q, k, v, out, bias, q if mask is None else mask,
                *strides, heads, count, tokens, first, scale, **settings,
            )  # fmt: skip
    return out


@_rows.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return _rows_first(q)
