"""Triton kernels of the backward of attention with a position term; see `zoo.kernels.triton_attention`."""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

from zoo.kernels.triton_attention import _logits, _parabola_gradient, _query_columns, _tile

__all__ = ["backward_keys", "backward_queries"]


@triton.jit
def _query_tiles(
    dq, du, q, qc, g, lse, sums, first, stop, K, KC, V, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, start, length,
    key_base, b_mask, kn, vn, scale, D: tl.constexpr, W: tl.constexpr, KW, BN: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what keys `first` to `stop` of the sample give to the gradients of a tile of queries."""
    d, at = tl.arange(0, D), tl.arange(0, W)
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        okc = n < length
        keys = start + n
        k = tl.load(K + keys[:, None] * kn + d[None, :], mask=okc[:, None], other=0.0)
        v = tl.load(V + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k))
        if KIND == 1:
            kc = tl.load(
                KC + (key_base + keys)[:, None] * KW + at[None, :], mask=okc[:, None] & (at < KW)[None, :], other=0.0
            )
            s = tl.dot(qc, tl.trans(kc), s)
        s = _logits(
            s, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, n, key_base + keys, okc, b_mask, scale,
            KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, EDGE, False,
        )  # fmt: skip
        p = tl.math.exp2(s - lse[:, None])
        ds = p * (tl.dot(g, tl.trans(v)) - sums[:, None])
        high = ds.to(k.dtype)
        dq = tl.dot(high, k, dq)
        if KIND == 1:
            low = (ds - high.to(tl.float32)).to(k.dtype)
            du = tl.dot(low, kc, tl.dot(high, kc, du))
        if KIND == 2:
            du = _parabola_gradient(du, ds, R, KNOWN, rows, ok, key_base + keys, okc, AXES, W, HAS_KNOWN)
    return dq, du


@triton.jit
def backward_queries(
    Q, K, V, G, LSE, SUMS, DQ, DA, QC, A, KC, R, KNOWN, HEADS, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, scale, KW,
    D: tl.constexpr, W: tl.constexpr, n_columns: tl.constexpr, inexact: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries and of its position terms; leaves the columns of q for `backward_keys`."""
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    start, length, m0 = _tile(tl.program_id(0), TILES, CU, N, BM, PACKED)
    if m0 >= length:
        return
    m = m0 + tl.arange(0, BM)
    ok, tokens, d, at = m < length, start + m, tl.arange(0, D), tl.arange(0, W)
    row = bh.to(tl.int64) * N + tokens
    key_base = b * key_batch
    q = tl.load(Q + b * qb + h * qh + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
    g = tl.load(G + b * gb + h * gh + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
    lse = tl.load(LSE + row, mask=ok, other=float("inf"))
    sums = tl.load(SUMS + row, mask=ok, other=0.0)
    qc = q
    if KIND == 1:
        qc = _query_columns(A, row, ok, n_columns, inexact, W, q.dtype)
        tl.store(QC + row[:, None] * W + at[None, :], qc, mask=ok[:, None])
    dq = tl.zeros([BM, D], dtype=tl.float32)
    du = tl.zeros([BM, W], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = stop // BN * BN
    Kh, Vh = K + b * kb + h * kh, V + b * vb + h * vh
    dq, du = _query_tiles(
        dq, du, q, qc, g, lse, sums, 0, full, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, KW, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, False,
    )  # fmt: skip
    dq, du = _query_tiles(
        dq, du, q, qc, g, lse, sums, full, stop, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, KW, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    tl.store(DQ + b * db + h * dh + tokens[:, None] * dn + d[None, :], (dq * scale).to(q.dtype), mask=ok[:, None])
    if KIND == 1:
        for c in tl.static_range(n_columns):  # The high half of a column of q met both halves of that of k.
            own = (at == c) | ((at == c + 2 * n_columns) & (at < 2 * n_columns + inexact))
            total = tl.sum(tl.where(own[None, :], du, 0.0), axis=1)
            tl.store(DA + row * n_columns + c, total * scale, mask=ok)
    if KIND == 2:
        count: tl.constexpr = AXES * (AXES + 1) // 2 + AXES
        tl.store(DA + row[:, None] * count + at[None, :], du * scale, mask=ok[:, None] & (at < count)[None, :])


@triton.jit
def _key_tiles(
    dk, dv, k, kc, v, first, stop, Q, QC, G, LSE, SUMS, A, R, KNOWN, HEADS, MASK, h, base, n, cols, okc, start, length,
    key_base, b_mask, qn, gn, scale, D: tl.constexpr, W: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Adds what queries `first` to `stop` of the sample give to the gradients of a tile of keys and values."""
    d, at = tl.arange(0, D), tl.arange(0, W)
    for m0 in range(first, stop, BM):
        m = m0 + tl.arange(0, BM)
        ok = m < length
        tokens = start + m
        row = base + tokens
        q = tl.load(Q + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
        g = tl.load(G + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
        lse = tl.load(LSE + row, mask=ok, other=float("inf"))
        sums = tl.load(SUMS + row, mask=ok, other=0.0)
        s = tl.dot(k, tl.trans(q))
        if KIND == 1:
            qc = tl.load(QC + row[:, None] * W + at[None, :], mask=ok[:, None], other=0.0)
            s = tl.dot(kc, tl.trans(qc), s)
        s = _logits(
            s, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok, n, cols, okc, b_mask, scale,
            KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, True, True,
        )  # fmt: skip
        p = tl.math.exp2(s - lse[None, :])
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = p * (tl.dot(v, tl.trans(g)) - sums[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def backward_keys(
    Q, K, V, G, LSE, SUMS, DK, DV, QC, A, KC, R, KNOWN, HEADS, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, scale, KW,
    D: tl.constexpr, W: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values."""
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    start, length, n0 = _tile(tl.program_id(0), TILES, CU, N, BN, PACKED)
    if n0 >= length:
        return
    n = n0 + tl.arange(0, BN)
    okc, keys, d, at = n < length, start + n, tl.arange(0, D), tl.arange(0, W)
    key_base = b * key_batch
    k = tl.load(K + b * kb + h * kh + keys[:, None] * kn + d[None, :], mask=okc[:, None], other=0.0)
    v = tl.load(V + b * vb + h * vh + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
    kc = k
    if KIND == 1:
        kc = tl.load(
            KC + (key_base + keys)[:, None] * KW + at[None, :], mask=okc[:, None] & (at < KW)[None, :], other=0.0
        )
    first = n0 // BM * BM if CAUSAL else 0
    dk, dv = _key_tiles(
        tl.zeros([BN, D], dtype=tl.float32), tl.zeros([BN, D], dtype=tl.float32), k, kc, v, first, length,
        Q + b * qb + h * qh, QC, G + b * gb + h * gh, LSE, SUMS, A, R, KNOWN, HEADS, MASK, h, bh.to(tl.int64) * N, n,
        key_base + keys, okc, start, length, key_base, b * mask_batch, qn, gn, scale, D, W, BM,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL,
    )  # fmt: skip
    tl.store(DK + b * db + h * dh + keys[:, None] * dn + d[None, :], (dk * scale).to(k.dtype), mask=okc[:, None])
    tl.store(DV + b * db + h * dh + keys[:, None] * dn + d[None, :], dv.to(v.dtype), mask=okc[:, None])
