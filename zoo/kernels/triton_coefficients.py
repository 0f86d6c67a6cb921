"""Triton kernels of PaPE's coefficients: projection, softplus and sums over parabolas without the parabolas in memory.

A program owns a tile of tokens and a group of heads. Both kernels start with the same product, z = x W^T, in tensor
cores with float32 accumulators: W has R rows for each head, padded to a power of two in registers only. Rows below m
are parabolas and go through softplus; the rest are pieces of the linear term and do not. Number k of a head is then the
sum over rows of f(z) times a weight: a product of directions for k < c; 1 for pieces of axis k - c of the linear term.

Results are planes (c, H, T) and (q, H, T), in which tokens are neighbours: stores are coalesced, and so are the loads
of whoever takes one number of every token.

Legend: T tokens, C features, H heads, m parabolas, q linear terms, c quadratic numbers; tile of BM tokens and HB heads
of MP rows, BK features at a time.
"""

# Annotations stay objects here, since Triton reads them.
import triton
import triton.language as tl

__all__ = ["backward", "forward"]


@triton.jit
def _columns(group, H, R, HB: tl.constexpr, MP: tl.constexpr):
    """Head, row of the head, and whether there is such a row, for every column of a tile."""
    at = tl.arange(0, HB * MP)
    head, row = group * HB + at // MP, at % MP
    return head, row, (head < H) & (row < R)


@triton.jit
def _project(
    X, W, tokens, head, row, T, C, H, R, BM: tl.constexpr, BK: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr
):
    """The product z, (BM, WIDTH) float32; what lies outside repeats the last token and the last row, so is finite."""
    k = tl.arange(0, BK)
    source = tl.minimum(head, H - 1) * R + tl.minimum(row, R - 1)
    x_at = X + tl.minimum(tokens, T - 1).to(tl.int64)[:, None] * C + k[None, :]
    w_at = W + source.to(tl.int64)[None, :] * C + k[:, None]
    z = tl.zeros([BM, WIDTH], dtype=tl.float32)
    for start in range(0, C, BK):
        if EVEN:
            x, w = tl.load(x_at), tl.load(w_at)
        else:
            x = tl.load(x_at, mask=(k < C - start)[None, :], other=0.0)
            w = tl.load(w_at, mask=(k < C - start)[:, None], other=0.0)
        z = tl.dot(x, w, z)
        x_at += BK
        w_at += BK
    return z


@triton.jit
def _softplus(z):
    """log(1 + exp(z)), with small relative error where it is small."""
    e = tl.exp(-tl.abs(z))
    return tl.maximum(z, 0.0) + tl.where(e < 0.01, e * (1.0 - e * (0.5 - e / 3.0)), tl.log(1.0 + e))


@triton.jit
def _weights(PRODUCTS, k: tl.constexpr, head, row, inside, m, c: tl.constexpr, q: tl.constexpr):
    """What each column of a tile weighs in number k; exactly 0 for padding."""
    if k < c:
        return tl.load(PRODUCTS + (head * m + row) * c + k, mask=inside & (row < m), other=0.0)
    return tl.where(inside & (row >= m) & ((row - m) % q == k - c), 1.0, 0.0)


@triton.jit
def forward(
    X, W, PRODUCTS, OUT, LINEAR, T, C, H, R: tl.constexpr, m: tl.constexpr, c: tl.constexpr, q: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, HB: tl.constexpr, MP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The planes of a tile. Programs of the same tokens are neighbours, so that x comes from memory once."""
    groups = tl.cdiv(H, HB)
    tile, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    tokens = tile * BM + tl.arange(0, BM)
    head, row, inside = _columns(group, H, R, HB, MP)
    z = _project(X, W, tokens, head, row, T, C, H, R, BM, BK, HB * MP, EVEN)
    heads = group * HB + tl.arange(0, HB)
    ok = (tokens < T)[:, None] & (heads < H)[None, :]
    for k in tl.static_range(c, c + q):  # First, so that z and its softplus do not take registers at the same time.
        weighed = z * _weights(PRODUCTS, k, head, row, inside, m, c, q)[None, :]
        total = tl.sum(tl.reshape(weighed, (BM, HB, MP)), axis=2)
        tl.store(LINEAR + ((k - c) * H + heads).to(tl.int64)[None, :] * T + tokens[:, None], total, mask=ok)
    a = _softplus(z)
    for k in tl.static_range(c):
        weighed = a * _weights(PRODUCTS, k, head, row, inside, m, c, q)[None, :]
        total = tl.sum(tl.reshape(weighed, (BM, HB, MP)), axis=2)
        tl.store(OUT + (k * H + heads).to(tl.int64)[None, :] * T + tokens[:, None], total, mask=ok)


@triton.jit
def _spread(G, k: tl.constexpr, tokens, heads, ok, T, H, BM: tl.constexpr, HB: tl.constexpr, MP: tl.constexpr):
    """Number k of the gradients G, over all columns of a tile."""
    g = tl.load(G + (k * H + heads).to(tl.int64)[None, :] * T + tokens[:, None], mask=ok, other=0.0)
    return tl.reshape(tl.broadcast_to(g[:, :, None], (BM, HB, MP)), (BM, HB * MP))


@triton.jit
def backward(
    G, LG, X, W, PRODUCTS, DZ, PARTS, T, C, H, R: tl.constexpr, m: tl.constexpr, c: tl.constexpr, q: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, HB: tl.constexpr, MP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of z of a tile, and what its tokens add to the gradient of the products."""
    groups = tl.cdiv(H, HB)
    tile, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    tokens = tile * BM + tl.arange(0, BM)
    head, row, inside = _columns(group, H, R, HB, MP)
    z = _project(X, W, tokens, head, row, T, C, H, R, BM, BK, HB * MP, EVEN)
    heads = group * HB + tl.arange(0, HB)
    ok = (tokens < T)[:, None] & (heads < H)[None, :]
    a = _softplus(z)
    part = ((tile.to(tl.int64) * H + head) * m + row) * c
    for k in tl.static_range(c):
        total = tl.sum(a * _spread(G, k, tokens, heads, ok, T, H, BM, HB, MP), axis=0)
        tl.store(PARTS + part + k, total, mask=inside & (row < m))
    s = tl.where((row < m)[None, :], 1.0 / (1.0 + tl.exp(-z)), 1.0)
    dz = tl.zeros([BM, HB * MP], dtype=tl.float32)
    for k in tl.static_range(c + q):
        weights = _weights(PRODUCTS, k, head, row, inside, m, c, q)
        if k < c:
            dz += _spread(G, k, tokens, heads, ok, T, H, BM, HB, MP) * weights[None, :]
        else:
            dz += _spread(LG, k - c, tokens, heads, ok, T, H, BM, HB, MP) * weights[None, :]
    dz *= s
    at = tokens.to(tl.int64)[:, None] * (H * R) + (head * R + row)[None, :]
    tl.store(DZ + at, dz.to(DZ.dtype.element_ty), mask=(tokens < T)[:, None] & inside[None, :])
