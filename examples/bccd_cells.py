"""Single blood cells from the pictures of BCCD as class folders, to fine-tune on; and what raw pixels are worth there.

    python examples/bccd_cells.py crop BCCD CELLS          # writes CELLS/train (50 cells) and CELLS/test (450)
    zoo finetune pape-vit-t-imagenette --data CELLS --out runs/cells
    zoo eval local-dir:runs/cells --data CELLS --split test
    python examples/bccd_cells.py probe CELLS              # a linear classifier on the pixels, same cells

BCCD is a folder with train.parquet, validation.parquet and test.parquet: pictures with boxes of red cells (RBC), white
cells (WBC) and platelets. A cell is the square around its box, of twice the longer side, moved inside of the picture
where it reaches beyond, and resized to 112 x 112 px: cells of all classes are as large, with their neighbours around.
The closer the crop, the more raw pixels are worth: --context 1.25 cuts most of the neighbours off. Training cells come
from the training pictures, test cells (150 of each class) from those of validation and test, without one that shows
nearly the same field as a training picture (BloodImage_00037). Cells are drawn by a seed.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image

CLASSES = ("RBC", "WBC", "Platelets")
LEFT_OUT = "BloodImage_00037"
CONTEXT = 2.0  # side of a crop over the longer side of the box
SIDE = 112
TEST_PER_CLASS = 150

Box = tuple[bytes, list[float]]  # encoded picture, x1, y1, x2, y2


def boxes_of(data: Path, splits: tuple[str, ...]) -> list[list[Box]]:
    """All boxes of some splits, by class."""
    found: list[list[Box]] = [[] for _ in CLASSES]
    for split in splits:
        for row in pq.read_table(data / f"{split}.parquet").to_pylist():
            if str(row["image_id"]).startswith(LEFT_OUT):
                continue
            for box, label in zip(row["boxes"], row["labels"], strict=True):
                found[label].append((row["image"]["bytes"], box))
    return found


def crop_cell(picture: bytes, box: list[float], context: float = CONTEXT) -> Image.Image:
    """The square around a box."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    side = min(context * max(box[2] - box[0], box[3] - box[1]), *image.size)
    left, top = (
        min(max((low + high) / 2 - side / 2, 0), whole - side)
        for low, high, whole in ((box[0], box[2], image.width), (box[1], box[3], image.height))
    )
    corners = tuple(round(value) for value in (left, top, left + side, top + side))
    return image.crop(corners).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def crop(data: Path, out: Path, count: int, seed: int, context: float) -> None:
    """Writes OUT/train/CLASS/*.png and OUT/test/CLASS/*.png."""
    generator = np.random.default_rng(seed)
    per_class = [count // 3 + (number < count % 3) for number in range(3)]
    for side, splits, numbers in (
        ("train", ("train",), per_class),
        ("test", ("validation", "test"), [TEST_PER_CLASS] * 3),
    ):
        pool = boxes_of(data, splits)
        for name, boxes, wanted in zip(CLASSES, pool, numbers, strict=True):
            folder = out / side / name
            folder.mkdir(parents=True)
            chosen = generator.permutation(len(boxes))[:wanted]
            for number, index in enumerate(chosen):
                crop_cell(*boxes[index], context).save(folder / f"{number:03d}.png")
            print(f"{side}/{name}: {len(chosen)} cells")


def load(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (N, 3 * side * side) in 0..1 and classes (N,)."""
    files = [(file, label) for label, name in enumerate(CLASSES) for file in sorted((folder / name).glob("*.png"))]
    pixels = np.stack([np.asarray(Image.open(file)) for file, _ in files])
    return torch.from_numpy(pixels).flatten(1).float() / 255, torch.tensor([label for _, label in files])


def fit(x: torch.Tensor, y: torch.Tensor, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a linear classifier: cross-entropy, and `decay` times the squared weights."""
    weight = torch.zeros(x.shape[1], len(CLASSES), requires_grad=True)
    bias = torch.zeros(len(CLASSES), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, y) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def probe(cells: Path, decays: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)) -> dict[float, float]:
    """Top-1 in percent on CELLS/test of a linear classifier on the pixels of CELLS/train, by weight decay."""
    (x, y), (test_x, test_y) = load(cells / "train"), load(cells / "test")
    mean, std = x.mean(dim=0), x.std(dim=0) + 1e-6
    found = {}
    for decay in decays:
        weight, bias = fit((x - mean) / std, y, decay)
        right = (((test_x - mean) / std @ weight + bias).argmax(dim=1) == test_y).float().mean()
        found[decay] = 100 * float(right)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    cropping = commands.add_parser("crop", help="write class folders of cells")
    cropping.add_argument("data", type=Path)
    cropping.add_argument("out", type=Path)
    cropping.add_argument("--count", type=int, default=50, help="training cells")
    cropping.add_argument("--seed", type=int, default=0)
    cropping.add_argument("--context", type=float, default=CONTEXT, help="side of a crop over that of the box")
    probing = commands.add_parser("probe", help="fit a linear classifier to the pixels")
    probing.add_argument("cells", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "crop":
        crop(arguments.data, arguments.out, arguments.count, arguments.seed, arguments.context)
    else:
        found = probe(arguments.cells)
        for decay, top1 in found.items():
            print(f"linear probe on raw pixels, weight decay {decay:g}: top-1 {top1:.1f} %")
        print(f"best of these (chosen on the test cells, in its favour): {max(found.values()):.1f} %")


if __name__ == "__main__":
    main()
