"""How long a driving model takes for one key frame: the whole path that a user waits for, and its parts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.bench.timing import environment, interleaved, pick_device, pick_dtype, threads
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from modalities.driving.nuscenes.dataset import NuScenes

__all__ = ["LIMIT_S", "measure"]

LIMIT_S = 5.0
"""What a key frame may take with the smallest size on two cores of a CPU."""

_SIZE, _AZIMUTHS = (1600, 900), 1085  # of the pictures of nuScenes, and columns of a sweep of its lidar


def measure(
    name: str,
    dataroot: str | os.PathLike[str] | None = None,
    *,
    sample: str | None = None,
    version: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 5,
    pretrained: bool = False,
) -> dict[str, Any]:
    """Times the prediction of one key frame with a loaded model and opened tables.

    Args:
        name: A driving model, as for `zoo.load`.
        dataroot: A data set in the format of nuScenes; by default one key frame is simulated, with pictures and a lidar
            sweep of the size of the real ones.
        sample: Token of the key frame; by default the first by scene and time.
        version: Folder of tables, where there are several.
        device: See `zoo.bench.timing.pick_device`.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        cpu_threads: Threads of PyTorch.
        repeats: Samples of each timing.
        pretrained: With weights; the time is the same without.

    Returns:
        A JSON-ready dict: `model`, `sample`, `source`, `cameras`, `points`, `dtype`, `repeats`, `limit_s`,
        `environment`, and `timings`, which maps `"predict"` (read, decode, resize, forward, boxes), `"read"` (all
        before the forward) and `"forward"` to `median_ms` and `p90_ms`.

    Raises:
        ConfigError: On values that cannot be used, or a model that is not for driving.
        DataError: If the key frame cannot be read.
    """
    import torch

    import zoo
    from modalities.driving.batch import DrivingBatch
    from modalities.driving.prepare import model_input

    if dataroot is None and (sample is not None or version is not None):
        raise ConfigError("sample and version are of a data set: give dataroot")
    place, wanted = pick_device(device), pick_dtype(dtype)
    model = zoo.load(name, pretrained=pretrained, device=place, dtype=wanted)
    if model.config["modality"] != "driving":
        raise ConfigError(
            f"{name} takes {model.config['modality']}, not driving scenes: see `zoo list --modality driving`"
        )
    looks, config = model.sizes, model.data_config
    with threads(cpu_threads), torch.inference_mode(), _opened(dataroot, version) as data:
        token = sample or data.sample_tokens()[0]
        predictor = zoo.predictor(model)

        def read() -> Any:
            frame = data.sample(token, sweeps=config.sweeps if looks.has_lidar else 1)
            given = model_input(frame, config, cameras=looks.has_cameras, lidar=looks.has_lidar)
            return DrivingBatch.from_samples([given]).to(place, wanted)

        batch = read()
        calls: dict[str, Callable[[], object]] = {
            "predict": lambda: predictor(data, sample=token),
            "read": read,
            "forward": lambda: model(batch),
        }
        timings = interleaved(calls, repeats=repeats, warmup=1, device=place)
        made = environment(place)
    return {
        "model": name,
        "sample": token,
        "source": "simulated" if dataroot is None else str(dataroot),
        "cameras": int(batch.image_mask.sum()) if looks.has_cameras else 0,
        "points": 0 if batch.points is None else len(batch.points),
        "dtype": dtype,
        "repeats": repeats,
        "limit_s": LIMIT_S,
        "timings": {key: {"median_ms": t.median_ms, "p90_ms": t.p90_ms} for key, t in timings.items()},
        "environment": made,
    }


@contextlib.contextmanager
def _opened(dataroot: str | os.PathLike[str] | None, version: str | None) -> Iterator[NuScenes]:
    from modalities.driving.nuscenes.dataset import NuScenes

    if dataroot is not None:
        yield NuScenes(Path(dataroot), version)
        return
    from modalities.driving.sim.generate import make_drive
    from modalities.driving.sim.options import DriveOptions

    options = DriveOptions(scenes=1, val_scenes=0, frames=1, image_size=_SIZE, azimuths=_AZIMUTHS)
    with tempfile.TemporaryDirectory(prefix="zoo-bench-") as folder:
        make_drive(Path(folder) / "drive", options)
        yield NuScenes(Path(folder) / "drive")
