"""Encodings of kind group: GTA and PRoPE against their definition, pair by pair, and what the block promises them."""

import dataclasses

import pytest
import torch
from group_reference import POSES, attend, rigid_poses

from zoo import ConfigError, DataError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame
from zoo.encodings.extension import YaRN
from zoo.encodings.gta import GTA
from zoo.encodings.rope import RoPE
from zoo.poses import from_cameras
from zoo.transformer import Block, Encoder

GROUP = ("gta", "prope")
HEADS = 2


def block(name, axes=2, width=15, **options):
    torch.manual_seed(0)
    return CoordinateAttention(width * HEADS, HEADS, axes, name, **options)


def posed(axes=2, tokens=7, batch=2, kind="rigid", shared=False):
    """Tokens anywhere, each with a pose of its own."""
    torch.manual_seed(axes)
    poses = POSES[kind](batch * tokens).view(batch, tokens, 4, 4)
    values = torch.randn(1 if shared else batch, tokens, axes, dtype=torch.float64) * 4
    return Coordinates(values, poses=poses)


def features(attention, coords, batch=2, dtype=torch.float64):
    torch.manual_seed(5)
    return torch.randn(batch, coords.values.shape[-2], attention.dim, dtype=dtype)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize("prefix", ["none", "without position", "at origin"])
@pytest.mark.parametrize("kind", [None, *POSES])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", GROUP)
def test_attention_equals_the_definition(name, axes, kind, prefix):
    coords = posed(axes, tokens=5, kind=kind or "rigid")
    if kind is None:
        coords = dataclasses.replace(coords, poses=None)
    if prefix != "none":
        coords = coords.with_prefix(1, at=None if prefix == "without position" else (0,) * axes)
    attention = block(name, axes).double()
    x = features(attention, coords)
    for found, expected in zip(
        attention(x, coords, return_attention=True), attend(attention, name, x, coords), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize(
    ("name", "width", "options"),
    [
        ("gta", 16, {"pose_share": 1.0, "length": 2.5}),
        ("gta", 9, {"pose_share": 0.6, "base": 30.0}),
        ("gta", 12, {"pose_share": 0.2}),  # No block fits the share.
        ("prope", 24, {"base": 10.0, "length": 0.4}),
    ],
)
def test_options_are_those_of_the_definition(name, width, options):
    coords, attention = posed(tokens=4, kind="affine"), block(name, width=width, **options).double()
    x = features(attention, coords)
    given = {{"pose_share": "share"}.get(key, key): value for key, value in options.items()}
    if options.get("pose_share") == 0.2:
        with pytest.raises(ConfigError, match="wider heads"):
            attention(x, coords)
        return
    close(attention(x, coords), attend(attention, name, x, coords, **given)[0])


@pytest.mark.parametrize("name", GROUP)
def test_values_turn_too(name):
    """With equal logits everywhere, what comes out still depends on where things are."""
    attention, coords = block(name).double(), posed()
    with torch.no_grad():
        attention.qkv.weight[: 2 * HEADS * 15] = 0
        attention.qkv.bias[: 2 * HEADS * 15] = 0
    x = features(attention, coords)
    out, rows = attention(x, coords, return_attention=True)
    close(rows, torch.full_like(rows, 1 / 7))
    assert (out - out[:, :1]).abs().amax(-1)[:, 1:].min() > 0.05
    plain = attention(x, Coordinates(torch.zeros_like(coords.values)))
    close(plain, plain[:, :1].expand_as(plain), 1e-12)


@pytest.mark.parametrize("length", [1.0, 2.5])
@pytest.mark.parametrize("name", GROUP)
def test_a_point_that_every_camera_sees_comes_out_as_the_query_sees_it(name, length):
    """Geometry instead of the definition: which way poses go, and in which frame values arrive."""

    def numbers(*values):
        return torch.tensor(values, dtype=torch.float64)

    cameras = torch.linalg.inv(rigid_poses(5, spread=3.0, seed=2))
    cameras[:, :3, 3] += 100  # Camera from world.
    intrinsics = torch.stack([numbers(300, 0, 150), numbers(0, 310, 110), numbers(0, 0, 1)])[None]
    options = (intrinsics, (320, 240)) if name == "prope" else ()
    poses = from_cameras(cameras, *options, dtype=torch.float64)
    if name == "prope":  # Projections, to columns and rows about the middle in shares of the picture.
        shares = torch.stack([numbers(1 / 320, 0, -0.5), numbers(0, 1 / 240, -0.5), numbers(0, 0, 1)])
        cameras[:, :3] = shares @ intrinsics @ cameras[:, :3]
    encoding = block(name, width=8, length=length).encoding
    frame = encoding.frame(Coordinates(torch.zeros(1, 5, 2, dtype=torch.float64), poses=poses[None]), torch.float64)
    point, plane, unit = numbers(5, -4, 7, 1), numbers(0.3, -1, 0.5, 2), numbers(length, length, length, 1)
    seen, planes = torch.zeros(2, 1, 1, 5, 8, dtype=torch.float64)
    seen[..., :4], planes[..., :4] = cameras @ point / unit, plane @ torch.linalg.inv(cameras) * unit
    rows = torch.rand(1, 1, 5, 5, dtype=torch.float64).softmax(-1)
    close(encoding.transform_output(rows @ encoding.transform_values(seen, frame), frame), seen)
    q, k = encoding.fold(seen, planes, seen, frame)  # Logits: how far the point is off a plane, in any frame.
    close(q @ k.mT, (plane @ point).expand(1, 1, 5, 5))


@pytest.mark.parametrize("world", ["rigid", "far", "projective"])
@pytest.mark.parametrize("name", GROUP)
def test_a_change_of_the_world_frame_changes_nothing(name, world):
    attention, coords = block(name).double(), posed(kind="affine")
    x = features(attention, coords)
    change = POSES["projective" if world == "projective" else "rigid"](1, seed=9)[0]
    change[:3, 3] *= 1e3 if world == "far" else 1
    moved = dataclasses.replace(coords, poses=change @ coords.poses)
    for a, b in zip(*(attention(x, c, return_attention=True) for c in (coords, moved)), strict=True):
        close(a, b)
    classed, both = (c.with_prefix(1) for c in (coords, moved)), features(attention, coords.with_prefix(1))
    outs = [attention(both, c) for c in classed]  # A token without a pose stands in the world.
    assert (outs[0] - outs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
@pytest.mark.parametrize("name", GROUP)
def test_translation_of_coordinates_changes_neither_logits_nor_outputs(name, axes):
    attention, x = block(name, axes).double(), None
    for coords in (posed(axes), dataclasses.replace(posed(axes), poses=None)):
        x = features(attention, coords)
        moved = coords.shifted([31.7, -12.0, 5.5, 100.25][:axes])
        assert coords.poses is moved.poses
        for a, b in zip(*(attention(x, c, return_attention=True) for c in (coords, moved)), strict=True):
            close(a, b)


@pytest.mark.parametrize("name", GROUP)
def test_tokens_without_position_stay_as_they_are(name):
    coords = dataclasses.replace(posed(), poses=None, positioned=torch.tensor([[True, False] * 3 + [True]]))
    encoding = block(name).double().encoding
    frame = encoding.frame(coords, torch.float64)
    v = torch.randn(2, HEADS, 7, 15, dtype=torch.float64)
    for made in (
        *encoding.fold(v, v, v, frame),
        encoding.transform_values(v, frame),
        encoding.transform_output(v, frame),
    ):
        assert torch.equal(made[:, :, 1::2], v[:, :, 1::2])
        assert (made[:, :, ::2] - v[:, :, ::2]).abs().amax(-1).min() > 1e-3
    close(encoding.transform_output(encoding.transform_values(v, frame), frame), v, 1e-12)


@pytest.mark.parametrize("name", GROUP)
def test_without_poses_gta_is_rotary_and_camera_blocks_of_prope_are_still(name):
    coords = dataclasses.replace(posed(), poses=None)
    encoding, v = block(name, width=16).double().encoding, torch.randn(2, HEADS, 7, 16, dtype=torch.float64)
    still = 8 if name == "prope" else 0
    made = encoding.transform_values(v, encoding.frame(coords, v.dtype))
    assert torch.equal(made[..., :still], v[..., :still])
    rope = RoPE(dim=1, num_heads=HEADS, head_dim=16 - still, coord_dim=2)
    close(made[..., still:], rope.fold(v, v[..., still:], v, rope.frame(coords, v.dtype))[0], 0)


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("name", GROUP)
def test_padding_packing_and_sharing(name, backend):
    attention, coords = block(name), posed().to(dtype=torch.float32)
    x, mask = features(attention, coords, dtype=torch.float32), torch.arange(7) < torch.tensor([[4], [7]])
    bad = {
        "values": coords.values.masked_fill(~mask.unsqueeze(-1), float("nan")),
        "poses": coords.poses.masked_fill(~mask[..., None, None], float("nan")),
    }
    bad_x = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    with kernels.use(backend):
        out = attention(bad_x, Coordinates(**bad), mask)
        out.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in attention.parameters())
        first = dataclasses.replace(coords, values=coords.values[:1, :4], poses=coords.poses[:1, :4])
        second = dataclasses.replace(coords, values=coords.values[1:], poses=coords.poses[1:])
        alone = [attention(x[:1, :4], first), attention(x[1:], second)]
        close(out[:1, :4], alone[0], 1e-5)
        close(out[1:], alone[1], 1e-5)
        assert not out[0, 4:].any()
        packed = Coordinates(
            torch.cat([first.values[0], second.values[0]]),
            poses=torch.cat([first.poses[0], second.poses[0]]),
            cu_seqlens=torch.tensor([0, 4, 4, 11]),
        )
        close(attention(torch.cat([x[0, :4], x[1]]), packed), torch.cat([one[0] for one in alone]), 1e-5)
        shared = attention(x, dataclasses.replace(coords, poses=coords.poses[1:]))
        close(shared[1], alone[1][0], 1e-5)
        grid = attention(x, dataclasses.replace(coords, values=coords.values[1:]))
        close(grid[1], alone[1][0], 1e-5)


@pytest.mark.parametrize("name", GROUP)
def test_causal_tokens_do_not_see_later_poses(name):
    attention = block(name, causal=True).double()
    coords = posed(batch=1).with_prefix(1)
    x = features(attention, coords)
    poses = coords.poses.clone()
    poses[:, 5:] = rigid_poses(3, spread=20.0, seed=4)
    close(attention(x, dataclasses.replace(coords, poses=poses))[:, :5], attention(x, coords)[:, :5])
    close(attention(x, coords), attend(attention, name, x, coords)[0])


def views(offset=0.0, spread=1.0):
    """Six views of 6 x 6 patches, as a multi-view network has them."""
    cameras = rigid_poses(6, spread)
    cameras[:, :3, 3] += offset
    return Coordinates(coordinates.grid(6, 6).values.repeat(1, 6, 1), poses=cameras.repeat_interleave(36, 0)[None])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", GROUP)
def test_narrow_dtypes_stay_within_the_stated_bound(name, dtype, bound, offset, autocast):
    """Relative norm of the error of the output; no worse far from the world origin."""
    torch.manual_seed(1)
    coords = views(offset, spread=2.0)
    attention, x = CoordinateAttention(128, 2, 2, name), torch.randn(2, 216, 128)
    if not autocast:
        attention, x = attention.to(dtype), x.to(dtype)
    with torch.no_grad():
        with torch.autocast("cpu", dtype, enabled=autocast and dtype != torch.float32):
            out = attention(x, coords)
        exact = attention.double()(x.double(), coords.to(dtype=torch.float64))
    assert (out.double() - exact).norm() < bound * exact.norm()


@pytest.mark.parametrize("name", GROUP)
def test_blocks_with_poses_compile_whole(name):
    torch.manual_seed(0)
    layer = Block(32, HEADS, 2, mlp_dim=32, encoding=name)
    coords, x = posed(shared=True).to(dtype=torch.float32).with_prefix(1), torch.randn(2, 8, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    close(compiled(x, coords), layer(x, coords), 1e-5)


@pytest.mark.parametrize("name", GROUP)
def test_gradients_reach_features_and_poses(name):
    attention, coords = block(name, width=10).double(), posed(tokens=3, batch=1, kind="affine").with_prefix(1)
    x = features(attention, coords, batch=1).requires_grad_()
    poses = coords.poses.clone().requires_grad_()

    def run(x, poses):
        return attention(x, dataclasses.replace(coords, poses=poses))

    assert torch.autograd.gradcheck(run, (x, poses), fast_mode=True)


@pytest.mark.parametrize("name", GROUP)
def test_an_encoder_shares_the_frame_and_checkpoints(name):
    coords, outs = posed().to(dtype=torch.float32), []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(32, 2, HEADS, 2, mlp_dim=32, encoding=name)
        encoder.grad_checkpointing = checkpoint
        x = features(encoder.blocks[0].attn, coords, dtype=torch.float32)
        out = encoder(x, coords)
        out.square().sum().backward()
        outs.append([out, *(p.grad for p in encoder.parameters())])
    for a, b in zip(*outs, strict=True):
        close(a, b, 1e-6)
    x = encoder.norm_pre(x)
    for layer in encoder.blocks:
        x = layer(x, coords)  # Each with a frame of its own.
    close(outs[1][0], encoder.norm(x), 1e-6)
    assert encoder.blocks[0].attn.position_bias(x, coords) is None


@pytest.mark.parametrize("name", GROUP)
def test_extensions_act_on_coordinates_and_their_temperature_on_logits_alone(name):
    attention, coords = block(name, width=24).double(), posed()
    encoding, q = attention.encoding, torch.randn(2, 2, HEADS, 7, 24, dtype=torch.float64)
    encoding.extend(YaRN(2.0, extent=14.0))
    frame = encoding.frame(coords, q.dtype)
    close(encoding.transform_output(encoding.transform_values(q[0], frame), frame), q[0], 1e-12)
    folded = encoding.fold(q[0], q[0], q[1], frame)
    plain = dataclasses.replace(frame, gain=1.0)
    for made, without in zip(folded, encoding.fold(q[0], q[0], q[1], plain), strict=True):
        close(made, without * YaRN(2.0, extent=14.0).gain(2), 1e-12)
    encoding.extend(None)
    assert not torch.allclose(encoding.frame(coords, q.dtype).rotation.cos, frame.rotation.cos)


class Doubled(AttentionEncoding):
    """Doubles v and halves the output."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def frame(self, coords, dtype):
        return Frame(self.kind)

    def transform_values(self, v, frame):
        return 2 * v

    def transform_output(self, out, frame):
        assert frame.kind == "group"
        return out / 2 + 1


def test_the_block_asks_for_the_kind_of_the_frame():
    attention, coords = block("none").double(), posed()
    x = features(attention, coords)
    plain = attention(x, coords)
    attention.encoding = Doubled("group")
    shift = attention.proj(torch.ones(attention.dim, dtype=torch.float64)) - attention.proj.bias
    close(attention(x, coords), plain + shift, 1e-12)
    attention.encoding = Doubled("fold")  # A fold leaves values and output alone.
    close(attention(x, coords), plain, 1e-12)


def test_what_cannot_work_is_explained():
    coords = posed()
    for name in GROUP:
        with pytest.raises(ConfigError, match=f"{name} takes poses in blocks of 4 channels.*wider heads"):
            block(name, width=7)(torch.zeros(2, 7, 14), coords)
        with pytest.raises(ConfigError, match="head width of 4"):
            block(name, width=3)
    for options in ({"pose_share": 1.5}, {"pose_share": "half"}, {"length": 0}, {"length": float("nan")}, {"base": 1}):
        with pytest.raises(ConfigError, match=f"'{next(iter(options))}'"):
            block("gta", **options)
    with pytest.raises(DataError, match="poses are for a batch of 3"):
        block("gta")(torch.zeros(2, 7, 30), Coordinates(torch.zeros(1, 7, 2), poses=torch.eye(4).repeat(3, 7, 1, 1)))
    assert not list(GTA(dim=8, num_heads=1, head_dim=8, coord_dim=2).state_dict())
