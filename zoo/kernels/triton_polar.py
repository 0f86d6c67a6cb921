"""Triton kernels of attention over magnitudes at angles (PoPE), turned inside: forward, and backward without atomics.

The logit of query i on key j is scale sum_c q_c k_c cos(a_jc - (a_ic - delta_hc)), from magnitudes q and k, angles a
that all heads share, and phases delta of every head: two products, of cosines and of sines. Phases go with the query,
whose side is made once for a tile, in float32, so that keys are turned by cosines and sines of the angles alone, made
once per forward. A product of two 16-bit numbers that is rounded once is what float32 would make of it.

Keys are turned in the loop that reads them, or before (READY) into 2D numbers of a token and head that live as long as
the call does: once instead of once for every tile of queries.

Backward by tiles of queries gives dq and the gradients of the phases, a partial sum for every tile, and leaves the
turned queries, 2D numbers again, for backward by tiles of keys, whose loop would else need float32 algebra.

Legend: B batch, H heads, N tokens, D head width, M/N tile of queries/keys.
"""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

from zoo.kernels.triton_attention import _exponentials, _hidden, _unit

__all__ = ["polar_forward", "polar_keys", "polar_queries", "turn"]


@triton.jit
def _turns(TURNS, place, ok, D: tl.constexpr):
    """Cosines and sines of the angles of tokens, (tokens, D) each in 16 bit; 0 where not `ok`."""
    at = TURNS + place[:, None] * (2 * D) + tl.arange(0, D)[None, :]
    return tl.load(at, mask=ok[:, None], other=0.0), tl.load(at + D, mask=ok[:, None], other=0.0)


@triton.jit
def turn(K, TURNED, TURNS, kb, kh, kn, key_batch, H, N, D: tl.constexpr, BN: tl.constexpr):
    """Turns a tile of keys, of whatever sample: TURNED is (B, H, N, 2D)."""
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    tokens, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    ok = tokens < N
    k = tl.load(K + b * kb + h * kh + tokens[:, None] * kn + d[None, :], mask=ok[:, None], other=0.0)
    cos, sin = _turns(TURNS, b * key_batch + tokens, ok, D)
    at = TURNED + (bh.to(tl.int64) * N + tokens)[:, None] * (2 * D) + d[None, :]
    tl.store(at, k * cos, mask=ok[:, None])
    tl.store(at + D, k * sin, mask=ok[:, None])


@triton.jit
def _turned_queries(q, TURNS, PHASES, h, place, ok, D: tl.constexpr):
    """Magnitudes times cosine and sine of angle minus phase, rounded once."""
    cos, sin = _turns(TURNS, place, ok, D)
    phase = PHASES + h * (2 * D) + tl.arange(0, D)[None, :]
    c, z = tl.load(phase), tl.load(phase + D)
    x = q.to(tl.float32)
    return (x * (cos * c + sin * z)).to(q.dtype), (x * (sin * c - cos * z)).to(q.dtype)


@triton.jit
def _turned_keys(K, TURNS, keys, places, okc, kn, D: tl.constexpr, READY: tl.constexpr, EDGE: tl.constexpr):
    """Magnitudes times cosines and sines, (keys, D) each; where READY they are read side by side."""
    d = tl.arange(0, D)[None, :]
    at, turn = K + keys[:, None] * kn + d, TURNS + places[:, None] * (2 * D) + d
    if READY:
        if EDGE:
            return tl.load(at, mask=okc[:, None], other=0.0), tl.load(at + D, mask=okc[:, None], other=0.0)
        else:
            return tl.load(at), tl.load(at + D)
    else:
        if EDGE:
            k = tl.load(at, mask=okc[:, None], other=0.0)
            cos, sin = tl.load(turn, mask=okc[:, None], other=0.0), tl.load(turn + D, mask=okc[:, None], other=0.0)
        else:
            k, cos, sin = tl.load(at), tl.load(turn), tl.load(turn + D)
        return k * cos, k * sin


@triton.jit
def _polar_tiles(
    acc, top, total, qc, qs, first, stop, K, TURNS, V, MASK, m, start, length, key_base, b_mask, kn, vn, unit,
    D: tl.constexpr, BN: tl.constexpr, READY: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Goes over keys `first` to `stop` of the sample; only with EDGE may tiles reach beyond its end."""
    d = tl.arange(0, D)
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        okc, keys = n < length, start + n
        kc, ks = _turned_keys(K, TURNS, keys, key_base + keys, okc, kn, D, READY, EDGE)
        s = tl.dot(qc, tl.trans(kc))
        s = tl.dot(qs, tl.trans(ks), s)
        s = _hidden(s, MASK, m, n, okc, b_mask, HAS_MASK, CAUSAL, EDGE, False)
        p, fade, total, top = _exponentials(s, top, total, unit)
        if EDGE:
            v = tl.load(V + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
        else:
            v = tl.load(V + keys[:, None] * vn + d[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
    return acc, top, total


@triton.jit
def polar_forward(
    Q, K, V, OUT, LSE, TURNS, PHASES, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, key_batch, mask_batch, H, N, scale,
    D: tl.constexpr, READY: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: output and the logarithm (base 2) of the sum of exponentials."""
    unit = _unit(tl.cast(scale, tl.float32), 0)  # Compiled code hands floats over in float64.
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
    ok, tokens, d = m < length, start + m, tl.arange(0, D)
    row = bh.to(tl.int64) * N + tokens
    key_base = b * key_batch
    q = tl.load(Q + b * qb + h * qh + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
    qc, qs = _turned_queries(q, TURNS, PHASES, h, key_base + tokens, ok, D)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    top = tl.full([BM], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh = K + b * kb + h * kh, V + b * vb + h * vh
    acc, top, total = _polar_tiles(
        acc, top, total, qc, qs, 0, full, Kh, TURNS, Vh, MASK, m, start, length, key_base, b * mask_batch, kn, vn,
        unit, D, BN, READY, HAS_MASK, False, False,
    )  # fmt: skip
    acc, top, total = _polar_tiles(
        acc, top, total, qc, qs, full, stop, Kh, TURNS, Vh, MASK, m, start, length, key_base, b * mask_batch, kn, vn,
        unit, D, BN, READY, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    seen = total > 0.0
    out = acc / tl.where(seen, total, 1.0)[:, None]
    # Infinity makes the probabilities of a row that sees nothing zero in backward.
    lse = tl.where(seen, top * unit + tl.math.log2(tl.where(seen, total, 1.0)), float("inf"))
    tl.store(OUT + b * ob + h * oh + tokens[:, None] * on + d[None, :], out.to(OUT.dtype.element_ty), mask=ok[:, None])
    tl.store(LSE + row, lse, mask=ok)


@triton.jit
def _polar_query_tiles(
    dqc, dqs, qc, qs, g, lse, sums, first, stop, K, TURNS, V, MASK, m, start, length, key_base, b_mask, kn, vn, unit,
    D: tl.constexpr, BN: tl.constexpr, READY: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what keys `first` to `stop` of the sample give to the gradients of a tile of turned queries."""
    d = tl.arange(0, D)
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        okc, keys = n < length, start + n
        kc, ks = _turned_keys(K, TURNS, keys, key_base + keys, okc, kn, D, READY, EDGE)
        if EDGE:
            v = tl.load(V + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
        else:
            v = tl.load(V + keys[:, None] * vn + d[None, :])
        s = tl.dot(qc, tl.trans(kc))
        s = tl.dot(qs, tl.trans(ks), s)
        s = _hidden(s, MASK, m, n, okc, b_mask, HAS_MASK, CAUSAL, EDGE, False)
        p = tl.math.exp2(s * unit - lse[:, None])
        ds = (p * (tl.dot(g, tl.trans(v)) - sums[:, None])).to(kc.dtype)
        dqc = tl.dot(ds, kc, dqc)
        dqs = tl.dot(ds, ks, dqs)
    return dqc, dqs


@triton.jit
def polar_queries(
    Q, K, V, G, STATS, DQ, PARTS, TURNED, TURNS, PHASES, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, scale,
    D: tl.constexpr, READY: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries and its part of those of the phases; leaves turned queries for `polar_keys`."""
    scale = tl.cast(scale, tl.float32)  # Compiled code hands floats over in float64.
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    d = tl.arange(0, D)
    part = PARTS + (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + bh) * (2 * D) + d
    start, length, m0 = 0, N, tl.program_id(0) * BM
    if PACKED:  # Not in a function: PyTorch takes arguments of a call for written where stores depend on its result.
        sample = tl.load(TILES + 2 * tl.program_id(0))
        start = tl.load(CU + sample)
        length, m0 = tl.load(CU + sample + 1) - start, tl.load(TILES + 2 * tl.program_id(0) + 1) * BM
    if m0 >= length:
        tl.store(part, tl.zeros([D], dtype=tl.float32))
        tl.store(part + D, tl.zeros([D], dtype=tl.float32))
        return
    m = m0 + tl.arange(0, BM)
    ok, tokens = m < length, start + m
    row = bh.to(tl.int64) * N + tokens
    key_base = b * key_batch
    place = key_base + tokens
    at_q = Q + b * qb + h * qh + tokens[:, None] * qn + d[None, :]
    q = tl.load(at_q, mask=ok[:, None], other=0.0)
    g = tl.load(G + b * gb + h * gh + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
    lse = tl.load(STATS + row * 2, mask=ok, other=float("inf"))
    sums = tl.load(STATS + row * 2 + 1, mask=ok, other=0.0)
    qc, qs = _turned_queries(q, TURNS, PHASES, h, place, ok, D)
    at_turned = TURNED + row[:, None] * (2 * D) + d[None, :]
    tl.store(at_turned, qc, mask=ok[:, None])
    tl.store(at_turned + D, qs, mask=ok[:, None])
    dqc, dqs = tl.zeros([BM, D], dtype=tl.float32), tl.zeros([BM, D], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh = K + b * kb + h * kh, V + b * vb + h * vh
    dqc, dqs = _polar_query_tiles(
        dqc, dqs, qc, qs, g, lse, sums, 0, full, Kh, TURNS, Vh, MASK, m, start, length, key_base, b * mask_batch,
        kn, vn, _unit(scale, 0), D, BN, READY, HAS_MASK, False, False,
    )  # fmt: skip
    dqc, dqs = _polar_query_tiles(
        dqc, dqs, qc, qs, g, lse, sums, full, stop, Kh, TURNS, Vh, MASK, m, start, length, key_base, b * mask_batch,
        kn, vn, _unit(scale, 0), D, BN, READY, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    cos, sin = _turns(TURNS, place, ok, D)
    phase = PHASES + h * (2 * D) + d
    u, w = scale * (dqc * cos + dqs * sin), scale * (dqc * sin - dqs * cos)
    dq = u * tl.load(phase)[None, :] + w * tl.load(phase + D)[None, :]
    tl.store(DQ + b * db + h * dh + tokens[:, None] * dn + d[None, :], dq.to(q.dtype), mask=ok[:, None])
    x = tl.load(at_q, mask=ok[:, None], other=0.0).to(tl.float32)
    tl.store(part, tl.sum(x * u, axis=0))
    tl.store(part + D, tl.sum(x * w, axis=0))


@triton.jit
def _polar_key_tiles(
    dkc, dks, dv, kc, ks, v, first, stop, TURNED, G, STATS, MASK, base, n, okc, start, length, b_mask, gn, unit,
    D: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Adds what queries `first` to `stop` of the sample give to the gradients of a tile of turned keys and values.

    Both numbers of a row are loaded as one tile, see `zoo.kernels.triton_attention_backward`.
    """
    d, pair = tl.arange(0, D), tl.arange(0, 2)
    for m0 in range(first, stop, BM):
        m = m0 + tl.arange(0, BM)
        ok, tokens = m < length, start + m
        row = base + tokens
        at = TURNED + row[:, None] * (2 * D) + d[None, :]
        if EDGE:
            qc, qs = tl.load(at, mask=ok[:, None], other=0.0), tl.load(at + D, mask=ok[:, None], other=0.0)
            g = tl.load(G + tokens[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0)
            lse, sums = tl.split(tl.load(STATS + row[:, None] * 2 + pair[None, :], mask=ok[:, None], other=0.0))
            lse = tl.where(ok, lse, float("inf"))
        else:
            qc, qs = tl.load(at), tl.load(at + D)
            g = tl.load(G + tokens[:, None] * gn + d[None, :])
            lse, sums = tl.split(tl.load(STATS + row[:, None] * 2 + pair[None, :]))
        s = tl.dot(kc, tl.trans(qc))
        s = tl.dot(ks, tl.trans(qs), s)
        s = _hidden(s, MASK, m, n, okc, b_mask, HAS_MASK, CAUSAL, False, True)
        # Rows of keys beyond the sample hold anything: they meet no other row, and are not stored.
        p = tl.math.exp2(s * unit - lse[None, :])
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = (p * (tl.dot(v, tl.trans(g)) - sums[None, :])).to(qc.dtype)
        dkc = tl.dot(ds, qc, dkc)
        dks = tl.dot(ds, qs, dks)
    return dkc, dks, dv


@triton.jit
def polar_keys(
    K, V, G, STATS, DK, DV, TURNED, TURNS, MASK, CU, TILES,
    kb, kh, kn, vb, vh, vn, gb, gh, gn, db, dh, dn, key_batch, mask_batch, H, N, scale,
    D: tl.constexpr, READY: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
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
    okc, keys, d = n < length, start + n, tl.arange(0, D)
    place = b * key_batch + keys
    kc, ks = _turned_keys(K + b * kb + h * kh, TURNS, keys, place, okc, kn, D, READY, True)
    v = tl.load(V + b * vb + h * vh + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
    first = n0 // BM * BM if CAUSAL else 0
    full = tl.maximum(first, length // BM * BM)
    Gh, base = G + b * gb + h * gh, bh.to(tl.int64) * N
    dkc, dks = tl.zeros([BN, D], dtype=tl.float32), tl.zeros([BN, D], dtype=tl.float32)
    dv = tl.zeros([BN, D], dtype=tl.float32)
    dkc, dks, dv = _polar_key_tiles(
        dkc, dks, dv, kc, ks, v, first, full, TURNED, Gh, STATS, MASK, base, n, okc, start, length, b * mask_batch, gn,
        _unit(scale, 0), D, BM, HAS_MASK, CAUSAL, False,
    )  # fmt: skip
    dkc, dks, dv = _polar_key_tiles(
        dkc, dks, dv, kc, ks, v, full, length, TURNED, Gh, STATS, MASK, base, n, okc, start, length, b * mask_batch, gn,
        _unit(scale, 0), D, BM, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    cos, sin = _turns(TURNS, place, okc, D)
    dk = scale * (dkc * cos + dks * sin)
    tl.store(DK + b * db + h * dh + keys[:, None] * dn + d[None, :], dk.to(kc.dtype), mask=okc[:, None])
    tl.store(DV + b * db + h * dh + keys[:, None] * dn + d[None, :], dv.to(v.dtype), mask=okc[:, None])
