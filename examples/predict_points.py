"""Say what a cloud of points is, and give every point of another one its class.

Prints the likeliest classes of an object, the points of each class in a scene as an airborne laser sees it, and writes
the labelled scene in a form that any viewer reads. Without files it takes an object and a village that are made here.

python examples/predict_points.py [OBJECT] [SCENE]
"""

import sys
import tempfile
from pathlib import Path

import zoo
from modalities.points.samples import table, village


def main(thing: Path, scene: Path, out: Path) -> None:
    result = zoo.predictor("pape-point-vit-n-modelnet10", top_k=3)(thing)
    best = ", ".join(f"{label} {score:.1%}" for label, score in zip(result.labels, result.scores, strict=True))
    print(f"{thing.name}: {best}")

    segments = zoo.predictor("pape-ptv3-n-als3")(scene)
    for row in segments.to_dict()["classes"]:
        print(f"{row['label']}: {row['points']:,} points, {row['share']:.1%}")
    # Coordinates are float64 until their origin is subtracted; .las, .laz and .html work too.
    saved = segments.save(out / "labelled.ply")
    print(f"{saved.name}: {len(zoo.read(saved)):,} points with their classes")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "table.off").write_bytes(table())
        (Path(folder) / "village.npz").write_bytes(village())
        files = [Path(name) for name in sys.argv[1:]] + [Path(folder) / "table.off", Path(folder) / "village.npz"]
        main(files[0], files[1] if len(sys.argv) > 2 else files[-1], Path(folder))
