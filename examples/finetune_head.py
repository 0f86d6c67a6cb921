"""Fine-tune a new head on a folder of pictures: load with other classes, train, save, load again, predict.

    python examples/finetune_head.py

The pictures are drawn here (three kinds of stripes, in any colours), so that nothing needs a download.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import zoo
from modalities.image.transforms import preprocess

CLASSES = ("diagonal", "horizontal", "vertical")
DIRECTIONS = {"diagonal": (0.7, 0.7), "horizontal": (1.0, 0.0), "vertical": (0.0, 1.0)}


def draw_pictures(folder: Path, per_class: int, generator: np.random.Generator) -> list[Path]:
    """Writes folder/CLASS/NUMBER.png."""
    rows, columns = np.mgrid[:64, :64]
    paths = []
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        down, right = DIRECTIONS[name]
        for number in range(per_class):
            phase = (rows * down + columns * right) * generator.uniform(0.4, 0.8) + generator.uniform(0, 6)
            first, second = generator.uniform(0, 255, (2, 3))
            weight = (0.5 + 0.5 * np.sin(phase))[..., None]
            noisy = first * weight + second * (1 - weight) + generator.normal(0, 10, (64, 64, 3))
            paths.append(folder / name / f"{number}.png")
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1])
    return paths


def main() -> None:
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    # Another number of classes gives the model a new head; the load report says so.
    model = zoo.load("pape-vit-t-imagenette", num_classes=len(CLASSES))
    print("; ".join(model.load_report.adapted))
    model.config["labels"] = list(CLASSES)

    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        train = draw_pictures(work / "train", 20, generator)
        test = draw_pictures(work / "test", 10, generator)

        def load(paths: list[Path]) -> tuple[torch.Tensor, torch.Tensor]:
            pixels = torch.stack([preprocess(zoo.read(path).rgb, model.data_config) for path in paths])
            return pixels, torch.tensor([CLASSES.index(path.parent.name) for path in paths])

        # Only the head learns, so the features of the backbone are computed once.
        pixels, classes = load(train)
        with torch.no_grad():
            features = model.forward_head(model.forward_features(pixels), pre_logits=True)
        optimiser = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
        for step in range(100):
            loss = F.cross_entropy(model.head(features), classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 25 == 0:
                print(f"step {step}: loss {loss.item():.3f}")

        zoo.save(model, work / "stripes")
        predictor = zoo.predictor(f"local-dir:{work / 'stripes'}", top_k=1)
        right = sum(result.label == path.parent.name for result, path in zip(predictor(test), test, strict=True))
        print(f"{right} of {len(test)} unseen pictures right")


if __name__ == "__main__":
    main()
