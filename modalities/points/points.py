"""A cloud of points in memory: coordinates in double precision, whatever else the file says of each point, faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import ConfigError, DataError

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["Points", "sample_surface"]


@dataclass(frozen=True, eq=False)
class Points:
    """Points in the order of the file.

    Attributes:
        xyz: float64 (N, 3) coordinates in the unit of the file; nothing is subtracted.
        fields: Arrays (N,) or (N, k) by name. Of one meaning they have one name whatever the format calls them: `rgb`
            (N, 3) uint8, uint16 or float in 0..1 as stored, `normal` (N, 3), `intensity`, `label`; others keep
            their name.
        name: The path or address as it was given, or a description of an object in memory.
        path: The file, if it came from one.
        format: What was read, for example `"ply"`.
        faces: int64 (F, 3) corners of triangles, indices of points, where the file is a mesh; else `None`.
        info: What the file says of the cloud as a whole, for example `"viewpoint"` of a PCD.
        truncated: True when the file was damaged or ended early and only a part was decoded (`errors="keep"`).
    """

    xyz: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = "points"
    path: Path | None = None
    format: str | None = None
    faces: np.ndarray | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    truncated: bool = False

    def __post_init__(self) -> None:
        xyz = self.xyz
        if not isinstance(xyz, np.ndarray) or xyz.dtype != np.float64 or xyz.ndim != 2 or xyz.shape[1] != 3:
            found = f"{xyz.dtype} {xyz.shape}" if isinstance(xyz, np.ndarray) else type(xyz).__name__
            raise DataError(f"{self.name}: xyz must be float64 (N, 3), not {found}")
        for key, values in self.fields.items():
            if not isinstance(values, np.ndarray) or values.ndim < 1 or len(values) != len(xyz):
                found = str(values.shape) if isinstance(values, np.ndarray) else type(values).__name__
                raise DataError(f"{self.name}: the field {key} must be an array of {len(xyz)} rows, not {found}")

    def __len__(self) -> int:
        return len(self.xyz)

    def __getitem__(self, index: slice | np.ndarray) -> Points:
        """A part without faces: a slice, a mask or indices; slices share memory."""
        fields = {key: values[index] for key, values in self.fields.items()}
        return replace(self, xyz=self.xyz[index], fields=fields, faces=None)

    @property
    def bounds(self) -> np.ndarray:
        """float64 (2, 3): the least and the largest coordinate along each axis.

        Raises:
            DataError: If there are no points.
        """
        if not len(self):
            raise DataError(f"{self.name}: no points, so no bounds")
        return np.stack([self.xyz.min(axis=0), self.xyz.max(axis=0)])

    def with_fields(self, **fields: np.ndarray) -> Points:
        """A copy with fields added or replaced."""
        return replace(self, fields={**self.fields, **fields})

    def sample(self, count: int, seed: int = 0) -> Points:
        """Points drawn uniformly from the surface of a mesh, by area; see `sample_surface`.

        Raises:
            DataError: If this is no mesh.
        """
        if self.faces is None:
            raise DataError(f"{self.name}: has no faces to draw points from; it is a cloud, not a mesh")
        xyz, normals = sample_surface(self.xyz, self.faces, count, seed=seed, name=self.name)
        return replace(self, xyz=xyz, fields={"normal": normals}, faces=None)

    def save(self, path: str | Path) -> Path:
        """Writes a binary PLY with all fields; see `modalities.points.write.save_ply`."""
        from modalities.points.write import save_ply

        return save_ply(self, path)

    def plot(self, by: str | None = None, **options: Any) -> PIL.Image.Image:
        """Draws the cloud; arguments as for `modalities.points.viz.draw_points`.

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        from modalities.points.viz import draw_points, to_picture

        return to_picture(draw_points(self, by, **options))


def sample_surface(
    vertices: np.ndarray, faces: np.ndarray, count: int, *, seed: int = 0, name: str = "mesh"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws points from the triangles of a mesh, each triangle as often as its share of the area.

    Args:
        vertices: float64 (V, 3).
        faces: whole numbers (F, 3), indices of vertices.
        count: How many points.
        seed: The same seed gives the same points.
        name: What errors call the mesh.

    Returns:
        float64 (count, 3) points, and float64 (count, 3) unit normals of their triangles by the right-hand rule.

    Raises:
        ConfigError: If `count` is not positive.
        DataError: If there is no triangle with an area, or one names a vertex that is not there.
    """
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"the number of points to draw must be a positive whole number, not {count!r:.40}")
    if len(faces) and not (int(faces.min()) >= 0 and int(faces.max()) < len(vertices)):
        raise DataError(f"{name}: a face names a vertex outside the {len(vertices)} there are")
    corners = vertices[faces]  # (F, 3 corners, 3)
    with np.errstate(all="ignore"):
        cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        doubled = np.linalg.norm(cross, axis=1)
        total = doubled.sum()
    if not np.isfinite(total) or total <= 0:
        raise DataError(f"{name}: its {len(faces)} faces have no finite area to draw points from")
    generator = np.random.default_rng(seed)
    chosen = np.searchsorted(np.cumsum(doubled) / total, generator.random(count), side="right")
    chosen = np.minimum(chosen, np.flatnonzero(doubled)[-1])  # Sums round: the last share may end a little below 1.
    u, v = generator.random((2, count, 1))
    outside = u + v > 1  # Folded back: uniform over the triangle instead of the parallelogram.
    u, v = np.where(outside, 1 - u, u), np.where(outside, 1 - v, v)
    first, second, third = np.moveaxis(corners[chosen], 1, 0)
    return first + u * (second - first) + v * (third - first), cross[chosen] / doubled[chosen, None]
