"""Makes a semi-synthetic detection set: real recordings of digits (N-MNIST), placed and moved on a large empty sensor.

Nothing but the events of the digits is recorded: their places, sizes and paths, the boxes and the noise are drawn. A
recording lasts 300 ms, has one to five digits on smooth paths, and boxes at its end. It is written in the layout of
GEN1, 304 x 240 pixels. Training and validation use recordings of N-MNIST's training side, no recording in both; testing
uses those of its test side.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from modalities.events.datasets.nmnist import NMNIST
from modalities.events.datasets.prophesee import CANVAS_FILE, KINDS
from modalities.events.events import Events
from modalities.events.formats.prophesee import DAT_RECORD
from zoo.errors import ConfigError, DataError
from zoo.files import new_folder
from zoo.progress import progress_bar

__all__ = ["BOX_DTYPE", "CanvasOptions", "compose", "extent", "make_canvas", "write_dat"]

KIND = "nmnist-canvas"
WIDTH, HEIGHT = KINDS[KIND].width, KINDS[KIND].height
DURATION_US = 300_000
BOX_DTYPE = np.dtype(
    [
        ("t", "<i8"),
        *((name, "<f4") for name in "xywh"),
        ("class_id", "<u4"),
        ("track_id", "<u4"),
        ("class_confidence", "<f4"),
    ]
)
"""The fields of the box files of 1Mpx; those of GEN1 have another order."""

_TRIES = 30  # places tried for a digit before it is left out
_CHECKED = np.linspace(0, 1, 5)  # points of the paths at which digits must be apart


@dataclass(frozen=True)
class CanvasOptions:
    """What is drawn; a set is a function of these and of the recordings.

    Attributes:
        train: Recordings of the split.
        val: Likewise, of training digits that are held out for it.
        test: Likewise.
        val_share: Share of the training digits held out for `val`.
        digits: Least and most digits of a recording.
        scale: Least and largest factor by which a digit is enlarged.
        travel: Longest way of a digit in pixels.
        overlap: Largest share of the smaller of two boxes that the other may cover.
        noise: Noise events, as a number for each pixel and second.
        seed: Of all draws.
    """

    train: int = 1500
    val: int = 150
    test: int = 300
    val_share: float = 0.1
    digits: tuple[int, int] = (1, 5)
    scale: tuple[float, float] = (1.0, 2.5)
    travel: float = 60.0
    overlap: float = 0.1
    noise: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "train": self.train >= 1,
            "val": self.val >= 1,
            "test": self.test >= 1,
            "val_share": 0 < self.val_share < 1,
            "digits": 1 <= self.digits[0] <= self.digits[1] <= 20,
            "scale": 0.5 <= self.scale[0] <= self.scale[1] <= 6,
            "travel": 0 <= self.travel <= 300,
            "overlap": 0 <= self.overlap <= 1,
            "noise": 0 <= self.noise <= 100,
            "seed": self.seed >= 0,
        }
        if bad := [name for name, good in checks.items() if not good]:
            raise ConfigError(f"canvas: {bad[0]} cannot be {getattr(self, bad[0])!r}")


@dataclass(frozen=True)
class _Digit:
    """A digit on its way: its extent, and control points of its path (a parabola), all of its centre in pixels."""

    label: int
    events: Events
    box: np.ndarray
    scale: float
    path: np.ndarray

    def at(self, s: np.ndarray) -> np.ndarray:
        """(n, 2) centre at shares of the time from 0 to 1."""
        s = np.asarray(s, np.float64)[:, None]
        return (1 - s) ** 2 * self.path[0] + 2 * s * (1 - s) * self.path[1] + s**2 * self.path[2]

    def boxes(self, s: np.ndarray) -> np.ndarray:
        """float64 (n, 4): x1, y1, x2, y2 at shares of the time."""
        half = (self.box[2:] - self.box[:2]) / 2 * self.scale
        return np.concatenate([self.at(s) - half, self.at(s) + half], 1)


def make_canvas(source: Path, out: Path, options: CanvasOptions | None = None, *, quiet: bool = True) -> dict[str, str]:
    """Makes the set in a new folder; it appears whole or not at all.

    Args:
        source: N-MNIST's folder or archive.
        out: Where to; must not exist, or be an empty folder.
        options: What is drawn.
        quiet: Show no progress bar.

    Returns:
        SHA-256 of the contents of each split, equal for equal recordings, options and versions of NumPy's generator.

    Raises:
        ConfigError: If the folder holds something.
        DataError: If the recordings cannot be used, or the folder cannot be written.
    """
    options = options or CanvasOptions()
    sides = {side: NMNIST(source, side) for side in ("train", "test")}
    order = np.random.default_rng([options.seed, 0]).permutation(len(sides["train"]))
    held = max(1, round(options.val_share * len(order)))
    if held >= len(order):
        raise DataError(f"{source}: {len(order)} training recordings cannot be divided into train and val")
    pools = {"train": order[held:], "val": order[:held], "test": np.arange(len(sides["test"]))}
    digests = {}
    with new_folder(out) as temporary:
        with progress_bar("making recordings", options.train + options.val + options.test, quiet) as update:
            done = 0
            for number, (split, pool) in enumerate(pools.items(), 1):
                side = sides["test" if split == "test" else "train"]
                digits = {int(i): (int(side.labels[i]), side.read(int(i))) for i in np.sort(pool)}
                (temporary / split).mkdir()
                digest = hashlib.sha256()
                for index in range(getattr(options, split)):
                    rng = np.random.default_rng([options.seed, number, index])
                    count = int(rng.integers(options.digits[0], options.digits[1] + 1))
                    chosen = rng.choice(pool, min(count, len(pool)), replace=False).tolist()
                    events, boxes = compose([digits[i] for i in chosen], options, rng)
                    for data, suffix in ((write_dat(events), "td.dat"), (_npy(boxes), "bbox.npy")):
                        (temporary / split / f"canvas_{index:05d}_{suffix}").write_bytes(data)
                        digest.update(data)
                    done += 1
                    update(done, split)
                digests[split] = digest.hexdigest()
        facts = {"dataset": KIND, "semi_synthetic": True, "source": sides["train"].name, "options": asdict(options)}
        text = json.dumps({**facts, "sha256": digests}, indent=2) + "\n"
        (temporary / CANVAS_FILE).write_text(text, encoding="utf-8")
    return digests


def extent(events: Events) -> np.ndarray:
    """The box of a recorded digit: float64 x1, y1, x2, y2, without the outermost hundredths, which are noise.

    Raises:
        DataError: If there are no events.
    """
    if not len(events):
        raise DataError(f"{events.name}: holds no events, so there is no digit to place")
    x1, x2 = np.quantile(events.x, (0.01, 0.99), method="nearest")
    y1, y2 = np.quantile(events.y, (0.01, 0.99), method="nearest")
    return np.array([x1, y1, x2 + 1, y2 + 1], np.float64)


def compose(
    digits: list[tuple[int, Events]], options: CanvasOptions, rng: np.random.Generator
) -> tuple[Events, np.ndarray]:
    """One recording from digits (label and events); those that find no place are left out, but never the first.

    Returns:
        Events in order of time, and boxes of `BOX_DTYPE` at the end of the recording.
    """
    placed: list[_Digit] = []
    for label, events in digits:
        digit = _place(label, events, placed, options, rng)
        if digit is not None:
            placed.append(digit)
    parts = [_drawn(digit, rng) for digit in placed]
    parts.append(_noise(options, rng))
    t, x, y, p = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(t, kind="stable")
    boxes = np.zeros(len(placed), BOX_DTYPE)
    for row, digit in zip(boxes, placed, strict=True):
        x1, y1, x2, y2 = digit.boxes(np.ones(1))[0].tolist()
        row["t"], row["class_id"], row["class_confidence"] = DURATION_US, digit.label, 1
        row["x"], row["y"], row["w"], row["h"] = x1, y1, x2 - x1, y2 - y1
    boxes["track_id"] = np.arange(len(boxes))
    return Events(t[order], x[order], y[order], p[order], width=WIDTH, height=HEIGHT, name="canvas"), boxes


def _place(
    label: int, events: Events, others: list[_Digit], options: CanvasOptions, rng: np.random.Generator
) -> _Digit | None:
    box = extent(events)
    for _ in range(_TRIES):
        scale = rng.uniform(*options.scale)
        half = (box[2:] - box[:2]) / 2 * scale
        low, high = half, np.maximum(half, np.array([WIDTH, HEIGHT]) - half)
        end = rng.uniform(low, high)
        # Every control point is on the sensor, and so is then the whole path.
        way, bend = rng.uniform(-0.5, 0.5, (2, 2)) * options.travel * np.sqrt(2)
        start = (end - way).clip(low, high)
        path = np.stack([start, ((start + end + bend) / 2).clip(low, high), end])
        digit = _Digit(label, events, box, scale, path)
        boxes = digit.boxes(_CHECKED)
        if all(_covered(boxes, other.boxes(_CHECKED)) <= options.overlap for other in others):
            return digit
    return None


def _covered(a: np.ndarray, b: np.ndarray) -> float:
    """Largest share of the smaller of two boxes that the other covers."""
    sides = (np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])).clip(0)
    smaller = np.minimum(np.prod(a[:, 2:] - a[:, :2], 1), np.prod(b[:, 2:] - b[:, :2], 1))
    return float((np.prod(sides, 1) / smaller).max())


def _drawn(digit: _Digit, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Events of a digit on the sensor: enlarged, an event becomes about as many as edges become longer."""
    events = digit.events
    t = events.t_us - events.t_us[0]
    copies = np.floor(digit.scale + rng.random(len(t))).astype(np.int64)
    index = np.repeat(np.arange(len(t)), copies)
    index = index[t[index] < DURATION_US]
    t = t[index]
    centre = (digit.box[:2] + digit.box[2:]) / 2
    # Anywhere in the enlarged pixel.
    place = np.stack([events.x[index], events.y[index]], 1) + rng.random((len(index), 2))
    place = np.floor((place - centre) * digit.scale + digit.at(t / DURATION_US)).astype(np.int32)
    inside = (place >= 0).all(1) & (place < (WIDTH, HEIGHT)).all(1)
    return t[inside], place[inside, 0], place[inside, 1], events.p[index][inside]


def _noise(options: CanvasOptions, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    count = int(rng.poisson(options.noise * WIDTH * HEIGHT * DURATION_US / 1e6))
    x, y = rng.integers(0, WIDTH, count, np.int32), rng.integers(0, HEIGHT, count, np.int32)
    return rng.integers(0, DURATION_US, count), x, y, rng.random(count) < 0.5


def write_dat(events: Events) -> bytes:
    """A DAT file (version 2) of events with a known sensor, times from 0 to below 2^32 us."""
    raw = np.empty(len(events), DAT_RECORD)
    raw["t"] = events.t_us
    raw["data"] = events.x.astype(np.uint32) | events.y.astype(np.uint32) << 14 | events.p.astype(np.uint32) << 28
    header = f"% Data file containing CD events.\n% Version 2\n% Height {events.height}\n% Width {events.width}\n"
    return header.encode() + bytes((12, DAT_RECORD.itemsize)) + raw.tobytes()


def _npy(boxes: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, boxes)
    return file.getvalue()
