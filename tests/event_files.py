"""Writes event files of every format, one event after the other and without the code under test."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np

WIDTH, HEIGHT = 640, 480


def draw(
    count: int = 300, *, width: int = WIDTH, height: int = HEIGHT, start: int = 5_000, seed: int = 0
) -> np.ndarray:
    """int64 (N, 4) of t, x, y, p in order of time."""
    rng = np.random.default_rng(seed)
    t = start + np.cumsum(rng.integers(0, 400, count))
    return np.stack([t, rng.integers(0, width, count), rng.integers(0, height, count), rng.integers(0, 2, count)], 1)


def dat(
    events: np.ndarray, header: str = f"% Version 2\n% Width {WIDTH}\n% Height {HEIGHT}\n", kind: int = 12
) -> bytes:
    data = b"% Data file containing CD events.\n" + header.encode() + bytes((kind, 8))
    return data + b"".join(struct.pack("<II", t % 2**32, x | y << 14 | p << 28) for t, x, y, p in events.tolist())


def nmnist(events: np.ndarray) -> bytes:
    rows = ((x, y, p << 7 | t >> 16 & 0x7F, t >> 8 & 0xFF, t & 0xFF) for t, x, y, p in events.tolist())
    return b"".join(map(bytes, rows))


def raw_header(version: str, extra: str = "") -> bytes:
    return f"% date 2024-01-01\n% format {version};height={HEIGHT};width={WIDTH}{extra}\n% end\n".encode()


def evt2(events: np.ndarray) -> bytes:
    words, high = [], None
    for t, x, y, p in events.tolist():
        if t >> 6 != high:
            high = t >> 6
            words.append(0x8 << 28 | high & 0xFFFFFFF)
        words.append(p << 28 | (t & 0x3F) << 22 | x << 11 | y)
        words.append(0xE << 28 | 5)  # Another event of the camera.
    return raw_header("EVT2") + struct.pack(f"<{len(words)}I", *words)


def evt21(events: np.ndarray, layout: str = "little", stated: bool = True) -> bytes:
    """Pairs of neighbours share a word where they can."""
    words, high, rows, i = [], None, events.tolist(), 0
    while i < len(rows):
        t, x, y, p = rows[i]
        mask = 1
        while i + 1 < len(rows) and rows[i + 1][0] == t and rows[i + 1][2:] == [y, p] and x < rows[i + 1][1] < x + 32:
            i += 1
            mask |= 1 << (rows[i][1] - x)
        if t >> 6 != high:
            high = t >> 6
            words.append((0x8 << 28 | high & 0xFFFFFFF, 0))
        words.append((p << 28 | (t & 0x3F) << 22 | x << 11 | y, mask))
        i += 1
    pairs = (pair if layout == "legacy" else pair[::-1] for pair in words)
    extra = f";endianness={layout}" if stated else ""
    return raw_header("EVT21", extra) + b"".join(struct.pack("<II", *pair) for pair in pairs)


def neighbours(count: int = 60, seed: int = 1) -> np.ndarray:
    """Runs of events of one time, row and polarity, columns ascending: what vector words hold."""
    rng, rows, t = np.random.default_rng(seed), [], 70_000
    for _ in range(count):
        t += int(rng.integers(0, 3000))
        x, y, p = int(rng.integers(0, WIDTH - 32)), int(rng.integers(0, HEIGHT)), int(rng.integers(0, 2))
        rows += [(t, x + i, y, p) for i in sorted({0, *rng.integers(0, 32, rng.integers(1, 20)).tolist()})]
    return np.array(rows, np.int64)


def evt3(events: np.ndarray) -> bytes:
    """Single words for lone events; a base and vectors of 12, 12 and 8 for runs."""
    words: list[int] = []
    high = low = row = None
    rows, i = events.tolist(), 0
    while i < len(rows):
        t, x, y, p = rows[i]
        if t >> 12 != high:
            high, low = t >> 12, None
            words.append(0x8 << 12 | high & 0xFFF)
        if t & 0xFFF != low:
            low = t & 0xFFF
            words.append(0x6 << 12 | low)
        if y != row:
            row = y
            words.append(y)
        run = [x]
        while (
            i + 1 < len(rows)
            and rows[i + 1][0] == t
            and rows[i + 1][2:] == [y, p]
            and run[-1] < rows[i + 1][1] < x + 32
        ):
            i += 1
            run.append(rows[i][1])
        i += 1
        if len(run) == 1:
            words.append(0x2 << 12 | p << 11 | x)
            continue
        mask = sum(1 << (column - x) for column in run)
        words += [0x3 << 12 | p << 11 | x, 0x4 << 12 | mask & 0xFFF, 0x4 << 12 | mask >> 12 & 0xFFF]
        words += [0xA << 12, 0x5 << 12 | mask >> 24]
    return raw_header("EVT3") + struct.pack(f"<{len(words)}H", *words)


def aedat2(events: np.ndarray, chip: str = "eu.seebetter.ini.chips.davis.DAVIS240C") -> bytes:
    data = b"#!AER-DAT2.0\r\n# AEChip: " + chip.encode() + b"\r\n"
    for t, x, y, p in events.tolist():
        address = y << 22 | x << 12 | p << 11 if "davis" in chip.lower() else y << 8 | x << 1 | p
        data += struct.pack(">II", address, t % 2**32)
        # A pixel of a frame, and an external event.
        others = (1 << 31 | address, 1 << 10 | address) if "davis" in chip.lower() else (1 << 15 | address,)
        data += b"".join(struct.pack(">II", other, t % 2**32) for other in others)
    return data


def aedat3(events: np.ndarray, source: str = "DVS128", per_packet: int = 50) -> bytes:
    data = f"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: {source}\r\n#Start-Time: x\r\n#!END-HEADER\r\n".encode()
    overflows = sorted({t >> 31 for t in events[:, 0].tolist()})
    for overflow in overflows:
        part = [row for row in events.tolist() if row[0] >> 31 == overflow]
        for start in range(0, len(part), per_packet):
            rows = part[start : start + per_packet]
            data += struct.pack("<hhiiiiii", 0, 1, 8, 4, overflow, 1, 1, 1) + bytes(8)  # A special event.
            data += struct.pack("<hhiiiiii", 1, 1, 8, 4, overflow, len(rows) + 1, len(rows) + 1, len(rows))
            for t, x, y, p in rows:
                data += struct.pack("<Ii", x << 17 | y << 2 | p << 1 | 1, t & 0x7FFFFFFF)
            data += struct.pack("<Ii", 0, 0)  # An invalid event.
    return data


def _table(fields: list[bytes | None]) -> bytes:
    """A FlatBuffers table of 8-byte slots right behind its vtable; `None` leaves a field out."""
    slots = [4 + 4 + 8 * i if value is not None else 0 for i, value in enumerate(fields)]
    size = 8 + 8 * len(fields)
    vtable = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), size, *slots)
    body = b"".join((value or b"").ljust(8, b"\0") for value in fields)
    return vtable + struct.pack("<ii", len(vtable), 0) + body


def _buffer(identifier: bytes, fields: list[bytes | None], tail: bytes) -> bytes:
    """A FlatBuffer whose last field points to `tail`, a vector placed behind the table."""
    vtable = 4 + 2 * len(fields)
    start = 8 + vtable
    last = start + 8 + 8 * (len(fields) - 1)
    end = start + 8 + 8 * len(fields)
    fields = [*fields[:-1], struct.pack("<I", end - last)]
    return struct.pack("<I", start) + identifier + _table(fields) + tail


def aedat4(
    events: np.ndarray, compression: int = 0, per_packet: int = 50, closed: bool = True, streams: tuple[int, ...] = (0,)
) -> bytes:
    def packed(data: bytes) -> bytes:
        if compression in (1, 2):
            import lz4.frame

            return lz4.frame.compress(data)
        if compression in (3, 4):
            import zstandard

            return zstandard.compress(data)
        return data

    nodes = "".join(
        f'<node name="{n}" path="/{n}/"><attr key="typeIdentifier" type="string">EVTS</attr><node name="info">'
        f'<attr key="sizeX" type="int">{WIDTH}</attr><attr key="sizeY" type="int">{HEIGHT}</attr></node></node>'
        for n in streams
    )
    imu = '<node name="9" path="/9/"><attr key="typeIdentifier" type="string">IMUS</attr></node>'
    text = f'<dv version="2.0"><node name="outInfo" path="/outInfo/">{nodes}{imu}</node></dv>'.encode()
    packets = b""
    for start in range(0, len(events), per_packet):
        rows = events[start : start + per_packet].tolist()
        body = struct.pack("<I", len(rows)) + b"".join(struct.pack("<qhhB3x", t, x, y, p) for t, x, y, p in rows)
        buffer = _buffer(b"EVTS", [b""], body)
        data = packed(struct.pack("<I", len(buffer)) + buffer)
        packets += struct.pack("<ii", 9, 3) + b"imu"
        packets += struct.pack("<ii", streams[0], len(data)) + data
    vector = struct.pack("<I", len(text)) + text

    def header(table: int) -> bytes:
        buffer = _buffer(b"IOHE", [struct.pack("<i", compression), struct.pack("<q", table), b""], vector)
        return b"#!AER-DAT4.0\r\n" + struct.pack("<I", len(buffer)) + buffer

    table = len(header(0)) + len(packets) if closed else -1
    return header(table) + packets + (b"the table of packets" if closed else b"")


def csv(events: np.ndarray) -> bytes:
    return b"t,x,y,p\n" + b"".join(f"{t},{x},{y},{p}\n".encode() for t, x, y, p in events.tolist())


def npz(events: np.ndarray) -> bytes:
    file = io.BytesIO()
    t, x, y, p = events.T
    np.savez_compressed(
        file, t=t, x=x.astype(np.uint16), y=y.astype(np.uint16), p=p.astype(bool), width=WIDTH, height=HEIGHT
    )
    return file.getvalue()


def npy(events: np.ndarray) -> bytes:
    file = io.BytesIO()
    table = np.zeros(len(events), [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "i1")])
    for key, column in zip("txyp", events.T, strict=True):
        table[key] = column
    table["p"] = table["p"] * 2 - 1
    np.save(file, table)
    return file.getvalue()


def hdf5(events: np.ndarray, offset: int | None = None, layout: str = "rvt", **compression: object) -> bytes:
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as root:
        t, x, y, p = events.T
        if layout == "table":
            table = np.zeros(len(events), [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
            for key, column in zip("txyp", events.T, strict=True):
                table[key] = column
            root.create_dataset("CD/events", data=table, **compression)
            root.attrs["width"], root.attrs["height"] = WIDTH, HEIGHT
            return _closed(root, file)
        for key, column in (("t", t - (offset or 0)), ("x", x), ("y", y), ("p", p)):
            root.create_dataset(f"events/{key}", data=column.astype("<u4"), **compression)
        if offset is not None:
            root["t_offset"] = offset
        if layout == "rvt":
            root["events/width"], root["events/height"] = WIDTH, HEIGHT
    return file.getvalue()


def _closed(root: object, file: io.BytesIO) -> bytes:
    root.close()  # type: ignore[attr-defined]
    return file.getvalue()


# Format -> suffix, writer, and the sensor that the file states.
WRITERS: dict[str, tuple[str, Callable[[np.ndarray], bytes], tuple[int, int] | None]] = {
    "aedat2": (".aedat", aedat2, (240, 180)),
    "aedat3": (".aedat", aedat3, (128, 128)),
    "aedat4": (".aedat4", aedat4, (WIDTH, HEIGHT)),
    "csv": (".csv", csv, None),
    "dat": (".dat", dat, (WIDTH, HEIGHT)),
    "evt2": (".raw", evt2, (WIDTH, HEIGHT)),
    "evt21": (".raw", evt21, (WIDTH, HEIGHT)),
    "evt3": (".raw", evt3, (WIDTH, HEIGHT)),
    "nmnist": (".bin", nmnist, (34, 34)),
    "npy": (".npy", npy, None),
    "npz": (".npz", npz, (WIDTH, HEIGHT)),
}


def sample(name: str, count: int = 300, seed: int = 0) -> np.ndarray:
    """Events that the sensor of a format of `WRITERS` holds."""
    width, height = WRITERS[name][2] or (WIDTH, HEIGHT)
    return draw(count, width=width, height=height, seed=seed)
