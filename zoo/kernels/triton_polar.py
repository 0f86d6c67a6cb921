"""Triton kernels of attention over magnitudes at angles (PoPE), turned inside: forward, and backward without atomics.

The logit of query i on key j is scale sum_c mu(q_c) mu(k_c) cos(a_jc - (a_ic - delta_hc)), mu = softplus, from angles a
that all heads share and phases delta of every head: two products, of cosines and of sines. Other channels than the
first ROTARY have mu(x) = x and no angle. Phases go with the query, so that keys are turned by angles alone. All of this
is float32 from 16-bit inputs, rounded once.

Queries are turned where a tile of them is read. Keys are turned once, before, into 2D numbers of a token and head that
live as long as the call: in the loops over keys it would be done for every tile of queries (see zoo/kernels/README.md).

Backward by tiles of queries gives dq and leaves the turned queries, 2D numbers again, for backward by tiles of keys,
which gives dk, dv and the gradients of the phases, a partial sum for every tile: a phase may as well be added to the
angles of the keys, whose cosines and sines are at hand there.

Legend: B batch, H heads, N tokens, D head width, M/N tile of queries/keys.
"""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

from zoo.kernels.triton_attention import _exponentials, _hidden, _unit

__all__ = ["polar_forward", "polar_keys", "polar_queries", "turn_keys"]


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) within 1e-5 of itself, on its way to 16 bit; a logarithm takes 20 instructions."""
    e = tl.exp(-tl.abs(x))  # log(1 + e) / e by a polynomial of least relative error on [0, 1].
    tail = ((0.101222217 - 0.0238691248 * e) * e - 0.210048631) * e + 0.325206659
    return tl.maximum(x, 0.0) + e * ((tail * e - 0.499361362) * e + 0.999991598)


@triton.jit
def _magnitudes(x, ROTARY, D: tl.constexpr):
    """Softplus of the channels that are turned, others as they are."""
    return tl.where(tl.arange(0, D)[None, :] < ROTARY, _softplus(x), x)


@triton.jit
def _slopes(x, ROTARY, D: tl.constexpr):
    """The derivative of `_magnitudes`."""
    return tl.where(tl.arange(0, D)[None, :] < ROTARY, 1.0 / (1.0 + tl.exp(-x)), 1.0)


@triton.jit
def _turns(TURNS, rows, ok, D: tl.constexpr):
    """Cosines and sines of the angles of tokens, (tokens, D) each; 0 where not `ok`."""
    at = TURNS + rows[:, None] * (2 * D) + tl.arange(0, D)[None, :]
    cos, sin = tl.load(at, mask=ok[:, None], other=0.0), tl.load(at + D, mask=ok[:, None], other=0.0)
    return cos.to(tl.float32), sin.to(tl.float32)


@triton.jit
def turn_keys(K, KT, TURNS, kb, kh, kn, key_batch, H, N, ROTARY, D: tl.constexpr, BN: tl.constexpr):
    """Turns a tile of keys, of whatever sample."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    keys, d = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64), tl.arange(0, D)
    ok = keys < N
    k = tl.load(K + b * kb + h * kh + keys[:, None] * kn + d[None, :], mask=ok[:, None], other=0.0)
    cos, sin = _turns(TURNS + b * key_batch * (2 * D), keys, ok, D)
    x = _magnitudes(k.to(tl.float32), ROTARY, D)
    at = KT + (bh * N + keys)[:, None] * (2 * D) + d[None, :]
    tl.store(at, (x * cos).to(k.dtype), mask=ok[:, None])
    tl.store(at + D, (x * sin).to(k.dtype), mask=ok[:, None])


@triton.jit
def _turned(TURNS, PHASES, rows, ok, D: tl.constexpr):
    """Cosines and sines of angle minus phase."""
    cos, sin = _turns(TURNS, rows, ok, D)
    phase = PHASES + tl.arange(0, D)[None, :]
    c, z = tl.load(phase), tl.load(phase + D)
    return cos * c + sin * z, sin * c - cos * z


@triton.jit
def _turned_queries(q, TURNS, PHASES, rows, ok, ROTARY, D: tl.constexpr):
    """Magnitudes times cosines and sines of angle minus phase."""
    cos, sin = _turned(TURNS, PHASES, rows, ok, D)
    x = _magnitudes(q.to(tl.float32), ROTARY, D)
    return (x * cos).to(q.dtype), (x * sin).to(q.dtype)


@triton.jit
def _rows(X, rows, ok, stride, D: tl.constexpr, EDGE: tl.constexpr):
    """Rows of D numbers; only with EDGE may rows be not `ok`."""
    at = X + rows[:, None] * stride + tl.arange(0, D)[None, :]
    if EDGE:
        return tl.load(at, mask=ok[:, None], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _forward_tiles(
    acc, top, total, qc, qs, first, stop, KT, V, MASK, m, length, vn, unit,
    D: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Goes over keys `first` to `stop` of the sample; only with EDGE may tiles reach beyond its end."""
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        ok = n < length
        s = tl.dot(qc, tl.trans(_rows(KT, n, ok, 2 * D, D, EDGE)))
        s = tl.dot(qs, tl.trans(_rows(KT + D, n, ok, 2 * D, D, EDGE)), s)
        s = _hidden(s, MASK, m, n, ok, 0, HAS_MASK, CAUSAL, EDGE, False)
        p, fade, total, top = _exponentials(s, top, total, unit)
        v = _rows(V, n, ok, vn, D, EDGE)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
    return acc, top, total


@triton.jit
def polar_forward(
    Q, KT, V, OUT, LSE, TURNS, PHASES, MASK, CU, TILES,
    qb, qh, qn, vb, vh, vn, ob, oh, on, key_batch, mask_batch, H, N, ROTARY, scale,
    D: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: output and the logarithm (base 2) of the sum of exponentials."""
    unit = _unit(tl.cast(scale, tl.float32), 0)  # Compiled code hands floats over in float64.
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    start, length, m0 = tl.cast(0, tl.int64), N, tl.program_id(0) * BM
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample).to(tl.int64)
        length, m0 = (tl.load(CU + sample + 1) - start).to(tl.int32), tl.load(TILES + 2 * tl.program_id(0) + 1) * BM
    if m0 >= length:
        return
    m, d = m0 + tl.arange(0, BM), tl.arange(0, D)
    ok, base, Ah = m < length, bh * N + start, TURNS + (b * key_batch + start) * (2 * D)
    q = _rows(Q + b * qb + h * qh + start * qn, m, ok, qn, D, True)
    qc, qs = _turned_queries(q, Ah, PHASES + h * (2 * D), m, ok, ROTARY, D)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    top = tl.full([BM], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh, Mb = KT + base * (2 * D), V + b * vb + h * vh + start * vn, MASK + b * mask_batch
    acc, top, total = _forward_tiles(
        acc, top, total, qc, qs, 0, full, Kh, Vh, Mb, m, length, vn, unit, D, BN, HAS_MASK, False, False
    )
    acc, top, total = _forward_tiles(
        acc, top, total, qc, qs, full, stop, Kh, Vh, Mb, m, length, vn, unit, D, BN, HAS_MASK, CAUSAL, True
    )
    seen = total > 0.0
    out = acc / tl.where(seen, total, 1.0)[:, None]
    # Infinity makes the probabilities of a row that sees nothing zero in backward.
    lse = tl.where(seen, top * unit + tl.math.log2(tl.where(seen, total, 1.0)), float("inf"))
    own = OUT + b * ob + h * oh + start * on
    tl.store(own + m[:, None] * on + d[None, :], out.to(OUT.dtype.element_ty), mask=ok[:, None])
    tl.store(LSE + base + m, lse, mask=ok)


@triton.jit
def _query_tiles(
    dqc, dqs, qc, qs, g, lse, sums, first, stop, KT, V, MASK, m, length, vn, unit,
    D: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what keys `first` to `stop` of the sample give to the gradients of a tile of turned queries."""
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        ok = n < length
        kc, ks = _rows(KT, n, ok, 2 * D, D, EDGE), _rows(KT + D, n, ok, 2 * D, D, EDGE)
        v = _rows(V, n, ok, vn, D, EDGE)
        s = tl.dot(qc, tl.trans(kc))
        s = tl.dot(qs, tl.trans(ks), s)
        s = _hidden(s, MASK, m, n, ok, 0, HAS_MASK, CAUSAL, EDGE, False)
        p = tl.math.exp2(s * unit - lse[:, None])
        ds = (p * (tl.dot(g, tl.trans(v)) - sums[:, None])).to(kc.dtype)
        dqc = tl.dot(ds, kc, dqc)
        dqs = tl.dot(ds, ks, dqs)
    return dqc, dqs


@triton.jit
def polar_queries(
    Q, KT, V, G, STATS, DQ, QT, TURNS, PHASES, MASK, CU, TILES,
    qb, qh, qn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, ROTARY, scale,
    D: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries; leaves them turned for `polar_keys`."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    bh = tl.program_id(1).to(tl.int64)
    b, h, d = bh // H, bh % H, tl.arange(0, D)
    start, length, m0 = tl.cast(0, tl.int64), N, tl.program_id(0) * BM
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample).to(tl.int64)
        length, m0 = (tl.load(CU + sample + 1) - start).to(tl.int32), tl.load(TILES + 2 * tl.program_id(0) + 1) * BM
    if m0 >= length:
        return
    m = m0 + tl.arange(0, BM)
    ok, base = m < length, bh * N + start
    Qh, Ah, Ph = Q + b * qb + h * qh + start * qn, TURNS + (b * key_batch + start) * (2 * D), PHASES + h * (2 * D)
    q = _rows(Qh, m, ok, qn, D, True)
    g = _rows(G + b * gb + h * gh + start * gn, m, ok, gn, D, True)
    lse = tl.load(STATS + base * 2 + m * 2, mask=ok, other=float("inf"))
    sums = tl.load(STATS + base * 2 + m * 2 + 1, mask=ok, other=0.0)
    qc, qs = _turned_queries(q, Ah, Ph, m, ok, ROTARY, D)
    turned = QT + base * (2 * D) + m[:, None] * (2 * D) + d[None, :]
    tl.store(turned, qc, mask=ok[:, None])
    tl.store(turned + D, qs, mask=ok[:, None])
    dqc, dqs = tl.zeros([BM, D], dtype=tl.float32), tl.zeros([BM, D], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh, Mb = KT + base * (2 * D), V + b * vb + h * vh + start * vn, MASK + b * mask_batch
    unit = _unit(scale, 0)
    dqc, dqs = _query_tiles(
        dqc, dqs, qc, qs, g, lse, sums, 0, full, Kh, Vh, Mb, m, length, vn, unit, D, BN, HAS_MASK, False, False
    )
    dqc, dqs = _query_tiles(
        dqc, dqs, qc, qs, g, lse, sums, full, stop, Kh, Vh, Mb, m, length, vn, unit, D, BN, HAS_MASK, CAUSAL, True
    )
    cos, sin = _turned(Ah, Ph, m, ok, D)
    dq = scale * (dqc * cos + dqs * sin)
    dq *= _slopes(_rows(Qh, m, ok, qn, D, True).to(tl.float32), ROTARY, D)
    own = DQ + b * db + h * dh + start * dn
    tl.store(own + m[:, None] * dn + d[None, :], dq.to(q.dtype), mask=ok[:, None])


@triton.jit
def _key_tiles(
    dkc, dks, dv, kc, ks, v, first, stop, QT, G, STATS, MASK, n, okc, length, gn, unit,
    D: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what queries `first` to `stop` of the sample give to the gradients of a tile of turned keys and values.

    Both numbers of a row are loaded as one tile, see `zoo.kernels.triton_attention_backward`.
    """
    for m0 in range(first, stop, BM):
        m = m0 + tl.arange(0, BM)
        ok = m < length
        qc, qs = _rows(QT, m, ok, 2 * D, D, EDGE), _rows(QT + D, m, ok, 2 * D, D, EDGE)
        g = _rows(G, m, ok, gn, D, EDGE)
        lse, sums = tl.split(_rows(STATS, m, ok, 2, 2, EDGE))
        if EDGE:
            lse = tl.where(ok, lse, float("inf"))
        s = tl.dot(kc, tl.trans(qc))
        s = tl.dot(ks, tl.trans(qs), s)
        s = _hidden(s, MASK, m, n, okc, 0, HAS_MASK, CAUSAL, False, True)
        # Rows of keys beyond the sample hold anything: they meet no other row, and are not stored.
        p = tl.math.exp2(s * unit - lse[None, :])
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = (p * (tl.dot(v, tl.trans(g)) - sums[None, :])).to(qc.dtype)
        dkc = tl.dot(ds, qc, dkc)
        dks = tl.dot(ds, qs, dks)
    return dkc, dks, dv


@triton.jit
def polar_keys(
    K, KT, V, G, STATS, DK, DV, PARTS, QT, TURNS, MASK, CU, TILES,
    kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, ROTARY, scale,
    D: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values, and its part of those of the phases, which are added to its angles."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    bh = tl.program_id(1).to(tl.int64)
    b, h, d = bh // H, bh % H, tl.arange(0, D)
    part = PARTS + (tl.program_id(0) * tl.num_programs(1) + bh) * D + d
    start, length, n0 = tl.cast(0, tl.int64), N, tl.program_id(0) * BN
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample).to(tl.int64)
        length, n0 = (tl.load(CU + sample + 1) - start).to(tl.int32), tl.load(TILES + 2 * tl.program_id(0) + 1) * BN
    if n0 >= length:
        tl.store(part, tl.zeros([D], dtype=tl.float32))
        return
    n = n0 + tl.arange(0, BN)
    ok, base = n < length, bh * N + start
    Kh = KT + base * (2 * D)
    kc, ks = _rows(Kh, n, ok, 2 * D, D, True), _rows(Kh + D, n, ok, 2 * D, D, True)
    v = _rows(V + b * vb + h * vh + start * vn, n, ok, vn, D, True)
    first = n0 // BM * BM if CAUSAL else 0
    full = tl.maximum(first, length // BM * BM)
    Qh, Gh, Mb = QT + base * (2 * D), G + b * gb + h * gh + start * gn, MASK + b * mask_batch
    dkc, dks = tl.zeros([BN, D], dtype=tl.float32), tl.zeros([BN, D], dtype=tl.float32)
    dv, unit = tl.zeros([BN, D], dtype=tl.float32), _unit(scale, 0)
    dkc, dks, dv = _key_tiles(
        dkc, dks, dv, kc, ks, v, first, full, Qh, Gh, STATS + base * 2, Mb, n, ok, length, gn, unit,
        D, BM, HAS_MASK, CAUSAL, False,
    )  # fmt: skip
    dkc, dks, dv = _key_tiles(
        dkc, dks, dv, kc, ks, v, full, length, Qh, Gh, STATS + base * 2, Mb, n, ok, length, gn, unit,
        D, BM, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    cos, sin = _turns(TURNS + (b * key_batch + start) * (2 * D), n, ok, D)
    x = _rows(K + b * kb + h * kh + start * kn, n, ok, kn, D, True).to(tl.float32)
    tl.store(part, scale * tl.sum((dks * cos - dkc * sin) * _magnitudes(x, ROTARY, D), axis=0))
    dk = scale * (dkc * cos + dks * sin) * _slopes(x, ROTARY, D)
    first, own = b * db + h * dh + start * dn, n[:, None] * dn + d[None, :]
    tl.store(DK + first + own, dk.to(kc.dtype), mask=ok[:, None])
    tl.store(DV + first + own, dv.to(v.dtype), mask=ok[:, None])
