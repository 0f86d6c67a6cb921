"""The spiking-patches tokenizer against a plain reference, whole and in pieces."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import pytest

import zoo
from modalities.events import Events, SpikingPatches, Tokens
from zoo.errors import ConfigError, DataError, MissingDependencyError

pytest.importorskip("numba")
FIELDS = ("x", "y", "t_us", "patches")


def reference(events: Events, tokenizer: SpikingPatches) -> list[tuple[int, int, int, np.ndarray]]:
    """One event after the other, one patch for each place, as the method is described."""
    side, tokens, held, last = tokenizer.patch_size, [], {}, {}
    for t, x, y, p in zip(*(getattr(events, f).tolist() for f in ("t_us", "x", "y", "p")), strict=True):
        patch = (x // side, y // side)
        if patch in last and t - last[patch] < tokenizer.refractory_us:
            continue
        held.setdefault(patch, []).append((t, x, y, p))
        if len(held[patch]) < tokenizer.threshold:
            continue
        volume = np.zeros((2, tokenizer.buckets, side, side), np.int64)
        for then, column, row, bright in held.pop(patch):
            age, bucket = t - then, 0
            while bucket < tokenizer.buckets - 1 and age >= 1000 * 2**bucket:
                bucket += 1
            volume[int(bright), bucket, row - patch[1] * side, column - patch[0] * side] += 1
        tokens.append((*patch, t, volume))
        last[patch] = t
    return tokens


def same(tokens: Tokens, expected: list[tuple[int, int, int, np.ndarray]]) -> None:
    assert len(tokens) == len(expected)
    assert list(zip(tokens.x.tolist(), tokens.y.tolist(), tokens.t_us.tolist(), strict=True)) == [
        e[:3] for e in expected
    ]
    for patches, (*_, volume) in zip(tokens.patches, expected, strict=True):
        assert np.array_equal(patches, volume)


def equal(a: Tokens, b: Tokens) -> bool:
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in FIELDS)


def draw(count: int = 4000, width: int = 37, height: int = 21, gap: int = 800, seed: int = 0) -> Events:
    rng = np.random.default_rng(seed)
    t = 10**15 + np.cumsum(rng.integers(0, gap, count))
    x, y = rng.integers(0, width, count), rng.integers(0, height, count)
    return Events(t, x.astype(np.int32), y.astype(np.int32), rng.integers(0, 2, count) > 0, width, height)


def events_of(rows: list[tuple[int, int, int, int]]) -> Events:
    t, x, y, p = np.array(rows, np.int64).reshape(-1, 4).T
    return Events(t.copy(), x.astype(np.int32), y.astype(np.int32), p > 0)


@pytest.mark.parametrize("threshold", [1, 3, 64])
@pytest.mark.parametrize("refractory_us", [0, 1, 5_000, 400_000])
@pytest.mark.parametrize(("patch_size", "buckets"), [(16, 10), (5, 1), (40, 12)])
def test_equals_the_reference(threshold, refractory_us, patch_size, buckets):
    events = draw(1500)
    tokenizer = SpikingPatches(37, 21, patch_size, threshold, refractory_us, buckets)
    tokens, expected = tokenizer(events), reference(events, tokenizer)
    assert expected
    same(tokens, expected)
    assert [getattr(tokens, f).dtype for f in FIELDS] == [np.int64, np.int64, np.int64, np.int16]
    assert tokens.patches.shape[1:] == (2, buckets, patch_size, patch_size)
    assert (tokens.patches.sum((1, 2, 3, 4)) == threshold).all()


@pytest.mark.parametrize("refractory_us", [0, 5_000])
@pytest.mark.parametrize("seed", range(5))
def test_pieces_give_what_the_whole_gives(refractory_us, seed):
    events, rng = draw(seed=seed), np.random.default_rng(seed)
    tokenizer = SpikingPatches(37, 21, 8, 20, refractory_us)
    whole, stream = tokenizer(events), tokenizer.stream()
    cuts = [0, *sorted(rng.integers(0, len(events), 30).tolist()), 1000, 1000, 1001, len(events)]
    for _ in range(2):
        parts = [stream.push(events[a:b]) for a, b in zip(sorted(cuts)[:-1], sorted(cuts)[1:], strict=True)]
        assert equal(Tokens.concatenate(parts), whole)
        stream.reset()
    one_by_one = [stream.push(events[i : i + 1]) for i in range(len(events))]
    assert equal(Tokens.concatenate(one_by_one), whole)


@pytest.mark.parametrize("room", [1, 5_000, 10**6])
def test_more_tokens_than_fit_at_once(monkeypatch, room):
    events, tokenizer = draw(), SpikingPatches(37, 21, 8, 20, 0)
    whole = tokenizer(events)
    monkeypatch.setattr("modalities.events.tokenizer._ROOM", room)
    assert equal(tokenizer(events), whole)


def test_ages_fall_into_their_buckets():
    ms = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 5000]
    ages = [age for edge in ms for age in (1000 * edge - 1, 1000 * edge) if age >= 0]
    events = events_of([(10**7 - age, 0, 0, 1) for age in sorted(ages, reverse=True)])
    tokens = SpikingPatches(1, 1, 1, len(ages))(events)
    # 0 and 999 us; then from each power of two to just below the next; 256 ms and more.
    assert tokens.patches[0, :, :, 0, 0].tolist() == [[0] * 10, [2, 2, 2, 2, 2, 2, 2, 2, 2, 5]]


def test_refractory_period_drops_events_and_ends_on_time():
    tokenizer = SpikingPatches(32, 16, 16, 2, 100)
    rows = [(0, 1, 1, 1), (10, 2, 1, 0), (11, 3, 1, 1), (50, 20, 1, 1), (109, 4, 1, 1), (110, 5, 1, 1), (111, 6, 1, 1)]
    tokens = tokenizer(events_of(rows))
    # The events at 11 and 109 are dropped, that at 110 counts; the other patch does not reach the threshold.
    assert tokens.t_us.tolist() == [10, 111] and tokens.x.tolist() == [0, 0]
    assert tokens.patches.sum((0, 1, 2, 3)).tolist() == [0, 1, 1, 0, 0, 1, 1, *[0] * 9]


@pytest.mark.parametrize("rows", [[], [(5, 1, 1, 1)], [(i, 1, 1, 1) for i in range(255)]])
def test_too_few_events_give_no_token(rows):
    tokens = SpikingPatches(128, 128)(events_of(rows))
    assert len(tokens) == 0 and tokens.patches.shape == (0, 2, 10, 16, 16)


def test_shift_of_time_shifts_tokens_alone():
    events, tokenizer = draw(), SpikingPatches(37, 21, 8, 20, 5_000)
    moved = Events(events.t_us + 2**61, events.x, events.y, events.p)
    a, b = tokenizer(events), tokenizer(moved)
    assert np.array_equal(b.t_us - 2**61, a.t_us) and np.array_equal(a.patches, b.patches)


def test_unit_is_an_explicit_argument():
    events, tokenizer = draw(), SpikingPatches(37, 21, 8, 20, 5_000)
    t = events.t_us - 10**15
    rest = (events.x.astype(np.uint16), events.y.astype(np.uint16), events.p.astype(np.uint8))
    whole = tokenizer.from_arrays(t, *rest, unit="us")
    assert len(whole) and equal(whole, tokenizer(Events(t, events.x, events.y, events.p)))
    assert equal(tokenizer.from_arrays(t * 1000, *rest, unit="ns"), whole)
    assert equal(tokenizer.from_arrays(t / 1e6, *rest, unit="s"), whole)
    assert len(tokenizer.from_arrays(t, *rest, unit="ms").t_us) != len(whole)
    with pytest.raises(TypeError, match="unit"):
        tokenizer.from_arrays(t, *rest)
    with pytest.raises(ConfigError, match="unit must be one of ns, us, ms, s"):
        tokenizer.from_arrays(t, *rest, unit="h")
    with pytest.raises(DataError, match=r"x must be an array \(N,\) of numbers, not float64"):
        tokenizer.from_arrays(t, events.x / 2, events.y, events.p, unit="us")
    with pytest.raises(DataError, match="outside the 37 x 21"):
        tokenizer.from_arrays(t, events.x.astype(np.int64) + 2**32, events.y, events.p, unit="us")


@pytest.mark.parametrize("bad", [(7, 37, 0, 1), (7, 0, 21, 1), (7, -1, 0, 1), (7, 0, -1, 1), (4, 0, 0, 1)])
def test_bad_events_are_refused_and_change_nothing(bad):
    tokenizer = SpikingPatches(37, 21, 16, 4, 0)
    stream, good = tokenizer.stream(), [(5, 1, 1, 1), (6, 1, 1, 0)]
    stream.push(events_of(good))
    message = (
        "event 2: time steps back from 6 to 4 us" if bad[0] == 4 else rf"event 3: \({bad[1]}, {bad[2]}\) is outside"
    )
    rows = [bad] if bad[0] == 4 else [(6, 1, 1, 1), bad]
    with pytest.raises(DataError, match=message):
        stream.push(events_of(rows))
    assert stream.push(events_of([(6, 2, 1, 1), (8, 1, 1, 1)])).t_us.tolist() == [8]
    with pytest.raises(DataError, match="event 1: time steps back from 9 to 8 us"):
        tokenizer(events_of([(9, 0, 0, 1), (8, 0, 0, 1)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 0}, "patch_size must be a whole number from 1"),
        ({"patch_size": 725}, "patch_size must be at most 724"),
        ({"threshold": 2.5}, "threshold must be a whole number from 1, not 2.5"),
        ({"threshold": 40_000}, "threshold must be at most 32767"),
        ({"refractory_us": -1}, "refractory_us must be a whole number from 0"),
        ({"refractory_us": 2**63}, "refractory_us must be at most"),
        ({"buckets": 41}, "buckets must be at most 40"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        SpikingPatches(**({"width": 8, "height": 8} | options))


def test_largest_count_and_latest_refractory_period_fit():
    events = events_of([(2**62 + i, 0, 0, 1) for i in range(2 * 32_767)])
    tokens = SpikingPatches(1, 1, 1, 32_767, 0, buckets=1)(events)
    assert tokens.patches.max(axis=(1, 2, 3, 4)).tolist() == [32_767] * 2
    # A period that reaches beyond the last time there is silences the patch and does not wrap.
    assert len(SpikingPatches(1, 1, 1, 1, 2**62 + 1)(events_of([(2**62 + i, 0, 0, 1) for i in range(9)]))) == 1


def test_how_long_a_stream_may_last():
    stream, longest = SpikingPatches(1, 1, 1, 2, 0).stream(), 2**43 - 1
    tokens = stream.push(events_of([(7, 0, 0, 1), (7 + longest, 0, 0, 1)]))
    assert tokens.t_us.tolist() == [7 + longest] and tokens.patches[0, 1, :, 0, 0].tolist() == [1, *[0] * 8, 1]
    with pytest.raises(DataError, match="102 days after the first event; a stream may last 102 days: reset it"):
        stream.push(events_of([(8 + longest, 0, 0, 1)]))
    stream.reset()
    assert len(stream.push(events_of([(8 + longest, 0, 0, 1), (9 + longest, 0, 0, 1)]))) == 1


def test_largest_patch():
    events = events_of([(1, 0, 0, 0), (2, 723, 723, 1)])
    patches = SpikingPatches(724, 724, 724, 2, 0, 2)(events).patches
    assert np.argwhere(patches).tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 723, 723]]


def test_missing_numba_says_what_to_install(monkeypatch):
    from modalities.events.tokenizer import _kernel

    monkeypatch.setitem(sys.modules, "numba", None)
    _kernel.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"numba .*pip install 'pape-zoo\[events\]'"):
        SpikingPatches(8, 8)(events_of([]))


def test_real_recording(shared, tmp_path):
    archive = shared / "data" / "event_formats" / "event_formats.zip"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    with zipfile.ZipFile(archive) as file:
        file.extract("evt2_gen3_50ms.raw", tmp_path)
    events = zoo.read(tmp_path / "evt2_gen3_50ms.raw")[:100_000]
    for refractory_us in (0, 5_000):
        tokenizer = SpikingPatches(events.width, events.height, refractory_us=refractory_us)
        expected = reference(events, tokenizer)
        assert len(expected) > 20
        same(tokenizer(events), expected)
