"""Put PaPE into a vision transformer of timm, fine-tune it at a larger size than its own, and evaluate it at others.

    python examples/adapt_timm.py [--data DATA] [--limit 384] [--epochs 3]

DATA holds `train.parquet` and `validation.parquet`, or `train/CLASS/*.jpg` and `validation/CLASS/*.jpg` (Imagenette,
say). Without it, the four pictures of `samples/` stand in, each a class of its own. With weights to start from
(`pretrained=True`, or `load_state_dict` before `zoo.adapt`) this is how a released model gets another encoding.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F

import zoo
from modalities.image.augment import BatchAugmentation, ImageOptions
from modalities.image.data import pictures
from zoo.data_config import DataConfig
from zoo.evaluate import evaluate
from zoo.training.optim import parameter_groups

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
OLD_SIZE, NEW_SIZE, OTHER_SIZES = 64, 96, (64, 96, 128, (96, 160))
BATCH_SIZE = 32


def sample_folder(folder: Path) -> Path:
    """The pictures of `samples/` as a data set: each a class, for training and validation alike."""
    for split in ("train", "validation"):
        for path in SAMPLES.glob("*.jpg"):
            copy = folder / split / path.stem / path.name
            copy.parent.mkdir(parents=True)
            copy.write_bytes(path.read_bytes())
    return folder


def load(data: Path, split: str, limit: int, cache: Path | None) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Evenly chosen pictures of a split as uint8 (N, 3, 128, 128), their classes, and the number of classes."""
    packed = pictures(data, split, size=128, cache=cache, quiet=False)
    rows = np.linspace(0, len(packed) - 1, min(limit, len(packed))).astype(int)
    return torch.from_numpy(packed.stacked()[rows]), torch.from_numpy(packed.labels[rows]), packed.num_classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of a picture set; by default the pictures of samples/")
    parser.add_argument("--limit", type=int, default=384, help="training pictures, and half as many for validation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--encoding", default="pape", help="any of zoo.encodings() that can start without an effect")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as temporary:
        data, cache, epochs = arguments.data, None, arguments.epochs
        if data is None:
            print(f"no --data: the {len(list(SAMPLES.glob('*.jpg')))} pictures of samples/ stand in")
            data, cache, epochs = sample_folder(Path(temporary)), Path(temporary) / "cache", 4 * arguments.epochs
        train, train_labels, classes = load(data, "train", arguments.limit, cache)
        test, test_labels, _ = load(data, "validation", arguments.limit // 2, cache)

    shape = {"img_size": OLD_SIZE, "num_classes": classes, "depth": 6, "global_pool": "avg"}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **shape)
    model = zoo.adapt(model, arguments.encoding)
    print(model.adapt_report)

    cfg = model.pretrained_cfg
    model.data_config = DataConfig((3, NEW_SIZE, NEW_SIZE), mean=cfg["mean"], std=cfg["std"])
    options = ImageOptions(mixup=0.0, cutmix=0.0, crop_scale=(0.5, 1.0))
    augment = BatchAugmentation(options, model.data_config, classes, torch.device("cpu"))
    optimiser = torch.optim.AdamW(parameter_groups(model, weight_decay=0.05), lr=3e-4)

    model.train()
    for epoch in range(epochs):
        start, losses = time.monotonic(), []
        for index, rows in enumerate(torch.randperm(len(train)).split(BATCH_SIZE)):
            images, targets = augment(train[rows], train_labels[rows], seed=1000 * epoch + index)
            loss = F.cross_entropy(model(images), targets, label_smoothing=options.label_smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f} ({time.monotonic() - start:.1f} s)")

    gates = [p.detach().abs().mean().item() for name, p in model.named_parameters() if name.endswith("encoding.gate")]
    print(f"gates have opened to {min(gates):.4f} ... {max(gates):.4f}" if gates else "this encoding has no gates")
    for result in evaluate(model, test, test_labels, OTHER_SIZES):
        print(f"{result.size} px: {result.top1:.1f} % of {result.images} pictures right")


if __name__ == "__main__":
    main()
