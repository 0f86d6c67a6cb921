"""Draw a key frame of nuScenes with its labels, overfit a fusion detector to it, and predict it.

    python examples/driving_frame.py [--dataroot DIR] [--sample TOKEN] [--steps 150] [--out DIR]

DIR is a data set in the format of nuScenes: the official one or a part of it, even a single key frame. Without it, one
is simulated, as `zoo make-drive` does. That a network gives back what it was shown again and again says that cameras,
lidar, boxes, loss and decoding fit together; it is no measure of how well it detects. On two cores it takes about six
minutes.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

import zoo
from modalities.driving import DrivingBatch, FusionLoss, pad_boxes
from modalities.driving.frames import training_boxes
from modalities.driving.metrics import Detections, DetectionTruth, score_detections
from modalities.driving.nuscenes.classes import CLASS_RANGES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.prepare import model_input
from modalities.driving.sim.generate import make_drive
from modalities.driving.sim.options import DriveOptions
from modalities.driving.viz import key_frame_picture


def mean_ap(found, truth, names):
    """mAP of nuScenes over the classes that have a box within the range in which it counts; of one frame."""
    scores = score_detections({"frame": DetectionTruth(truth)}, {"frame": Detections(found)}, classes=names)
    near = truth.centre[:, :2].norm(dim=1) < torch.tensor([CLASS_RANGES[name] for name in names])[truth.label]
    here = [names[label] for label in sorted(set(truth.label[near].tolist()))]
    return float(np.mean([np.mean(list(scores.class_ap[name].values())) for name in here])), here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataroot", type=Path, help="a data set in the format of nuScenes")
    parser.add_argument("--sample", help="token of the key frame; by default the first")
    parser.add_argument("--model", help="by default pape-fusion-n-nuscenes, and -simdrive of a simulated frame")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", type=Path, help="folder for the pictures and boxes; by default they are not kept")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as temporary:
        root, out = arguments.dataroot or Path(temporary) / "drive", arguments.out or Path(temporary) / "out"
        if arguments.dataroot is None:
            make_drive(root, DriveOptions(scenes=1, val_scenes=0, frames=1))
        name = arguments.model or f"pape-fusion-n-{'nuscenes' if arguments.dataroot else 'simdrive'}"
        model = zoo.load(name, pretrained=False).train()
        names = model.config["labels"]

        data = NuScenes(root, classes=names)
        token = arguments.sample or data.sample_tokens()[0]
        frame = data.sample(token, sweeps=model.data_config.sweeps)
        out.mkdir(parents=True, exist_ok=True)
        key_frame_picture(data, token).save(out / "labelled.png")
        print(f"{token}: {len(frame.cameras)} cameras, {len(frame.points):,} points, {len(frame.annotations)} boxes")

        batch = DrivingBatch.from_samples([model_input(frame, model.data_config)])
        truth = training_boxes(frame.annotations)  # Of the model's classes, with at least one point.
        targets = pad_boxes([truth])
        criterion = FusionLoss(config=model.sizes, data=model.data_config, labels=tuple(names))
        optimiser = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, arguments.lr, arguments.steps, pct_start=0.2)
        for step in range(1, arguments.steps + 1):
            loss = criterion(model(batch), targets)["loss"]
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()
            schedule.step()
            if step in (1, arguments.steps) or step % 10 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)

        predict = zoo.predictor(model, min_score=0.3)
        result = predict(data, sample=token, truth=True)
        score, here = mean_ap(result.found, truth, names)
        print(f"mAP {score:.3f} over {', '.join(here)}")
        print(f"{len(result)} boxes with a score of at least 0.3, {len(truth)} labelled with points in them")
        result.save(out / "predicted.png")  # The cameras and the bird's-eye view; labelled boxes in white.
        result.save(out / "submission.json")  # All boxes, as nuScenes scores them.
        print("wrote " + ", ".join(sorted(path.name for path in out.iterdir())))


if __name__ == "__main__":
    main()
