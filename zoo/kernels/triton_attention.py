"""Triton kernels of attention with a position term in the inner loop: forward, and backward without atomics.

The logit of query i on key j is scale (q_i . k_j + b_ij) + c_ij. What b and c are is the KIND of a launch:

- 0: nothing.
- 1, columns: b is one more narrow matrix product, of query columns (made of M and t in float32 and cut into 16-bit
  pieces here) and key columns (16 bit, made once per forward); see `zoo.encodings.quadratic`.
- 2, parabolas: b = t_i . D - D^T M_i D from exact differences of coordinates, for any extent.
- 3, distances: c = -slope_h |D|, minus infinity outside the field of view of a head.
- 4, a matrix: c is read; forward only, see `zoo.kernels.triton_attention_rows`.

Backward recomputes the logits twice, once by tiles of queries (dq and the gradient of the query terms) and once by
tiles of keys (dk and dv), so that every sum has one owner and results do not depend on the order of programs. Key
terms follow from coordinates and get no gradient. Gradients of query terms are sums over keys that nearly cancel. They
stay float32 until gradients of M and t are made of them, and all columns meet the same rounded dS, so that with the row
constant among them what rounding adds is a sum over D D^T as well.

Legend: B batch, H heads, N tokens, D head width, M/N tile of queries/keys, W columns.
"""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

__all__ = ["forward", "row_stats"]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _round(x, BF16: tl.constexpr):
    """Rounds float32 to the precision of a 16-bit dtype by integer arithmetic, which no compiler takes for nothing."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x8000) & -0x10000 if BF16 else (bits + 0x1000) & -0x2000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _index(x, y, AXES: tl.constexpr):
    """Which of the numbers M_ab for a <= b is that of axes x and y."""
    low, high = tl.minimum(x, y), tl.maximum(x, y)
    return low * AXES - low * (low + 1) // 2 + high


@triton.jit
def _numbers(X, tokens, ok, token_stride, k, wanted, stride):
    """Number k[j] of every token where `wanted[j]`, else 0: (tokens, numbers). Planes of numbers may lie far apart."""
    at = (X + k.to(tl.int64) * stride)[None, :] + (tokens * token_stride)[:, None]
    return tl.load(at, mask=ok[:, None] & wanted[None, :], other=0.0)


@triton.jit
def _powers(LOW, HIGH):
    """The powers of all columns in 64 bits; compiled code of PyTorch 2.11 hands over numbers of 32."""
    return tl.cast(LOW, tl.int64) | (tl.cast(HIGH, tl.int64) << 28)


@triton.jit
def _factors(powers, source):
    """2^-power of columns `source`; `powers` holds 4 bits for each, one more than its power."""
    power = ((tl.cast(powers, tl.int64) >> (4 * source)) & 15).to(tl.int32) - 1
    return ((127 - power) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _source(AXES: tl.constexpr, inexact: tl.constexpr, W: tl.constexpr):
    """Which column each piece is of: n high, n low, some high again for low halves of k, the lowest of the constant."""
    n: tl.constexpr = AXES * (AXES + 1) // 2 + AXES + 1
    at = tl.arange(0, W)
    return tl.where(at < n, at, tl.where(at < 2 * n, at - n, tl.where(at < 2 * n + inexact, at - 2 * n, n - 1)))


@triton.jit
def _query_columns(
    A, LINEAR, R, KNOWN, POWERS, b, h, tokens, place, ok, ab, ah, an, ac, tb, th, tn, tc,
    AXES: tl.constexpr, HAS_LINEAR: tl.constexpr, HAS_KNOWN: tl.constexpr, inexact: tl.constexpr, W: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Pieces of the columns of q, which are -M_ab (doubled off the diagonal), 2 M r - t and t . r - r^T M r.

    Every number is computed where it is needed, for all pieces of its column: numbers of a row put together from
    vectors would take a register of each thread for each of them.
    """
    C: tl.constexpr = AXES * (AXES + 1) // 2
    n: tl.constexpr = C + AXES + 1
    at, source = tl.arange(0, W), _source(AXES, inexact, W)
    linear, axis = (source >= C) & (source < n - 1), tl.maximum(source - C, 0)
    A += b * ab + h * ah
    times = tl.full([W], -2.0, tl.float32)
    for x in tl.static_range(AXES):
        times = tl.where(source == _index(x, x, AXES), -1.0, times)
    u = tl.zeros([tokens.shape[0], W], dtype=tl.float32)
    own = u  # Coordinate of the axis of a linear column, once.
    for y in tl.static_range(AXES):
        r = tl.load(R + place * AXES + y, mask=ok, other=0.0)[:, None]
        own = tl.where((at == C + y)[None, :], r, own)
        if y == 0:
            m = _numbers(A, tokens, ok, an, tl.where(linear, _index(axis, 0, AXES), source), source < n - 1, ac)
            u = m * tl.where(linear[None, :], 2.0 * r, times[None, :])
        else:
            u += _numbers(A, tokens, ok, an, _index(axis, y, AXES), linear, ac) * (2.0 * r)
    rest = -0.5 * u
    if HAS_LINEAR:
        t = _numbers(LINEAR + b * tb + h * th, tokens, ok, tn, axis, linear, tc)
        rest += t
        u -= t
    constant = tl.sum(rest * own, axis=1)
    u = tl.where((source == n - 1)[None, :], constant[:, None], u) * _factors(POWERS, source)[None, :]
    if HAS_KNOWN:  # A query without a position sees every key alike.
        u *= tl.load(KNOWN + place, mask=ok, other=0.0)[:, None]
    high = _round(u, dtype == tl.bfloat16)
    low = _round(u - high, dtype == tl.bfloat16)
    is_low, is_lowest = (at >= n) & (at < 2 * n), at >= 2 * n + inexact
    piece = tl.where(is_lowest[None, :], u - high - low, tl.where(is_low[None, :], low, high))
    return tl.where((at <= 2 * n + inexact)[None, :], piece, 0.0).to(dtype)


@triton.jit
def _spread(x, T: tl.constexpr):
    """A number per query over the tile of logits, which is (keys, queries) when T."""
    if T:  # With no else branch Triton would type both returns.
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def _across(x, T: tl.constexpr):
    """A number per key over the tile of logits."""
    if T:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def _difference(R, a: tl.constexpr, rows, ok, cols, okc, AXES: tl.constexpr, T: tl.constexpr):
    """Query minus key along axis a."""
    query = tl.load(R + rows * AXES + a, mask=ok, other=0.0)
    key = tl.load(R + cols * AXES + a, mask=okc, other=0.0)
    return _spread(query, T) - _across(key, T)


@triton.jit
def _known(KNOWN, rows, ok, cols, okc, T: tl.constexpr):
    """1 where query and key have a position, else 0."""
    query, key = tl.load(KNOWN + rows, mask=ok, other=0.0), tl.load(KNOWN + cols, mask=okc, other=0.0)
    return _spread(query, T) * _across(key, T)


@triton.jit
def _parabolas(A, R, KNOWN, arow, rows, ok, cols, okc, AXES: tl.constexpr, HAS_KNOWN: tl.constexpr, T: tl.constexpr):
    """T . D - D^T M D, by Horner's rule from differences."""
    C: tl.constexpr = AXES * (AXES + 1) // 2
    total = 0.0
    for a in tl.static_range(AXES):
        inner = _spread(tl.load(A + arow * (C + AXES) + C + a, mask=ok, other=0.0), T)
        for b in tl.static_range(a, AXES):
            m = tl.load(A + arow * (C + AXES) + (a * AXES - a * (a - 1) // 2 + b - a), mask=ok, other=0.0)
            times = 1.0 if a == b else 2.0
            inner = inner - _spread(times * m, T) * _difference(R, b, rows, ok, cols, okc, AXES, T)
        total = total + inner * _difference(R, a, rows, ok, cols, okc, AXES, T)
    if HAS_KNOWN:
        total = total * _known(KNOWN, rows, ok, cols, okc, T)
    return total


@triton.jit
def _parabola_gradient(
    du, ds, R, KNOWN, rows, ok, cols, okc, AXES: tl.constexpr, W: tl.constexpr, HAS_KNOWN: tl.constexpr
):
    """Adds the sums over keys of dS times what the coefficients of `_parabolas` multiply."""
    C: tl.constexpr = AXES * (AXES + 1) // 2
    at = tl.arange(0, W)[None, :]
    if HAS_KNOWN:
        ds = ds * _known(KNOWN, rows, ok, cols, okc, False)
    for a in tl.static_range(AXES):
        da = ds * _difference(R, a, rows, ok, cols, okc, AXES, False)
        du += tl.where(at == C + a, tl.sum(da, axis=1)[:, None], 0.0)
        for b in tl.static_range(a, AXES):
            times = -1.0 if a == b else -2.0
            both = tl.sum(da * _difference(R, b, rows, ok, cols, okc, AXES, False), axis=1)
            du += tl.where(at == a * AXES - a * (a - 1) // 2 + b - a, times * both[:, None], 0.0)
    return du


@triton.jit
def _distances(
    HEADS, R, KNOWN, h, rows, ok, cols, okc, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr,
    BORDER: tl.constexpr, HAS_KNOWN: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """-slope |D| inside the two half-planes of a head, minus infinity outside."""
    own = HEADS + h * (1 + 2 * AXES * FIELDS)
    total = 0.0
    for a in tl.static_range(AXES):
        d = _difference(R, a, rows, ok, cols, okc, AXES, T)
        total = total + (tl.abs(d) if ORDER == 1 else d * d)
    bias = -tl.load(own) * (total if ORDER == 1 else tl.sqrt(total))
    if FIELDS:
        for plane in tl.static_range(2):
            side = 0.0
            for a in tl.static_range(AXES):
                d = _difference(R, a, rows, ok, cols, okc, AXES, T)
                side = side + tl.load(own + 1 + plane * AXES + a) * d
            bias = tl.where(side <= BORDER, bias, float("-inf"))
    if HAS_KNOWN:
        bias = tl.where(_known(KNOWN, rows, ok, cols, okc, T) > 0.0, bias, 0.0)
    return bias


@triton.jit
def _unit(scale, KIND: tl.constexpr):
    """What a result of `_logits` times this is: a logit in base 2. Up to kind 2 scaling is left to exponentiation."""
    if KIND >= 3:
        return 1.0
    else:
        return scale * LOG2E


@triton.jit
def _hidden(
    s, MASK, m, n, okc, b_mask, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr, T: tl.constexpr
):
    """Minus infinity for keys that a query does not see."""
    if HAS_MASK:
        seen = tl.load(MASK + b_mask + n, mask=okc, other=0) != 0
        s = tl.where(_across(seen, T), s, float("-inf"))
    elif EDGE:
        s = tl.where(_across(okc, T), s, float("-inf"))
    if CAUSAL:
        s = tl.where(_spread(m, T) >= _across(n, T), s, float("-inf"))
    return s


@triton.jit
def _exponentials(s, top, total, unit):
    """Of the logits of further keys: with their sums, what earlier sums are to be multiplied by, and the new maxima."""
    new = tl.maximum(top, tl.max(s, axis=1))
    base = tl.where(new == float("-inf"), 0.0, new)  # A row that sees nothing so far.
    p = tl.math.exp2(s * unit - (base * unit)[:, None])
    fade = tl.math.exp2((top - base) * unit)
    return p, fade, total * fade + tl.sum(p, axis=1), new


@triton.jit
def _logits(
    s, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, n, cols, okc, b_mask, scale,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """From products to logits in units of `_unit`: position terms that are not columns, hidden keys."""
    if KIND == 2:
        s += _parabolas(A, R, KNOWN, arow, rows, ok, cols, okc, AXES, HAS_KNOWN, T)
    if KIND >= 3:
        s *= scale * LOG2E
    if KIND == 3:
        s += LOG2E * _distances(HEADS, R, KNOWN, h, rows, ok, cols, okc, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, T)
    if KIND == 4:
        if EDGE:
            s += LOG2E * tl.load(A + arow[:, None] + n[None, :], mask=okc[None, :], other=0.0)
        else:
            s += LOG2E * tl.load(A + arow[:, None] + n[None, :])
    return _hidden(s, MASK, m, n, okc, b_mask, HAS_MASK, CAUSAL, EDGE, T)


@triton.jit
def _attend_tiles(
    acc, top, total, q, qc, first, stop, K, KC, V, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, start, length,
    key_base, b_mask, kn, vn, scale, D: tl.constexpr, W: tl.constexpr, BN: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Goes over keys `first` to `stop` of the sample; only with EDGE may tiles reach beyond its end."""
    d, at, unit = tl.arange(0, D), tl.arange(0, W), _unit(scale, KIND)
    for n0 in range(first, stop, BN):
        n = n0 + tl.arange(0, BN)
        okc = n < length
        keys = start + n
        if EDGE:
            k = tl.load(K + keys[None, :] * kn + d[:, None], mask=okc[None, :], other=0.0)
        else:
            k = tl.load(K + keys[None, :] * kn + d[:, None])
        s = tl.dot(q, k)
        if KIND == 1:
            if EDGE:
                kc = tl.load(KC + (key_base + keys)[None, :] * W + at[:, None], mask=okc[None, :], other=0.0)
            else:
                kc = tl.load(KC + (key_base + keys)[None, :] * W + at[:, None])
            s = tl.dot(qc, kc, s)
        s = _logits(
            s, A, R, KNOWN, HEADS, MASK, h, arow, m, rows, ok, n, key_base + keys, okc, b_mask, scale,
            KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, EDGE, False,
        )  # fmt: skip
        p, fade, total, top = _exponentials(s, top, total, unit)
        if EDGE:
            v = tl.load(V + keys[:, None] * vn + d[None, :], mask=okc[:, None], other=0.0)
        else:
            v = tl.load(V + keys[:, None] * vn + d[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
    return acc, top, total


@triton.jit
def forward(
    Q, K, V, OUT, LSE, A, LINEAR, KC, R, KNOWN, HEADS, MASK, CU, TILES,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, ab, ah, an, ac, tb, th, tn, tc,
    key_batch, mask_batch, H, N, scale, POWERS, POWERS_HIGH,
    D: tl.constexpr, W: tl.constexpr, inexact: tl.constexpr, HAS_LINEAR: tl.constexpr,
    KIND: tl.constexpr, AXES: tl.constexpr, ORDER: tl.constexpr, FIELDS: tl.constexpr, BORDER: tl.constexpr,
    HAS_KNOWN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: output and the logarithm (base 2) of the sum of exponentials."""
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
    ok, tokens, d = m < length, start + m, tl.arange(0, D)
    row = bh.to(tl.int64) * N + tokens
    key_base = b * key_batch
    q = tl.load(Q + b * qb + h * qh + tokens[:, None] * qn + d[None, :], mask=ok[:, None], other=0.0)
    qc = q
    if KIND == 1:
        qc = _query_columns(
            A, LINEAR, R, KNOWN, powers, b, h, tokens, key_base + tokens, ok, ab, ah, an, ac, tb, th, tn, tc,
            AXES, HAS_LINEAR, HAS_KNOWN, inexact, W, q.dtype,
        )  # fmt: skip
    acc = tl.zeros([BM, D], dtype=tl.float32)
    top = tl.full([BM], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    stop = tl.minimum(length, m0 + BM) if CAUSAL else length
    full = (m0 if CAUSAL else stop) // BN * BN  # Before it no key is hidden from a query of the tile.
    Kh, Vh = K + b * kb + h * kh, V + b * vb + h * vh
    acc, top, total = _attend_tiles(
        acc, top, total, q, qc, 0, full, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, False, False,
    )  # fmt: skip
    acc, top, total = _attend_tiles(
        acc, top, total, q, qc, full, stop, Kh, KC, Vh, A, R, KNOWN, HEADS, MASK, h, row, m, key_base + tokens, ok,
        start, length, key_base, b * mask_batch, kn, vn, scale, D, W, BN,
        KIND, AXES, ORDER, FIELDS, BORDER, HAS_KNOWN, HAS_MASK, CAUSAL, True,
    )  # fmt: skip
    seen = total > 0.0
    out = acc / tl.where(seen, total, 1.0)[:, None]
    # Infinity makes the probabilities of a row that sees nothing zero in backward.
    lse = tl.where(seen, top * _unit(scale, KIND) + tl.math.log2(tl.where(seen, total, 1.0)), float("inf"))
    tl.store(OUT + b * ob + h * oh + tokens[:, None] * on + d[None, :], out.to(OUT.dtype.element_ty), mask=ok[:, None])
    tl.store(LSE + row, lse, mask=ok)


@triton.jit
def row_stats(OUT, G, LSE, STATS, ob, oh, on, gb, gh, gn, H, N, D: tl.constexpr, BM: tl.constexpr):
    """What backward needs of a row, side by side: the logarithm, and the sum of output times its gradient."""
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    ok = m < N
    o = tl.load(OUT + b * ob + h * oh + m[:, None] * on + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
    g = tl.load(G + b * gb + h * gh + m[:, None] * gn + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
    row = bh.to(tl.int64) * N + m
    tl.store(STATS + row * 2, tl.load(LSE + row, mask=ok, other=0.0), mask=ok)
    tl.store(STATS + row * 2 + 1, tl.sum(o * g, axis=1), mask=ok)
