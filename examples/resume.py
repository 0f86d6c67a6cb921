"""Kill a training run in the middle (SIGKILL), go on by the same line, and end with the weights of a run left alone.

Prints at which step it goes on, and whether the weights are equal to the last bit (they are on a CPU). The pictures
are noise and the network is tiny: this is about the run, not about what it learns. Several processes start the same
command as `accelerate launch -m zoo.cli.main train RECIPE --data DIR --out RUN --resume`.

python examples/resume.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml
from PIL import Image
from safetensors.torch import load_file

from zoo.training.checkpoint import CHECKPOINT, load_checkpoint
from zoo.training.loop import train
from zoo.training.recipe import load_recipe

SIZES = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64}
RECIPE = {"model": "pape-vit-n-imagenette", "model_options": SIZES, "image_size": 32, "epochs": 16, "batch_size": 8}
RECIPE |= {"device": "cpu", "precision": "float32", "checkpoint_every": 1, "checkpoint_seconds": 0}


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(48):
        place = folder / "data" / ("train" if number < 32 else "val") / ("a", "b")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(place / f"{number}.png")
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))

    def run(name: str, *, resume: bool = False) -> None:
        given = {"data": str(folder / "data"), "output": str(folder / name)}
        train(load_recipe(recipe, given), resume=resume, quiet=True)

    run("alone")
    command = [sys.executable, "-m", "zoo.cli.main", "train", str(recipe), "--quiet"]
    process = subprocess.Popen([*command, "--data", str(folder / "data"), "--out", str(folder / "killed")])
    while not (folder / "killed" / CHECKPOINT).exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    print(f"killed; goes on at step {load_checkpoint(folder / 'killed')['step']} of {4 * RECIPE['epochs']}")
    run("killed", resume=True)
    weights = [load_file(folder / name / "model.safetensors") for name in ("alone", "killed")]
    same = all((weights[0][key] == weights[1][key]).all() for key in weights[0])
    print(f"in the end: {'the same weights' if same else 'OTHER WEIGHTS'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else made))
