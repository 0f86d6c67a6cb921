"""Position ids of mixed content: hand-made tables, what each scheme promises, and batches against single sequences."""

import doctest
import importlib
import math
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import DataError, position_ids
from zoo.attention import CoordinateAttention
from zoo.position_ids import (
    V2PE,
    Crop,
    FrameIndex,
    FramewiseMRoPE,
    Image,
    Margin,
    MRoPE,
    Padding,
    RandomV2PE,
    ResetMRoPE,
    Seconds,
    SpanV2PE,
    Text,
    TransformersMRoPE,
    Video,
    VideoRoPE,
    timestamped,
)

SCHEMES = {
    "mrope": MRoPE(),
    "mrope-seconds": MRoPE(Seconds(2)),
    "mrope-stride": MRoPE(FrameIndex(3)),
    "reset": ResetMRoPE(),
    "reset-seconds": ResetMRoPE(Seconds(4)),
    "transformers": TransformersMRoPE(2),
    "videorope": VideoRoPE(),
    "videorope-seconds": VideoRoPE(Seconds(1)),
    "v2pe": V2PE(16),
    "span": SpanV2PE(3),
}
quick = settings(max_examples=20, deadline=None, derandomize=True)
sizes = st.integers(1, 5)
texts = st.builds(Text, st.integers(0, 4))
videos = st.builds(Video, sizes, sizes, sizes, seconds_per_frame=st.sampled_from([0.25, 0.5, 1.5, 2.0]))
pictures = st.one_of(st.builds(Image, sizes, sizes), videos)
sequences = st.lists(st.one_of(texts, pictures, st.builds(Padding, st.integers(0, 2))), max_size=6)


def table(coords):
    """Ids of one sequence as whole numbers, which they must be."""
    values = coords.values[0]
    assert torch.equal(values, values.round())
    return values.int().tolist()


@pytest.mark.parametrize(
    "module", ["zoo.position_ids", *(f"zoo.position_ids.{m.name}" for m in pkgutil.iter_modules(position_ids.__path__))]
)
def test_worked_examples(module):
    names = {name: getattr(position_ids, name) for name in position_ids.__all__} | {"torch": torch}
    result = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert not result.failed


def test_every_builder_has_a_worked_example():
    plain = {"Clock", "Crop", "Image", "Margin", "Padding", "Placement", "Scheme", "Segment", "Text", "Video", "Vision"}
    builders = set(position_ids.__all__) - plain
    assert builders and all(">>>" in getattr(position_ids, name).__doc__ for name in builders)


def test_mrope_of_the_paper_figure():
    """An image between texts and a video after them: every id written out by hand."""
    ids = MRoPE()([Text(1), Image(2, 2), Text(2), Video(2, 1, 2), Text(1)])
    assert table(ids) == [
        [0, 0, 0],
        *([1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]),
        *([3, 3, 3], [4, 4, 4]),
        *([5, 5, 5], [5, 5, 6], [6, 5, 5], [6, 5, 6]),
        [7, 7, 7],
    ]


def test_qwen25_spaces_frames_by_time():
    """The example of its documentation: 25 tokens a second, two frames a patch, one frame a second."""
    ids = MRoPE(Seconds(25))([Video(3, 2, 2, seconds_per_frame=2.0), Text(2)])
    assert [row[0] for row in table(ids)] == [0] * 4 + [50] * 4 + [100] * 4 + [101, 102]
    assert [row[1:] for row in table(ids)][:12] == [[0, 0], [0, 1], [1, 0], [1, 1]] * 3


def test_time_counts_at_any_frame_rate():
    slow, fast = (Video(frames, 1, 1, seconds_per_frame=step) for frames, step in ((3, 2.0), (9, 0.5)))
    for scheme in (MRoPE(Seconds(4)), ResetMRoPE(Seconds(4)), VideoRoPE(Seconds(4))):
        assert torch.equal(scheme([slow]).values[0, :, 0], scheme([fast]).values[0, ::4, 0])
    by_hand = Video(3, 1, 1, times=[1.7e9 + second for second in (0, 2, 4)])
    assert torch.equal(MRoPE(Seconds(4))([by_hand]).values, MRoPE(Seconds(4))([slow]).values)
    with pytest.raises(DataError, match="counts time in seconds"):
        MRoPE(Seconds())([Video(2, 1, 1)])
    assert table(MRoPE(Seconds())([Video(1, 1, 1), Image(1, 1)])) == [[0, 0, 0], [1, 1, 1]]


def test_transformers_differs_from_the_paper_where_it_says():
    video = [Text(1), Video(3, 1, 2, seconds_per_frame=2.9), Text(2)]
    paper, theirs = MRoPE(Seconds(2)).place(video), TransformersMRoPE(2).place(video)
    assert paper.values[:, 0].tolist() == pytest.approx([0, 1, 1, 6.8, 6.8, 12.6, 12.6, 13.6, 14.6])
    assert theirs.values[:, 0].tolist() == [0, 1, 1, 5, 5, 9, 9, 3, 4]  # Interval 2 x 2; text resumes at 1 + max(1, 2).
    assert paper.next_position == pytest.approx(15.6) and theirs.next_position == 10
    plain = [Text(2), Image(3, 2), Text(1)]  # No difference without video.
    assert torch.equal(MRoPE(Seconds(2)).place(plain).values, TransformersMRoPE(2).place(plain).values)
    assert TransformersMRoPE(2).place([]).next_position == 0
    with pytest.raises(DataError, match="not times"):
        TransformersMRoPE(2)([Video(2, 1, 1, times=[0, 1])])


def test_qwen3_writes_the_time_as_text():
    segments = timestamped(Video(2, 2, 1), before=[3, 4], after=1)
    assert table(FramewiseMRoPE()(segments))[3:5] == [[3, 3, 3], [3, 4, 3]]
    assert table(FramewiseMRoPE()(segments))[5:] == [
        [5] * 3,
        [6] * 3,
        [7] * 3,
        [8] * 3,
        [9] * 3,
        [10] * 3,
        [10, 11, 10],
        [12] * 3,
    ]
    assert table(FramewiseMRoPE()(segments)) == table(MRoPE()(segments))
    with pytest.raises(DataError, match="timestamped"):
        FramewiseMRoPE()([Video(2, 1, 1)])
    with pytest.raises(DataError, match="or 2, one per frame, got 3"):
        timestamped(Video(2, 1, 1), before=[1, 2, 3])


def test_images_continue_or_reset():
    two = [Text(3), Image(2, 2), Text(1), Image(2, 2), Text(1)]
    further, reset = table(MRoPE()(two)), table(ResetMRoPE()(two))
    assert further[8:12] == [[6, 6, 6], [6, 6, 7], [6, 7, 6], [6, 7, 7]]
    assert [row[1:] for row in reset[3:7]] == [row[1:] for row in reset[8:12]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [row[0] for row in reset] == [row[0] for row in further]
    assert reset[7] == further[7] == [5, 5, 5] and reset[-1] == further[-1]


def test_videorope_is_centred_on_the_diagonal():
    ids = torch.tensor(table(VideoRoPE()([Text(5), Video(3, 5, 7), Text(1)]))).double()
    frames = ids[5:-1].view(3, 35, 3)
    assert frames[:, :, 0].unique(dim=1).flatten().tolist() == [5, 7, 9]
    assert torch.equal(frames.mean(1)[:, 1], frames.mean(1)[:, 0])  # Odd sides have their middle on the diagonal.
    assert torch.equal(frames.mean(1)[:, 2], frames.mean(1)[:, 0])
    assert ids[-1].tolist() == [10, 10, 10]
    even = table(VideoRoPE()([Image(2, 4)]))
    assert even == [[0, row, column] for row in (0, 1) for column in (-1, 0, 1, 2)]


def test_v2pe_steps():
    ids = V2PE(1).place([Text(2), Image(16, 16), Text(1)])
    assert ids.values[1, 0] == 1 and ids.values[2, 0] == 1 + 1 / 256
    assert ids.values[-2, 0] == 2 and ids.values[-1, 0] == 3  # A whole tile is worth the stride.
    wide = V2PE(128).place([Text(1), Image(3, 1), Text(1)])
    assert wide.values.flatten().tolist() == [0, 0.5, 1, 1.5, 3]  # ceil(1.5) + 1.
    plain = V2PE(256)([Text(2), Image(2, 3), Text(2)])
    assert plain.values.flatten().tolist() == list(range(10)) and plain.integral
    assert V2PE(1)([Text(60000), Image(2, 2)]).values.unique().numel() == 60004  # Float32 still tells them apart.


def test_v2pe_draws_strides():
    segments = [Text(1)] + [Image(1, 4)] * 180
    placed = RandomV2PE(torch.Generator().manual_seed(3)).place(segments)
    images = placed.values[1:, 0].view(180, 4)
    strides = ((images[:, 1] - images[:, 0]) * 256).long()
    counts = [int((strides == 2**power).sum()) for power in range(9)]
    assert sum(counts) == 180 and min(counts) > 8
    torch.testing.assert_close(images.diff(dim=1), (strides / 256).double().unsqueeze(1).expand(-1, 3))
    again = RandomV2PE(torch.Generator().manual_seed(3)).place(segments)
    assert torch.equal(again.values, placed.values)
    assert not torch.equal(RandomV2PE()(segments).values, RandomV2PE()(segments).values)


@pytest.mark.parametrize("name", SCHEMES)
def test_text_alone_is_plain(name):
    coords = SCHEMES[name]([Text(3), Text(0), Text(2)])
    assert coords.values.shape == (1, 5, SCHEMES[name].axes) and coords.values.dtype == torch.float32
    assert torch.equal(coords.values[0], torch.arange(5.0).unsqueeze(-1).expand(-1, SCHEMES[name].axes))
    assert coords.positioned is None and coords.integral and coords.bounds == ((0, 4),) * coords.axes
    assert SCHEMES[name].place([Text(5)]).delta == 0


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "transformers"])
@quick
@given(segments=st.lists(st.one_of(texts, pictures), max_size=6))
def test_no_two_tokens_share_their_ids_and_what_follows_lies_behind(name, segments):
    placed = SCHEMES[name].place(segments)
    assert len({tuple(row) for row in placed.values.tolist()}) == len(placed.values)
    axes = slice(0, 1) if name.startswith(("reset", "videorope")) else slice(None)  # Those two order by time alone.
    counts = [one.length if isinstance(one, Text) else math.prod(one.shape) for one in segments]
    largest = -math.inf
    for ids in placed.values.split(counts):
        if len(ids):
            assert ids[:, axes].min() > largest
            largest = float(ids[:, axes].max())
    assert placed.next_position > largest


def test_transformers_lets_videos_run_into_text():
    video = Video(3, 2, 1, seconds_per_frame=1.0)
    ids = torch.tensor(table(TransformersMRoPE(2)([video, Text(3)])))
    assert ids[6:, 0].tolist() == [2, 3, 4] and ids[:6, 0].unique().tolist() == [0, 2, 4]
    assert len(ids.unique(dim=0)) == 9  # Triples differ still,
    fast = torch.tensor(table(TransformersMRoPE(2)([Video(3, 2, 1, seconds_per_frame=0.9)])))
    assert len(fast.unique(dim=0)) == 2  # but not those of frames less than a second apart.


@pytest.mark.parametrize("name", SCHEMES)
@quick
@given(data=st.data())
def test_sequences_are_placed_from_left_to_right(name, data):
    """A start is where the part before ends, and decoding goes on where text would."""
    scheme, first, second = SCHEMES[name], data.draw(sequences), data.draw(sequences)
    whole, left = scheme.place([*first, *second]), scheme.place(first)
    if name != "transformers":  # Its first generated token is elsewhere than text behind a video.
        right = scheme.place(second, start=left.next_position)
        torch.testing.assert_close(
            whole.values, torch.cat([left.values, right.values * right.positioned.unsqueeze(-1)])
        )
        grown = scheme.place([*first, Text(3)])
        index = torch.arange(3).double() + int(left.positioned.sum())
        torch.testing.assert_close(grown.values[-3:, 0], index + left.delta)
    assert torch.equal(whole.positioned[: len(left.values)], left.positioned)


@pytest.mark.parametrize("name", SCHEMES)
@quick
@given(batch=st.lists(sequences, min_size=1, max_size=4), side=st.sampled_from(["left", "right"]))
def test_batches_and_packs_hold_the_single_sequences(name, batch, side):
    scheme = SCHEMES[name]
    padded, packed = scheme.batch(batch, padding_side=side), scheme.packed(batch)
    known = torch.ones(padded.values.shape[:2], dtype=torch.bool) if padded.positioned is None else padded.positioned
    flat = torch.ones(len(packed.values), dtype=torch.bool) if packed.positioned is None else packed.positioned
    ends = packed.cu_seqlens.tolist()
    assert len(ends) == len(batch) + 1 and ends[0] == 0 and ends[-1] == len(packed.values)
    assert packed.cu_seqlens.dtype == torch.int32
    longest = max(b - a for a, b in zip(ends, ends[1:], strict=False))
    assert padded.values.shape == (len(batch), longest, scheme.axes)
    for row, segments in enumerate(batch):
        alone = scheme.place(segments)
        here = slice(ends[row], ends[row + 1])
        assert torch.equal(packed.values[here].double(), alone.values.float().double())
        assert torch.equal(flat[here], alone.positioned)
        where = slice(0, len(alone.values)) if side == "right" else slice(longest - len(alone.values), longest)
        assert torch.equal(padded.values[row, where], packed.values[here])
        assert torch.equal(known[row, where], alone.positioned) and known[row].sum() == alone.positioned.sum()
    if known.any():
        real = padded.values[known]
        assert [tuple(bound) for bound in padded.bounds] == list(
            zip(real.amin(0).tolist(), real.amax(0).tolist(), strict=True)
        )


@pytest.mark.parametrize("name", SCHEMES)
def test_crops_keep_the_coordinates_of_the_whole(name):
    scheme = SCHEMES[name]
    crops = [Crop(1, 0, 2, 3), Crop(0, 2, 1, 2)]
    kinds = [lambda **kw: Image(4, 5, **kw), lambda **kw: Video(2, 4, 5, seconds_per_frame=1.0, **kw)]
    for make in kinds:
        whole = scheme.place([Text(2), make(), Text(1)])
        part = scheme.place([Text(2), make(crops=crops), Text(1)])
        frames = whole.values[2:-1].view(-1, 4, 5, scheme.axes)
        expected = [
            frames[f, c.top : c.top + c.rows, c.left : c.left + c.columns].reshape(-1, scheme.axes)
            for f in range(len(frames))
            for c in crops
        ]
        assert torch.equal(part.values[2:-1], torch.cat(expected))
        assert torch.equal(part.values[-1], whole.values[-1]) and part.next_position == whole.next_position


@pytest.mark.parametrize("name", SCHEMES)
def test_margins_and_padding_have_no_position_and_move_nothing(name):
    scheme = SCHEMES[name]
    margin = Margin(top=1, bottom=2, left=3, right=1)
    for plain, framed, frames in (
        (Image(2, 3), Image(2, 3, margin=margin), 1),
        (Video(2, 2, 3, seconds_per_frame=1.0), Video(2, 2, 3, seconds_per_frame=1.0, margin=margin), 2),
    ):
        bare = scheme.place([Text(1), plain, Text(1)])
        padded = scheme.place([Padding(1), Text(1), Padding(2), framed, Text(1), Padding(1)])
        assert torch.equal(padded.values[padded.positioned], bare.values)
        assert not padded.values[~padded.positioned].any()
        inside = padded.positioned[4:-2].view(frames, 5, 7)
        assert inside[:, 1:3, 3:6].all() and inside.sum() == frames * 6
        assert padded.next_position == bare.next_position and padded.delta == bare.delta


@pytest.mark.parametrize("name", SCHEMES)
def test_large_starts_subtract_exactly(name):
    scheme, far = SCHEMES[name], 10**17 + 3
    segments = [Text(2), Image(2, 3), Video(2, 1, 2, seconds_per_frame=0.75), Text(1)]
    near = scheme([*segments], start=7)
    moved = scheme([*segments], start=far + 7, origin=far)
    assert torch.equal(moved.values, near.values)
    base = scheme.place(segments).values
    if not name.startswith("reset"):
        assert torch.equal(near.values[0].double(), base + 7)
    with pytest.raises(DataError, match="not told apart in float32"):
        scheme(segments, start=10**9)
    wide = scheme(segments, start=10**9, dtype=torch.float64)
    assert wide.values.dtype == torch.float64
    if not name.startswith("reset"):
        assert torch.equal(wide.values[0] - 10**9, base)


def test_float32_is_refused_where_small_steps_merge():
    segments = [Text(70000), Image(1, 2)]
    with pytest.raises(DataError, match="steps of 0.00390625"):
        V2PE(1)(segments)
    assert V2PE(64)(segments).values.shape == (1, 70002, 1)
    assert V2PE(1)(segments, dtype=torch.float64).values[0, -1, 0] == 69999 + 2 / 256
    assert V2PE(1)([Image(1, 2)], dtype=torch.bfloat16).values.dtype == torch.float32


def test_coordinates_say_when_they_are_whole():
    assert MRoPE()([Text(200), Image(2, 2)]).integral
    assert not MRoPE()([Text(300)]).integral  # More than 255 steps.
    assert MRoPE().packed([[Text(200)], [Text(250)]]).integral
    assert not V2PE(64)([Text(1), Image(1, 1)]).integral
    assert V2PE(64)([Text(1), Image(1, 1)]).bounds == ((0, 0.25),)
    assert MRoPE()([Padding(2)]).bounds == ((0, 0),) * 3 and not MRoPE()([Padding(2)]).positioned.any()
    assert MRoPE()([]).values.shape == (1, 0, 3)


def test_attention_takes_the_ids():
    """Padded, packed and single sequences give the same features."""
    torch.manual_seed(0)
    attention = CoordinateAttention(24, 2, 3, "mrope", causal=True).double()
    batch = [[Text(2), Image(2, 2), Text(1)], [Text(3)]]
    scheme = MRoPE()
    padded, packed = (make(batch, dtype=torch.float64) for make in (scheme.batch, scheme.packed))
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    out = attention(x, padded, mask=padded.positioned)
    flat = attention(torch.cat([x[0], x[1, :3]]), packed)
    torch.testing.assert_close(flat, torch.cat([out[0], out[1, :3]]), atol=1e-12, rtol=0)
    alone = attention(x[1:, :3], scheme(batch[1], dtype=torch.float64))
    torch.testing.assert_close(alone[0], out[1, :3], atol=1e-12, rtol=0)
