"""Normals of the vertices of a mesh."""

from __future__ import annotations

import numpy as np

__all__ = ["vertex_normals"]


def vertex_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals of vertices: the mean of those of the triangles around each, weighted by area.

    Args:
        vertices: float64 (V, 3).
        faces: whole numbers (F, 3), counter-clockwise seen from outside.

    Returns:
        float32 (V, 3); zero where no triangle with an area is near.
    """
    corners = vertices[faces]
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    total = np.zeros((len(vertices), 3))
    for corner in range(3):
        for axis in range(3):
            total[:, axis] += np.bincount(faces[:, corner], cross[:, axis], minlength=len(vertices))
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return (total / np.where(length > 0, length, 1)).astype(np.float32)
