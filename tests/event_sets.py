"""Writes tiny event data sets in the layouts in which the real ones are published."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.event_files import aedat3, dat, draw, nmnist

GEN1_BOXES = np.dtype(
    [
        ("ts", "<u8"),
        ("x", "<f4"),
        ("y", "<f4"),
        ("w", "<f4"),
        ("h", "<f4"),
        ("class_id", "u1"),
        ("confidence", "<f4"),
        ("track_id", "<u4"),
    ]
)
MPX1_BOXES = np.dtype(
    [
        ("t", "<i8"),
        ("x", "<f4"),
        ("y", "<f4"),
        ("w", "<f4"),
        ("h", "<f4"),
        ("class_id", "<u4"),
        ("track_id", "<u4"),
        ("class_confidence", "<f4"),
    ]
)


def digit_events(digit: int, seed: int, count: int = 400) -> np.ndarray:
    """Events in a block of pixels whose place is that of the digit, so that the classes can be told apart."""
    rng = np.random.default_rng([digit, seed])
    t = np.sort(rng.integers(0, 300_000, count))
    x = 2 + 6 * (digit % 5) + rng.integers(0, 6, count)
    y = 4 + 14 * (digit // 5) + rng.integers(0, 10, count)
    return np.stack([t, x, y, rng.integers(0, 2, count)], 1)


def write_nmnist(folder: Path, train: int = 4, test: int = 2) -> Path:
    """`train` and `test` recordings of each digit."""
    for side, count, offset in (("Train", train, 0), ("Test", test, 1000)):
        for digit in range(10):
            (folder / side / str(digit)).mkdir(parents=True)
            for index in range(count):
                events = digit_events(digit, offset + index)
                (folder / side / str(digit) / f"{index + 1:05d}.bin").write_bytes(nmnist(events))
    return folder


def write_archive(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for side in ("Train", "Test"):
            archive.add(folder / side, side)
    return path


def write_gestures(folder: Path, users: Sequence[int] = (1, 2, 21, 24), test_users: Sequence[int] = (24,)) -> Path:
    """Every subject has one recording of 3 s with a gesture of each of three classes, from 1 on in the table."""
    folder.mkdir(parents=True, exist_ok=True)
    for user in users:
        events = draw(3_000, width=128, height=128, start=1_000_000, seed=user)
        events[:, 0] = 1_000_000 + np.sort(np.random.default_rng(user).integers(0, 3_000_000, 3_000))
        (folder / f"user{user:02d}_led.aedat").write_bytes(aedat3(events))
        rows = [f"{1 + (user + k) % 11},{1_000_000 + 900_000 * k},{1_800_000 + 900_000 * k}" for k in range(3)]
        table = "class,startTime_usec,endTime_usec\n" + "\n".join(rows) + "\n"
        (folder / f"user{user:02d}_led_labels.csv").write_text(table)
    names = {user: f"user{user:02d}_led.aedat\n" for user in users}
    (folder / "trials_to_test.txt").write_text("".join(names[u] for u in users if u in test_users))
    (folder / "trials_to_train.txt").write_text("".join(names[u] for u in users if u not in test_users))
    return folder


def boxes(rows: Sequence[tuple[int, float, float, float, float, int]], dtype: np.dtype = GEN1_BOXES) -> np.ndarray:
    """A table of boxes from (t, x, y, w, h, class)."""
    table = np.zeros(len(rows), dtype)
    for name, column in zip(("ts" if "ts" in dtype.names else "t", *"xywh", "class_id"), zip(*rows, strict=True)):  # noqa: B905
        table[name] = column
    return table


def write_recording(
    folder: Path,
    name: str,
    table: np.ndarray,
    *,
    size: tuple[int, int] = (304, 240),
    events: np.ndarray | None = None,
) -> None:
    """One recording of 2 s and its boxes; `size` is (width, height)."""
    folder.mkdir(parents=True, exist_ok=True)
    width, height = size
    if events is None:
        events = draw(4_000, width=width, height=height, seed=len(name))
        events[:, 0] = np.sort(np.random.default_rng(1).integers(0, 2_000_000, 4_000))
    header = f"% Date 2017-03-30 12:53:58\n% Version 2\n% Height {height}\n% Width {width}\n"
    (folder / f"{name}_td.dat").write_bytes(dat(events, header))
    np.save(folder / f"{name}_bbox.npy", table)


def write_scenes(folder: Path, *, size: tuple[int, int] = (304, 240), dtype: np.dtype = GEN1_BOXES) -> Path:
    """Three splits of two recordings, each with boxes at three times that count and one that is too early."""
    for split in ("train", "val", "test"):
        for number in range(2):
            rows = [(400_000, 10.0, 10.0, 60.0, 60.0, 0)]
            for k, time in enumerate((800_000, 1_200_000, 1_600_000)):
                rows += [(time, 20.0 + 30 * k, 30.0, 60.0, 70.0, k % 2), (time, 150.0, 90.0 + k, 80.0, 90.0, 1)]
            name = f"17-03-30_{split}_{number}_0_60000000"
            write_recording(folder / split, name, boxes(rows, dtype), size=size)
    return folder
