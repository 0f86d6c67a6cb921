"""The weights of a run that is not finished, as a folder that loads like any other."""

from __future__ import annotations

import json
from pathlib import Path

from zoo import registry
from zoo.config_file import check_config
from zoo.errors import WeightsError
from zoo.training.checkpoint import CHECKPOINT, load_checkpoint
from zoo.training.loop import RECORD
from zoo.training.lora import add_lora, merge_lora

__all__ = ["snapshot"]


def snapshot(run: Path, folder: Path) -> tuple[Path, int]:
    """Writes the weights in a run's checkpoint: the moving average where the recipe has one.

    They are those of a run cut short: the learning rate has not decayed. Say so wherever they are measured.

    Args:
        run: Folder of a run that was stopped, with its checkpoint.
        folder: Folder to write, as `zoo.save` does.

    Returns:
        The folder, and the number of steps done.

    Raises:
        WeightsError: If the run is finished, or there is no checkpoint, or it is damaged or of an older version.
    """
    import zoo

    if (run / RECORD).is_file():
        raise WeightsError(f"{run}: this run is finished: load it as local-dir:{run}")
    state = load_checkpoint(run)
    if "config" not in state:
        raise WeightsError(f"{run / CHECKPOINT}: written by an older version, which did not keep the configuration")
    config = check_config(json.loads(state["config"]), str(run / CHECKPOINT))
    config["model"]["drop_path"] = 0.0
    model = registry.architecture(config).build(config)
    if rank := state["recipe"].get("lora"):
        add_lora(model, rank)
    model.load_state_dict(state["ema"] or state["model"])
    if rank:
        merge_lora(model)
    return zoo.save(model, folder, dtype=state["recipe"]["weights_dtype"]), state["step"]
