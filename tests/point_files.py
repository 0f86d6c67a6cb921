"""Writers of point files for tests, made from the descriptions of the formats."""

from __future__ import annotations

import io
import struct

import numpy as np


def cloud(count: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    """float32-exact coordinates, colour and intensity."""
    generator = np.random.default_rng(seed)
    return {
        "xyz": generator.integers(-4000, 4000, (count, 3)).astype(np.float64) / 64,
        "rgb": generator.integers(0, 256, (count, 3)).astype(np.uint8),
        "intensity": generator.integers(0, 256, count).astype(np.float32) / 256,
    }


def _ply_header(form: str, count: int, faces: int, extra: str = "") -> bytes:
    lines = ["ply", f"format {form} 1.0", "comment made by a test", f"element vertex {count}"]
    lines += [f"property float {axis}" for axis in "xyz"]
    lines += [*(f"property uchar {colour}" for colour in ("red", "green", "blue")), "property double intensity"]
    lines += extra.splitlines()
    if faces:
        lines += [f"element face {faces}", "property list uchar int vertex_indices"]
    return "\n".join([*lines, "end_header", ""]).encode()


FACES = ((0, 1, 2), (2, 1, 3), (0, 2, 4))


def ply(data: dict[str, np.ndarray], order: str = "<", faces: tuple = ()) -> bytes:
    name = {"<": "binary_little_endian", ">": "binary_big_endian"}[order]
    rows = b"".join(
        struct.pack(f"{order}fffBBBd", *xyz, *rgb, value)
        for xyz, rgb, value in zip(data["xyz"], data["rgb"].tolist(), data["intensity"], strict=True)
    )
    rows += b"".join(struct.pack(f"{order}B{len(face)}i", len(face), *face) for face in faces)
    return _ply_header(name, len(data["xyz"]), len(faces)) + rows


def ply_ascii(data: dict[str, np.ndarray], faces: tuple = ()) -> bytes:
    rows = [
        " ".join(map(repr, [*map(float, xyz), *rgb, float(value)]))
        for xyz, rgb, value in zip(data["xyz"], data["rgb"].tolist(), data["intensity"], strict=True)
    ]
    rows += [" ".join(map(str, (len(face), *face))) for face in faces]
    return _ply_header("ascii", len(data["xyz"]), len(faces)) + "\n".join([*rows, ""]).encode()


def lzf(data: bytes) -> bytes:
    """A plain LZF compressor: the latest place of the same three bytes, else literals."""
    out, literals, last = bytearray(), bytearray(), dict[bytes, int]()

    def flush() -> None:
        for start in range(0, len(literals), 32):
            part = literals[start : start + 32]
            out.append(len(part) - 1)
            out.extend(part)
        literals.clear()

    at = 0
    while at < len(data):
        key = data[at : at + 3]
        found = last.get(key, -1)
        last[key] = at
        if len(key) < 3 or found < 0 or at - found > 8192:
            literals.append(data[at])
            at += 1
            continue
        length = 3
        while length < 264 and at + length < len(data) and data[found + length] == data[at + length]:
            length += 1
        flush()
        distance, coded = at - found - 1, length - 2
        out.append(min(coded, 7) << 5 | distance >> 8)
        if coded >= 7:
            out.append(coded - 7)
        out.append(distance & 255)
        at += length
    flush()
    return bytes(out)


def pcd(data: dict[str, np.ndarray], mode: str = "binary", *, height: int = 1, header: str = "") -> bytes:
    count = len(data["xyz"])
    packed = (data["rgb"].astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=1).astype("<u4")
    head = header or (
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z rgb _ intensity pair\n"
        "SIZE 4 4 4 4 1 4 2\nTYPE F F F F U F I\nCOUNT 1 1 1 1 4 1 2\n"
        f"WIDTH {count // height}\nHEIGHT {height}\nVIEWPOINT 1 2 3 1 0 0 0\nPOINTS {count}\nDATA {mode}\n"
    )
    dtype = np.dtype(
        [(a, "<f4") for a in "xyz"] + [("rgb", "<u4"), ("_", "u1", (4,)), ("intensity", "<f4"), ("pair", "<i2", (2,))]
    )
    table = np.zeros(count, dtype)
    for axis, key in enumerate("xyz"):
        table[key] = data["xyz"][:, axis]
    table["rgb"], table["intensity"] = packed, data["intensity"]
    table["pair"] = np.arange(2 * count).reshape(count, 2)
    if mode == "binary":
        body = table.tobytes()
    elif mode == "binary_compressed":
        columns = b"".join(np.ascontiguousarray(table[key]).tobytes() for key in dtype.names)
        body = lzf(columns)
        body = struct.pack("<II", len(body), len(columns)) + body
    else:
        colours = packed.view("<f4")
        body = "".join(
            " ".join(
                [*(repr(float(v)) for v in row.item()[:3]), str(np.float32(colour)), "0 0 0 0"]
                + [repr(float(row["intensity"])), *map(str, row["pair"].tolist())]
            )
            + "\n"
            for row, colour in zip(table, colours, strict=True)
        ).encode()
    return head.encode() + body


def off(data: dict[str, np.ndarray], faces: tuple = FACES, *, joined: bool = False) -> bytes:
    lines = [f"OFF{'' if joined else chr(10)}{len(data['xyz'])} {len(faces)} 0"]
    lines += [" ".join(map(repr, map(float, row))) for row in data["xyz"]]
    lines += [" ".join(map(str, (len(face), *face))) for face in faces]
    return ("\n".join(lines) + "\n").encode()


def kitti(data: dict[str, np.ndarray]) -> bytes:
    return np.column_stack([data["xyz"], data["intensity"]]).astype("<f4").tobytes()


def nuscenes(data: dict[str, np.ndarray]) -> bytes:
    ring = np.arange(len(data["xyz"])) % 32
    return np.column_stack([data["xyz"], data["intensity"], ring]).astype("<f4").tobytes()


def text(data: dict[str, np.ndarray], separator: str = " ", names: str = "") -> bytes:
    rows = [
        separator.join(map(repr, [*map(float, xyz), *rgb]))
        for xyz, rgb in zip(data["xyz"], data["rgb"].tolist(), strict=True)
    ]
    return ("\n".join([*([names] if names else []), *rows]) + "\n").encode()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def stl(vertices: np.ndarray, faces: tuple = FACES) -> bytes:
    triangles = b"".join(struct.pack("<12fH", 0, 0, 0, *vertices[list(face)].reshape(-1), 0) for face in faces)
    return bytes(80) + struct.pack("<I", len(faces)) + triangles


def obj(data: dict[str, np.ndarray], faces: tuple = FACES) -> bytes:
    lines = ["# a mesh", "mtllib ../../secret.mtl"]
    lines += ["v " + " ".join(map(repr, map(float, row))) for row in data["xyz"]]
    lines += ["f " + " ".join(str(corner + 1) for corner in face) for face in faces]
    return ("\n".join(lines) + "\n").encode()


def las(data: dict[str, np.ndarray], *, compress: bool = False) -> bytes:
    """With laspy: point format 7, millimetres, a far origin, one extra dimension."""
    import laspy

    header = laspy.LasHeader(point_format=7, version="1.4")
    header.scales, header.offsets = [0.001] * 3, [500_000.0, 6_000_000.0, 0.0]
    header.add_extra_dim(laspy.ExtraBytesParams("quality", np.float32))
    cloud_ = laspy.LasData(header)
    cloud_.x, cloud_.y, cloud_.z = (data["xyz"] + [500_000.0, 6_000_000.0, 0.0]).T
    cloud_.red, cloud_.green, cloud_.blue = data["rgb"].T.astype(np.uint16) * 256
    count = len(data["xyz"])
    cloud_.intensity = np.arange(count)
    cloud_.return_number, cloud_.number_of_returns = np.ones(count, np.uint8), np.full(count, 2, np.uint8)
    cloud_.classification = np.arange(count) % 7
    cloud_.quality = data["intensity"]
    buffer = io.BytesIO()
    cloud_.write(buffer, do_compress=compress)
    return buffer.getvalue()


FILES = {
    "ply": ("a.ply", ply),
    "ply-big": ("a.ply", lambda data: ply(data, ">")),
    "ply-ascii": ("a.ply", ply_ascii),
    "pcd": ("a.pcd", pcd),
    "pcd-ascii": ("a.pcd", lambda data: pcd(data, "ascii")),
    "pcd-compressed": ("a.pcd", lambda data: pcd(data, "binary_compressed")),
    "off": ("a.off", off),
    "kitti": ("a.bin", kitti),
    "nuscenes": ("a.pcd.bin", nuscenes),
    "xyz": ("a.xyz", text),
    "csv": ("a.csv", lambda data: text(data, ",", "X,Y,Z,R,G,B")),
    "txt": ("a.txt", lambda data: text(data, ";", "//X;Y;Z;red;green;blue")),
    "pts": ("a.pts", lambda data: text(data, names=str(len(data["xyz"])))),
    "npz": ("a.npz", lambda data: npz(xyz=data["xyz"], rgb=data["rgb"], intensity=data["intensity"])),
    "npy": ("a.npy", lambda data: npy(data["xyz"])),
    "obj": ("a.obj", obj),
}
"""Format -> name of a file and its writer."""
