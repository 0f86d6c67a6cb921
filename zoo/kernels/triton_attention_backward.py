"""Triton kernels of the backward of attention with a position term; see `zoo.kernels.triton_attention`."""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

from zoo.kernels.triton_attention import (
    _factors,
    _logits,
    _parabola_gradient,
    _powers,
    _query_columns,
    _unit,
)

__all__ = ["backward_keys", "backward_queries"]


@triton.jit
def _query_tiles(
    dq, du, q, qc, g, lse, sums, first, stop, K, KC, V, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, start, length,
    key_base, b_mask, kn, vn, scale, D: tl.constexpr, W: tl.constexpr, BN: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what keys `first` to `stop` of the sample give to the gradients of a tile of queries."""
    d, at, unit = tl.arange(0, D), tl.arange(0, W), _unit(scale, KIND)
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        okc = n < length
        keys = start + n
        if EDGE:
            k = tl.load(K + keys[:, None] * kn + d[None, :], mask=okc[:, None], other=0.0)
            v = tl.load(V + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
        else:
            k = tl.load(K + keys[:, None] * kn + d[None, :])
            v = tl.load(V + keys[:, None] * vn + d[None, :])
        s = tl.dot(q, tl.trans(k))
        if KIND == 1:
            if EDGE:
                kc = tl.load(KC + (key_base + keys)[:, None] * W + at[None, :], mask=okc[:, None], other=0.0)
            else:
                kc = tl.load(KC + (key_base + keys)[:, None] * W + at[None, :])
            s = tl.dot(qc, tl.trans(kc), s)
        s = _logits(
            s, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, n, key_base + keys, okc, b_mask, scale,
            KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, EDGE, False,
        )  # fmt: skip
        p = tl.math.exp2(s * unit - lse[:, None])
        ds = p * (tl.dot(g, tl.trans(v)) - sums[:, None])
        rounded = ds.to(k.dtype)
        dq = tl.dot(rounded, k, dq)
        if KIND == 1:
            du = tl.dot(rounded, kc, du)
        if KIND == 2:
            du = _parabola_gradient(du, ds, R, KNOWN, rows, ok, key_base + keys, okc, AXES, W, HAS_KNOWN)
    return dq, du


@triton.jit
def _planes(b, h, H, N, tokens):
    """Size of a plane (H, B, N), and where tokens are in it."""
    rows = tl.num_programs(1).to(tl.int64) * N
    return rows, h * (rows // H) + b * N + tokens


@triton.jit
def _of_column(du, c, POWERS, known, AXES: tl.constexpr, inexact: tl.constexpr, W: tl.constexpr):
    """The gradient of column c: its high half in q met both halves of that of k."""
    n: tl.constexpr = AXES * (AXES + 1) // 2 + AXES + 1
    at = tl.arange(0, W)
    own = (at == c) | ((at == c + 2 * n) & (at < 2 * n + inexact))
    return tl.sum(tl.where(own[None, :], du, 0.0), axis=1) * _factors(POWERS, c) * known


@triton.jit
def _store_gradients(
    DA, DLINEAR, du, R, KNOWN, POWERS, b, h, H, N, tokens, place, ok, scale,
    AXES: tl.constexpr, HAS_LINEAR: tl.constexpr, HAS_KNOWN: tl.constexpr, inexact: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """From sums over keys of dS times columns of k to gradients of M and t, each in a plane (H, B, N) of its own.

    The sums g of r_a r_b, l of r and z of 1 make those of differences: -(g_ab - r_a l_b - r_b l_a + r_a r_b z) for M_ab
    (doubled off the diagonal) and r_a z - l_a for t_a.
    """
    C: tl.constexpr = AXES * (AXES + 1) // 2
    plane, own = _planes(b, h, H, N, tokens)
    known = scale
    if HAS_KNOWN:
        known = scale * tl.load(KNOWN + place, mask=ok, other=0.0)
    z = _of_column(du, C + AXES, POWERS, known, AXES, inexact, W)
    for x in tl.static_range(AXES):
        rx = tl.load(R + place * AXES + x, mask=ok, other=0.0)
        lx = _of_column(du, C + x, POWERS, known, AXES, inexact, W)
        if HAS_LINEAR:
            tl.store(DLINEAR + x * plane + own, rx * z - lx, mask=ok)
        for y in tl.static_range(x, AXES):
            ry = tl.load(R + place * AXES + y, mask=ok, other=0.0)
            ly = _of_column(du, C + y, POWERS, known, AXES, inexact, W)
            k = x * AXES - x * (x + 1) // 2 + y
            both = (_of_column(du, k, POWERS, known, AXES, inexact, W) - ry * lx) - rx * (ly - ry * z)
            tl.store(DA + k * plane + own, -both if x == y else -2.0 * both, mask=ok)


@triton.jit
def backward_queries(
    Q, K, V, G, STATS, DQ, DA, DLINEAR, QC, A, LINEAR, KC, R, KNOWN, HEADS, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, ab, ah, an, ac, tb, th, tn, tc,
    key_batch, mask_batch, H, N, scale, POWERS, POWERS_HIGH,
    D: tl.constexpr, W: tl.constexpr, inexact: tl.constexpr, HAS_LINEAR: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries and of its position terms; leaves the columns of q for `backward_keys`."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    powers = _powers(POWERS, POWERS_HIGH)
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    start, length, m0 = 0, N, tl.program_id(0) * BM
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample)
        length, m0 = tl.load(CU + sample + 1) - start, tl.load(TILES + 2 * tl.program_id(0) + 1) * BM
    if m0 >= length:
        return
    m = m0 + tl.arange(0, BM)
    ok, tokens, d, at = m < length, start + m, tl.arange(0, D), tl.arange(0, W)
    row = bh.to(tl.int64) * N + tokens
    key_base = b * key_batch
    q = tl.load(Q + b * qb + h * qh + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
    g = tl.load(G + b * gb + h * gh + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
    lse = tl.load(STATS + row * 2, mask=ok, other=float("inf"))
    sums = tl.load(STATS + row * 2 + 1, mask=ok, other=0.0)
    qc = q
    if KIND == 1:
        qc = _query_columns(
            A, LINEAR, R, KNOWN, powers, b, h, tokens, key_base + tokens, ok, ab, ah, an, ac, tb, th, tn, tc,
            AXES, HAS_LINEAR, HAS_KNOWN, inexact, W, q.dtype,
        )  # fmt: skip
        tl.store(QC + row[:, None] * W + at[None, :], qc, mask=ok[:, None])
    dq = tl.zeros([BM, D], dtype=tl.float32)
    du = tl.zeros([BM, W], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh = K + b * kb + h * kh, V + b * vb + h * vh
    dq, du = _query_tiles(
        dq, du, q, qc, g, lse, sums, 0, full, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, False, False,
    )  # fmt: skip
    dq, du = _query_tiles(
        dq, du, q, qc, g, lse, sums, full, stop, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    tl.store(DQ + b * db + h * dh + tokens[:, None] * dn + d[None, :], (dq * scale).to(q.dtype), mask=ok[:, None])
    if KIND == 1:
        _store_gradients(
            DA, DLINEAR, du, R, KNOWN, powers, b, h, H, N, tokens, key_base + tokens, ok, scale,
            AXES, HAS_LINEAR, HAS_KNOWN, inexact, W,
        )  # fmt: skip
    if KIND == 2:
        count: tl.constexpr = AXES * (AXES + 1) // 2 + AXES
        plane, own = _planes(b, h, H, N, tokens)
        tl.store(DA + at[None, :] * plane + own[:, None], du * scale, mask=ok[:, None] & (at < count)[None, :])


@triton.jit
def _key_tiles(
    dk, dv, k, kc, v, first, stop, Q, QC, G, STATS, A, R, KNOWN, HEADS, MASK, h, base, n, cols, okc, start, length,
    key_base, b_mask, qn, gn, scale, D: tl.constexpr, W: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what queries `first` to `stop` of the sample give to the gradients of a tile of keys and values.

    Both numbers of a row are loaded as one tile, in a layout of its own: apart they would be loaded in that of the
    logits, 16 copies a thread.
    """
    d, at, pair, unit = tl.arange(0, D), tl.arange(0, W), tl.arange(0, 2), _unit(scale, KIND)
    for m0 in range(first, stop, BM):
        m = m0 + tl.arange(0, BM)
        ok = m < length
        tokens = start + m
        row = base + tokens
        if EDGE:
            q = tl.load(Q + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
            g = tl.load(G + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
            lse, sums = tl.split(tl.load(STATS + row[:, None] * 2 + pair[None, :], mask=ok[:, None], other=0.0))
            lse = tl.where(ok, lse, float("inf"))
        else:
            q = tl.load(Q + tokens[:, None] * qn + d[None, :])
            g = tl.load(G + tokens[:, None] * gn + d[None, :])
            lse, sums = tl.split(tl.load(STATS + row[:, None] * 2 + pair[None, :]))
        s = tl.dot(k, tl.trans(q))
        if KIND == 1:
            if EDGE:
                qc = tl.load(QC + row[:, None] * W + at[None, :], mask=ok[:, None], other=0.0)
            else:
                qc = tl.load(QC + row[:, None] * W + at[None, :])
            s = tl.dot(kc, tl.trans(qc), s)
        s = _logits(
            s, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok, n, cols, okc, b_mask, scale,
            KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, False, True,
        )  # fmt: skip
        # Rows of keys beyond the sample hold anything: they meet no other row, and are not stored.
        p = tl.math.exp2(s * unit - lse[None, :])
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = p * (tl.dot(v, tl.trans(g)) - sums[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def backward_keys(
    Q, K, V, G, STATS, DK, DV, QC, A, LINEAR, KC, R, KNOWN, HEADS, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, scale,
    D: tl.constexpr, W: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    start, length, n0 = 0, N, tl.program_id(0) * BN
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample)
        length, n0 = tl.load(CU + sample + 1) - start, tl.load(TILES + 2 * tl.program_id(0) + 1) * BN
    if n0 >= length:
        return
    n = n0 + tl.arange(0, BN)
    okc, keys, d, at = n < length, start + n, tl.arange(0, D), tl.arange(0, W)
    key_base = b * key_batch
    k = tl.load(K + b * kb + h * kh + keys[:, None] * kn + d[None, :], mask=okc[:, None], other=0.0)
    v = tl.load(V + b * vb + h * vh + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
    kc = k
    if KIND == 1:
        kc = tl.load(KC + (key_base + keys)[:, None] * W + at[None, :], mask=okc[:, None], other=0.0)
    first = n0 // BM * BM if CAUSAL else 0
    full = tl.maximum(first, length // BM * BM)
    Qh, Gh, base = Q + b * qb + h * qh, G + b * gb + h * gh, bh.to(tl.int64) * N
    dk, dv = tl.zeros([BN, D], dtype=tl.float32), tl.zeros([BN, D], dtype=tl.float32)
    dk, dv = _key_tiles(
        dk, dv, k, kc, v, first, full, Qh, QC, Gh, STATS, A, R, KNOWN, HEADS, MASK, h, base, n,
        key_base + keys, okc, start, length, key_base, b * mask_batch, qn, gn, scale, D, W, BM,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, False,
    )  # fmt: skip
    dk, dv = _key_tiles(
        dk, dv, k, kc, v, full, length, Qh, QC, Gh, STATS, A, R, KNOWN, HEADS, MASK, h, base, n,
        key_base + keys, okc, start, length, key_base, b * mask_batch, qn, gn, scale, D, W, BM,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    tl.store(DK + b * db + h * dh + keys[:, None] * dn + d[None, :], (dk * scale).to(k.dtype), mask=okc[:, None])
    tl.store(DV + b * db + h * dh + keys[:, None] * dn + d[None, :], dv.to(v.dtype), mask=okc[:, None])
