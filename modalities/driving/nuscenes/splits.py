"""Which scenes of nuScenes v1.0 are for training, validation and test, as its authors divide them.

Included: train (700 scenes), val (150), test (150), mini_train (8), mini_val (2). Data sets of one's own name theirs in
`VERSION/splits.json`, an object of lists of scene names, as the devkit of nuScenes does.
"""

from __future__ import annotations

from collections.abc import Iterable

from zoo.errors import ConfigError

__all__ = ["SPLITS", "official_scenes"]

# Numbers of scenes, first and last of each run.
_VAL = (
    (3, 3), (12, 18), (35, 36), (38, 39), (92, 110), (221, 221), (268, 278), (329, 332), (344, 346), (519, 524),
    (552, 565), (625, 627), (629, 630), (632, 638), (770, 771), (775, 775), (777, 778), (780, 784), (794, 800),
    (802, 802), (904, 917), (919, 931), (962, 963), (966, 969), (971, 972), (1059, 1073),
)  # fmt: skip
_TEST = (
    (77, 91), (111, 119), (140, 140), (142, 148), (265, 266), (279, 282), (307, 314), (333, 343), (481, 498),
    (547, 551), (601, 604), (606, 624), (827, 831), (833, 842), (844, 846), (932, 933), (935, 943), (1026, 1043),
)  # fmt: skip
_TRAIN = (
    (1, 2), (4, 11), (19, 34), (41, 76), (120, 135), (138, 139), (149, 152), (154, 155), (157, 168), (170, 185),
    (187, 188), (190, 196), (199, 200), (202, 204), (206, 214), (218, 220), (222, 222), (224, 264), (283, 306),
    (315, 318), (321, 321), (323, 324), (328, 328), (347, 386), (388, 403), (405, 408), (410, 459), (461, 465),
    (467, 469), (471, 472), (474, 480), (499, 502), (504, 515), (517, 518), (525, 539), (541, 546), (566, 566),
    (568, 568), (570, 578), (580, 580), (582, 600), (639, 679), (681, 681), (683, 689), (695, 698), (700, 701),
    (703, 719), (726, 728), (730, 731), (733, 741), (744, 744), (746, 747), (749, 752), (757, 765), (767, 769),
    (786, 787), (789, 792), (803, 806), (808, 813), (815, 817), (819, 822), (847, 856), (858, 858), (860, 866),
    (868, 873), (875, 878), (880, 880), (882, 903), (945, 945), (947, 947), (949, 949), (952, 953), (955, 961),
    (975, 984), (988, 992), (994, 1025), (1044, 1058), (1074, 1102), (1104, 1110),
)  # fmt: skip
_MINI_TRAIN = tuple((number, number) for number in (61, 553, 655, 757, 796, 1077, 1094, 1100))
_MINI_VAL = ((103, 103), (916, 916))
_RUNS = {"train": _TRAIN, "val": _VAL, "test": _TEST, "mini_train": _MINI_TRAIN, "mini_val": _MINI_VAL}

SPLITS = tuple(_RUNS)
"""Names of the official splits."""


def official_scenes(split: str) -> tuple[str, ...]:
    """Names of the scenes of an official split, such as "scene-0061".

    Raises:
        ConfigError: If there is no such split.
    """
    if split not in _RUNS:
        raise ConfigError(f"nuScenes has no split {split!r}; it has {', '.join(SPLITS)}")
    return tuple(_names(_RUNS[split]))


def _names(runs: Iterable[tuple[int, int]]) -> Iterable[str]:
    for first, last in runs:
        yield from (f"scene-{number:04d}" for number in range(first, last + 1))
