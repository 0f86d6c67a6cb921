"""The speed that this project aims at, and how a measurement compares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CONDITIONS", "GOALS", "Goal", "judge"]

Step = Literal["inference", "train"]


@dataclass(frozen=True)
class Goal:
    """An upper bound for PaPE as a ratio within one run, with the widths of ViT-B.

    Attributes:
        bench: `"block"` and `"attention-core"` are relative to the same without positions, `"model"` to timm's ViT with
            absolute positions, `"detector"` to the classifier of the same encoder on pictures of the same size.
        device: `"cuda"` (in bfloat16, compiled) or `"cpu"` (in float32).
        step: Inference, or forward and backward.
        quantity: `"time"` or peak `"memory"`.
        tokens: Tokens of a sample, class token included.
        limit: The bound.
    """

    bench: Literal["block", "attention-core", "model", "detector"]
    device: Literal["cuda", "cpu"]
    step: Step
    quantity: Literal["time", "memory"]
    tokens: int
    limit: float


# Set for one H200 before any kernel was written, from measurements there: the train step of a block with the official
# code of PaPE took 2.62, 2.22 and 1.72 times that without positions at 197, 1025 and 4097 tokens, inference 2.67, 2.13
# and 1.60 times, and its memory was 1.57 times as much at 1025; RoPE took 1.13, 1.07 and 1.03 times. For the attention
# core, q and k 80 wide in cuDNN took 1.22 (forward) and 1.35 times (with backward) what 64 wide ones take.
GOALS = (
    Goal("block", "cuda", "train", "time", 197, 1.25),
    Goal("block", "cuda", "train", "time", 1025, 1.20),
    Goal("block", "cuda", "train", "time", 4097, 1.15),
    Goal("block", "cuda", "train", "memory", 1025, 1.15),
    Goal("block", "cuda", "inference", "time", 197, 1.25),
    Goal("block", "cuda", "inference", "time", 1025, 1.15),
    Goal("block", "cuda", "inference", "time", 4097, 1.10),
    Goal("attention-core", "cuda", "inference", "time", 1025, 1.00),
    Goal("attention-core", "cuda", "inference", "time", 4097, 0.95),
    Goal("attention-core", "cuda", "train", "time", 1025, 1.05),
    Goal("attention-core", "cuda", "train", "time", 4097, 1.00),
    Goal("detector", "cuda", "train", "time", 1601, 1.30),
    Goal("block", "cpu", "inference", "time", 197, 1.20),
    Goal("block", "cpu", "inference", "time", 1025, 1.20),
    Goal("block", "cpu", "inference", "time", 4097, 1.20),
    Goal("model", "cpu", "inference", "time", 197, 1.20),
)

CONDITIONS = "ViT-B widths, and bfloat16 with --compile (with or without --graphs) on CUDA or float32 on the CPU"


def judge(
    bench: str, find: Callable[[Goal], float | None], *, step: str, device: str, dtype: str, compiled: bool
) -> list[dict[str, Any]]:
    """Compares a measurement with the goals that are stated for its device, dtype and way of running.

    Args:
        bench: Which measurement.
        find: The measured ratio of a goal, `None` where it was not measured.
        step: `"inference"` or `"train"`.
        device: A device of torch.
        dtype: float32, bfloat16 or float16.
        compiled: Whether `torch.compile` was used.

    Returns:
        One JSON-ready dict for each goal: `goal` (in words), `limit`, `measured` and `met`.
    """
    kind = device.partition(":")[0]
    if not (dtype == "float32" if kind == "cpu" else dtype == "bfloat16" and compiled):
        return []
    judged = []
    for goal in GOALS:
        measured = find(goal) if (goal.bench, goal.device, goal.step) == (bench, kind, step) else None
        if measured is not None:
            words = f"{goal.bench}, {_STEPS[goal.step]}, {goal.tokens} tokens, {goal.quantity}"
            judged.append({"goal": words, "limit": goal.limit, "measured": measured, "met": measured <= goal.limit})
    return judged


_STEPS = {"inference": "inference", "train": "train step"}
