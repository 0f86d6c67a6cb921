"""Classify pictures with the embedded model, at two sizes, and look at its intermediate features.

python examples/predict.py [PICTURE ...]
"""

import sys
from pathlib import Path

import torch

import zoo
from modalities.image.transforms import preprocess

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


def main(pictures: list[str]) -> None:
    model = zoo.load("pape-vit-t-imagenette")
    print(f"{model.load_report.source}: {len(model.config['labels'])} classes, {model.data_config.input_size[1]} px")

    # A predictor takes paths, URLs, bytes, arrays and PIL images. The same weights run at any size.
    for size in (112, 224):
        predictor = zoo.predictor(model, size=size, top_k=3)
        for result in predictor(pictures):
            best = ", ".join(f"{label} {score:.1%}" for label, score in zip(result.labels, result.scores, strict=True))
            print(f"{size} px  {Path(result.name).name}: {best}")

    # Under the predictor: pixels, then tokens, then features of every block as maps over the grid of patches.
    pixels = preprocess(zoo.read(pictures[0]).rgb, model.data_config).unsqueeze(0)
    with torch.inference_mode():
        tokens, maps = model.forward_intermediates(pixels, indices=[0, 3, -1], output="grid", norm=True)
    print(f"tokens {tuple(tokens.shape)}, maps {[tuple(features.shape) for features in maps]}")


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(str(path) for path in SAMPLES.glob("*.jpg")))
