from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.events.augment import (
    GESTURE_MIRROR,
    AreaDrop,
    Augmentation,
    Change,
    EventDrop,
    Flip,
    Rotate,
    Shear,
    Shift,
    TimeDrop,
    Zoom,
    draw,
)
from modalities.events.datasets.base import EventSample
from modalities.events.events import Events
from tests.event_files import draw as draw_events
from zoo.errors import DataError

SIZE = (48, 64)
EVERY: list[Augmentation] = [Flip(), Rotate(20), Shear(0.2), Zoom(0.2), Shift(6), AreaDrop(0.4), TimeDrop(0.3)]
EVERY.append(EventDrop(0.5))


def sample(count: int = 500, seed: int = 0, label: int = 3) -> EventSample:
    t, x, y, p = draw_events(count, width=64, height=48, seed=seed).T if count else np.zeros((4, 0), np.int64)
    events = Events(t, x.astype(np.int32), y.astype(np.int32), p.astype(bool), width=64, height=48)
    boxes = np.array([[10, 8, 30, 28], [40, 20, 60, 44]], np.float32)
    return EventSample(events, label, boxes, np.array([1, 0]), start_us=7, end_us=9)


def columns(of: EventSample) -> list[list[float]]:
    return [getattr(of.events, name).tolist() for name in ("t_us", "x", "y", "p")]


class Fixed:
    """A generator whose uniform numbers are the upper bound, for augmentations at their strongest."""

    def uniform(self, low: float, high: float, size: int | None = None) -> object:
        return high if size is None else np.full(size, high)


def test_flip_mirrors_events_boxes_and_classes() -> None:
    before = sample()
    after = draw([Flip(1.0, {3: 6, 6: 3, 0: 5})], np.random.default_rng(0), SIZE)(before)
    assert np.array_equal(after.events.x, 63 - before.events.x) and np.array_equal(after.events.y, before.events.y)
    assert after.boxes.tolist() == [[34, 8, 54, 28], [4, 20, 24, 44]]
    assert after.label == 6 and after.labels.tolist() == [1, 5]
    assert (after.start_us, after.end_us) == (7, 9)
    again = draw([Flip(1.0, {3: 6, 6: 3, 0: 5}), Flip(1.0, {3: 6, 6: 3, 5: 0})], np.random.default_rng(0), SIZE)(before)
    assert columns(again) == columns(before) and again.labels.tolist() == [1, 0] and again.label == 3
    never = draw([Flip(0.0, {3: 6})], np.random.default_rng(0), SIZE)(before)
    assert columns(never) == columns(before) and never.label == 3


def test_mirror_of_gestures_is_its_own_inverse() -> None:
    assert all(GESTURE_MIRROR[GESTURE_MIRROR[label]] == label for label in GESTURE_MIRROR)
    assert {k: v for k, v in GESTURE_MIRROR.items() if k < v} == {1: 2, 3: 6, 4: 5}


def test_shift_drops_what_leaves_and_brings_nothing_back() -> None:
    before = sample()
    after = Change(matrix=((1.0, 0.0, 20.0), (0.0, 1.0, -5.0)))(before)
    stays = (before.events.x < 44) & (before.events.y >= 5)
    assert np.array_equal(after.events.x, before.events.x[stays] + 20)
    assert np.array_equal(after.events.t_us, before.events.t_us[stays])
    # Of the second box 4 of 20 columns stay: less than a quarter.
    assert after.boxes.tolist() == [[30, 3, 50, 23]] and after.labels.tolist() == [1]


def test_a_quarter_turn_on_a_square_sensor() -> None:
    events = Events(
        np.arange(2), np.array([0, 3], np.int32), np.array([0, 1], np.int32), np.ones(2, bool), width=10, height=10
    )
    box = np.array([[0, 0, 4, 2]], np.float32)
    change = Change(matrix=((0.0, -1.0, 0.0), (1.0, 0.0, 0.0)))
    after = change(EventSample(events, boxes=box, labels=np.array([0])))
    assert after.events.x.tolist() == [9, 8] and after.events.y.tolist() == [0, 3]
    assert after.boxes.tolist() == [[8, 0, 10, 4]]


def test_moves_at_their_strongest() -> None:
    rng = Fixed()
    assert Shear(0.5)(rng, SIZE).matrix == ((1.0, 0.5, 0.0), (0.0, 1.0, 0.0))  # type: ignore[arg-type]
    assert Zoom(0.25)(rng, SIZE).matrix == ((1.25, 0.0, 0.0), (0.0, 1.25, 0.0))  # type: ignore[arg-type]
    turned = Rotate(90)(rng, SIZE).matrix  # type: ignore[arg-type]
    assert np.allclose(turned, ((0, -1, 0), (1, 0, 0)))


def test_joined_moves_are_those_one_after_the_other() -> None:
    steps = [Shift(5), Rotate(30), Shear(0.3), Zoom(0.2)]
    joined = np.vstack([draw(steps, np.random.default_rng(3), SIZE).matrix, (0, 0, 1)])
    rng = np.random.default_rng(3)
    product = np.eye(3)
    for step in steps:
        product = np.vstack([step(rng, SIZE).matrix, (0, 0, 1)]) @ product
    assert np.allclose(joined, product)


def test_area_drop_empties_a_rectangle_and_hides_boxes() -> None:
    before = sample(5_000)
    after = Change(areas=((10.0, 8.0, 30.0, 24.0),))(before)
    x, y = before.events.x, before.events.y
    inside = (x >= 10) & (x < 30) & (y >= 8) & (y < 24)
    assert inside.any() and np.array_equal(after.events.x, x[~inside])
    assert after.labels.tolist() == [0]  # A fifth of the first box is left.
    assert after.boxes.tolist() == before.boxes[1:].tolist()


def test_time_drop_leaves_the_rest() -> None:
    before = sample(2_000)
    after = Change(pauses=((0.25, 0.5),))(before)
    t = before.events.t_us
    share = (t - t[0]) / (t[-1] - t[0])
    assert 0.2 < 1 - len(after.events) / len(t) < 0.3
    assert np.array_equal(after.events.t_us, t[(share < 0.25) | (share >= 0.5)])
    assert len(after.boxes) == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_event_drop_drops_its_share(share: float) -> None:
    after = Change(drop=share, seed=5)(sample(20_000))
    assert abs(1 - len(after.events) / 20_000 - share) < 0.02
    other = Change(drop=share, seed=6)(sample(20_000))
    assert share in (0.0, 1.0) or columns(after) != columns(other)


def test_drops_of_several_steps_are_joined() -> None:
    rng = np.random.default_rng(0)
    steps = [EventDrop(0.5), TimeDrop(0.2), AreaDrop(0.2), EventDrop(0.8)]
    alone = [step(rng, SIZE) for step in steps]
    change = draw(steps, np.random.default_rng(0), SIZE)
    assert change.drop == pytest.approx(1 - (1 - alone[0].drop) * (1 - alone[3].drop))
    assert change.pauses == alone[1].pauses and change.areas == alone[2].areas


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 300))
def test_what_always_holds(seed: int, count: int) -> None:
    before = sample(count, seed % 1000)
    kept = columns(before)
    after = draw(EVERY, np.random.default_rng(seed), SIZE)(before)
    assert columns(before) == kept  # What was given is as it was.
    events = after.events
    assert (np.diff(events.t_us) >= 0).all() and np.isin(events.t_us, before.events.t_us).all()
    assert ((events.x >= 0) & (events.x < 64) & (events.y >= 0) & (events.y < 48)).all()
    assert events.x.dtype == np.int32 and events.t_us.dtype == np.int64 and events.p.dtype == bool
    assert after.boxes.dtype == np.float32 and len(after.boxes) == len(after.labels)
    assert (after.boxes >= 0).all() and (after.boxes <= (64, 48, 64, 48)).all()
    assert (after.boxes[:, 2:] > after.boxes[:, :2]).all()
    assert columns(draw(EVERY, np.random.default_rng(seed), SIZE)(before)) == columns(after)


def test_threads_do_not_change_the_result() -> None:
    samples = [sample(400, seed) for seed in range(24)]
    changes = [draw(EVERY, np.random.default_rng(seed), SIZE) for seed in range(24)]
    alone = [columns(change(one)) for change, one in zip(changes, samples, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: columns(pair[0](pair[1])), zip(changes, samples, strict=True)))
    assert alone == together


def test_boxes_contain_the_events_that_were_in_them() -> None:
    before = sample(3_000)
    x1, y1, x2, y2 = before.boxes[0]
    inside = (before.events.x >= x1) & (before.events.x < x2) & (before.events.y >= y1) & (before.events.y < y2)
    only = EventSample(before.events[inside], boxes=before.boxes[:1], labels=before.labels[:1])
    for seed in range(20):
        after = draw([Flip(), Rotate(20), Shear(0.2), Zoom(0.2), Shift(4)], np.random.default_rng(seed), SIZE)(only)
        for box in after.boxes:
            assert (after.events.x + 1 >= box[0]).all() and (after.events.x <= box[2]).all()
            assert (after.events.y + 1 >= box[1]).all() and (after.events.y <= box[3]).all()


def test_a_sensor_of_unknown_size() -> None:
    events = Events(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool))
    with pytest.raises(DataError, match="size of the sensor"):
        Change()(EventSample(events))
