"""Names of nuScenes: detection classes, the categories they are made of, attributes and evaluation ranges.

Source: "nuScenes: A multimodal dataset for autonomous driving" (CVPR 2020) and the rules of its detection task.
"""

from __future__ import annotations

from types import MappingProxyType

__all__ = [
    "ATTRIBUTES",
    "BIKE_RACK",
    "CAMERAS",
    "CLASS_RANGES",
    "DETECTION_CLASSES",
    "LIDAR",
    "NO_FRONT",
    "attributes_of",
    "default_attribute",
    "detection_class",
]

DETECTION_CLASSES = (
    "car",
    "truck",
    "bus",
    "trailer",
    "construction_vehicle",
    "pedestrian",
    "motorcycle",
    "bicycle",
    "traffic_cone",
    "barrier",
)

CLASS_RANGES = MappingProxyType(
    dict.fromkeys(DETECTION_CLASSES[:5], 50.0)
    | dict.fromkeys(("pedestrian", "motorcycle", "bicycle"), 40.0)
    | dict.fromkeys(("traffic_cone", "barrier"), 30.0)
)
"""Distance from the car in metres below which boxes of a class count."""

CAMERAS = ("CAM_FRONT", "CAM_FRONT_RIGHT", "CAM_BACK_RIGHT", "CAM_BACK", "CAM_BACK_LEFT", "CAM_FRONT_LEFT")
LIDAR = "LIDAR_TOP"
NO_FRONT = ("barrier",)
"""Classes that look the same turned by half a turn, by which their yaw is therefore never wrong."""

BIKE_RACK = "static_object.bicycle_rack"

_CATEGORIES = {
    "vehicle.car": "car",
    "vehicle.truck": "truck",
    "vehicle.bus.bendy": "bus",
    "vehicle.bus.rigid": "bus",
    "vehicle.trailer": "trailer",
    "vehicle.construction": "construction_vehicle",
    "vehicle.motorcycle": "motorcycle",
    "vehicle.bicycle": "bicycle",
    "human.pedestrian.adult": "pedestrian",
    "human.pedestrian.child": "pedestrian",
    "human.pedestrian.construction_worker": "pedestrian",
    "human.pedestrian.police_officer": "pedestrian",
    "movable_object.trafficcone": "traffic_cone",
    "movable_object.barrier": "barrier",
}
_VEHICLE = ("vehicle.moving", "vehicle.parked", "vehicle.stopped")
_CYCLE = ("cycle.with_rider", "cycle.without_rider")
_PEDESTRIAN = ("pedestrian.moving", "pedestrian.sitting_lying_down", "pedestrian.standing")
ATTRIBUTES = (*_PEDESTRIAN, *_CYCLE, *_VEHICLE)
_STANDING_M_S = 0.2  # slower than this is noise of the labels


def detection_class(category: str) -> str | None:
    """The detection class of a category such as "human.pedestrian.adult", or None where it belongs to none."""
    return _CATEGORIES.get(category)


def attributes_of(name: str) -> tuple[str, ...]:
    """Attributes that boxes of a detection class can have."""
    if name == "pedestrian":
        return _PEDESTRIAN
    if name in ("bicycle", "motorcycle"):
        return _CYCLE
    return () if name in ("traffic_cone", "barrier") else _VEHICLE


def default_attribute(name: str, speed: float) -> str:
    """The likeliest attribute of a box of which class and speed (m/s; NaN unknown) are known; "" for cones, barriers.

    A rule of thumb for models that predict no attributes: what moves is moving or ridden, and what stands is a
    standing person, a cycle without a rider, a stopped bus or a parked vehicle.
    """
    moving = speed > _STANDING_M_S
    if name == "pedestrian":
        return "pedestrian.moving" if moving else "pedestrian.standing"
    if name in ("bicycle", "motorcycle"):
        return "cycle.with_rider" if moving else "cycle.without_rider"
    if name in ("traffic_cone", "barrier"):
        return ""
    if moving:
        return "vehicle.moving"
    return "vehicle.stopped" if name == "bus" else "vehicle.parked"
