"""Triton kernel of attention for a block of query rows whose bias is given as a matrix; forward only.

For position terms that `zoo.kernels.triton_attention` has no form of. The rest of that kernel is shared: KIND 4.

Legend: B batch, H heads, M query rows of the block, N keys, D head width.
"""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

from zoo.kernels.triton_attention import _attend_tiles

__all__ = ["forward_rows"]


# Blocks differ in length and place: kernels made for one of them would be made again for the next.
@triton.jit(do_not_specialize=["M", "first"])
def forward_rows(
    Q, K, V, OUT, BIAS, MASK,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, ab, ah, an, H, M, N, first, scale,
    D: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tile of queries; row 0 of the block is query `first` of the sample."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    # Samples of a head are neighbours: where they share a bias, the second one finds it in L2.
    batch = tl.num_programs(1) // H
    b, h = (tl.program_id(1) % batch).to(tl.int64), (tl.program_id(1) // batch).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    ok, d = rows < M, tl.arange(0, D)
    q = tl.load(Q + b * qb + h * qh + rows[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
    Kh, Vh, own = K + b * kb + h * kh, V + b * vb + h * vh, BIAS + b * ab + h * ah
    # Rows beyond the block read its last one, so that no load of the bias needs a mask for them.
    arow = tl.minimum(rows, M - 1).to(tl.int64) * an
    m = first + rows
    acc = tl.zeros([BM, D], dtype=tl.float32)
    top = tl.full([BM], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    stop = tl.minimum(N, first + (tl.program_id(0) + 1) * BM) if CAUSAL else N
    # Before it no key is hidden from a query of the tile.
    full = (first + tl.program_id(0) * BM if CAUSAL else stop) // BN * BN
    acc, top, total = _attend_tiles(
        acc, top, total, q, q, 0, full, Kh, K, Vh, own, BIAS, BIAS, BIAS, MASK, h, arow, m, rows, ok,
        0, N, 0, b * N, kn, vn, scale, D, 16, BN, 4, 1, 2, False, 0.0, False, HAS_MASK, False, False,
    )  # fmt: skip
    acc, top, total = _attend_tiles(
        acc, top, total, q, q, full, stop, Kh, K, Vh, own, BIAS, BIAS, BIAS, MASK, h, arow, m, rows, ok,
        0, N, 0, b * N, kn, vn, scale, D, 16, BN, 4, 1, 2, False, 0.0, False, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(OUT + b * ob + h * oh + rows[:, None] * on + d[None, :], out.to(OUT.dtype.element_ty), mask=ok[:, None])
