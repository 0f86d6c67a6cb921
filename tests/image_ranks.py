"""What each of two processes does in `test_training_processes`: train and evaluate pictures together on the CPU."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

import zoo
from zoo.evaluate import evaluate_data
from zoo.sharing import launched
from zoo.training import loop
from zoo.training.recipe import recipe_from_dict
from zoo.training.replicas import Replicas


class ShardedAccelerator(accelerate.Accelerator):
    """FSDP2 on the CPU, which accelerate has no flag for."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.state.distributed_type = DistributedType.FSDP
        self.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
            cpu_ram_efficient_loading=True,  # What `accelerate launch` says unless it is told otherwise.
        )


def trained(settings: dict[str, Any], sharded: bool = False) -> None:
    if sharded:
        accelerate.Accelerator = ShardedAccelerator
        distribute = loop.distribute

        def checked(*arguments: Any) -> Replicas:
            replicas = distribute(*arguments)
            shapes = [(p.shape[0], p.to_local().shape[0]) for p in replicas.model.parameters()]  # type: ignore[operator]
            assert sum(2 * own in (whole, whole - 1, whole + 1) for whole, own in shapes) > len(shapes) / 2
            return replicas

        loop.distribute = checked
    loop.train(recipe_from_dict(settings), resume=True)
    torch.distributed.destroy_process_group()


def trained_by_clocks(settings: dict[str, Any], sharded: bool) -> None:
    """As `trained`, but the clock of the second process all but stands: by it no checkpoint is ever old."""
    if os.environ["RANK"] == "1":
        ticks = itertools.count()
        loop.time = SimpleNamespace(monotonic=lambda: 1e-9 * next(ticks))  # type: ignore[assignment]
    trained(settings, sharded)


def killed_at(settings: dict[str, Any], step: int) -> None:
    """As `trained`, but both processes die before a step is done."""
    update = loop.Trainer._update

    def dying(self: loop.Trainer) -> torch.Tensor:
        if self.step == step:
            os._exit(0)
        return update(self)

    loop.Trainer._update = dying  # type: ignore[method-assign]
    trained(settings)


def evaluated(data: Path, names: list[str], out: Path) -> None:
    with launched("cpu") as (share, device):
        reports = [
            evaluate_data(zoo.load(name, device=device), data, batch_size=batch_size, share=share)
            for name, batch_size in zip(names, (2, 5, 64), strict=False)
        ]
        everyone = share.gather(reports)
    assert [r["results"][0]["top1"] for r in everyone[0]] == [r["results"][0]["top1"] for r in everyone[1]]
    if not share.rank:
        out.write_text(json.dumps(reports))
