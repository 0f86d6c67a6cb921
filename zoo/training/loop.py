"""The training loop on accelerate: the same steps, in the same order, whether or not the run was interrupted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.encodings.base import AttentionEncoding
from zoo.errors import ConfigError, ZooError, require
from zoo.model_inputs import call_model
from zoo.progress import Update, progress_bar
from zoo.sources import locate
from zoo.training.checkpoint import CHECKPOINT, check_same_run, load_checkpoint, save_checkpoint
from zoo.training.compile_check import REPLAYED, begin_step, compile_model, compiled_step_problem, projection
from zoo.training.metrics import MetricsLog
from zoo.training.optim import make_ema, make_optimizer, make_schedule
from zoo.training.recipe import Recipe, task_class
from zoo.training.seeds import derive_seed, seed_device
from zoo.training.stopping import StopRequest
from zoo.training.task import Task, batches, check_model, loss_parts
from zoo.training.tuning import Tuning, prepare_model

__all__ = ["METRICS", "RECORD", "TrainResult", "Trainer", "train"]

METRICS, RECORD = "metrics.jsonl", "train_record.json"


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        output: Its folder; loadable as `local-dir:OUTPUT` when finished.
        finished: Whether all steps are done.
        step: Steps done.
        total_steps: Steps of the whole run.
        loss: Mean training loss of the last metrics line, if there is one.
        seconds: Training time over all resumptions.
        reason: Why it stopped early, or `None`.
    """

    output: Path
    finished: bool
    step: int
    total_steps: int
    loss: float | None
    seconds: float
    reason: str | None = None


def train(recipe: Recipe, *, resume: bool = False, quiet: bool = True, command: str | None = None) -> TrainResult:
    """Trains a model by `recipe` and writes it to `recipe.output`.

    The folder gets `config.json`, `model.safetensors` (the moving average when the recipe has one),
    `train_record.json` and `metrics.jsonl`; while training also a checkpoint.

    Args:
        recipe: What to do.
        resume: Continue the run in `recipe.output` from its checkpoint.
        quiet: Show no progress bar.
        command: Command line for the record.

    Raises:
        ConfigError: If the recipe cannot be used here, the output folder holds a run (without `resume`), or `resume`
            would change the run.
        DataError: If the data cannot be used.
        ZooError: If the loss is not finite; says at which step.
    """
    if recipe.output is None:
        raise ConfigError("no output folder: give --out DIR")
    output = Path(recipe.output)
    if (output / RECORD).is_file() and resume:
        record = json.loads((output / RECORD).read_text(encoding="utf-8"))
        steps = record["steps"]
        return TrainResult(output, True, steps, steps, record["final_train_loss"], record["duration_s"])
    if not resume and any((output / name).exists() for name in (CHECKPOINT, METRICS, RECORD, "model.safetensors")):
        raise ConfigError(f"{output} already holds a run: continue it with --resume or choose another --out")
    with (
        StopRequest(recipe.max_minutes) as stop,
        _accelerator(recipe) as accelerator,
        _matmul_precision(),
        closing(Trainer(recipe, accelerator, output, quiet=quiet)) as trainer,
    ):
        # A run killed before its first checkpoint has a metrics file only: it starts over.
        if resume and ((output / CHECKPOINT).exists() or not (output / METRICS).exists()):
            trainer.load(load_checkpoint(output))
        return trainer.run(stop, command)


@contextmanager
def _accelerator(recipe: Recipe) -> Iterator[Any]:
    accelerate = require("accelerate", extra="train")
    from accelerate.state import AcceleratorState

    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: PyTorch finds no CUDA device here; use device: cpu or auto")
    mixed = "bf16" if recipe.precision == "bf16" else "no"
    AcceleratorState._reset_state(reset_partial_state=True)  # or a second run in this process could not differ
    try:
        # Said outright, since accelerate joins CPU processes only when told to.
        cpu = recipe.device == "cpu" or not torch.cuda.is_available()
        yield accelerate.Accelerator(mixed_precision=mixed, cpu=cpu)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def _matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Trainer:
    """Model, data and optimiser of one run, and how far it is."""

    def __init__(self, recipe: Recipe, accelerator: Any, output: Path, quiet: bool = True) -> None:
        self.recipe, self.accelerator, self.output = recipe, accelerator, output
        self.main = bool(accelerator.is_main_process)
        self.quiet = quiet or not self.main
        self.device: torch.device = accelerator.device
        kind = task_class(recipe.task)
        check_model(locate(recipe.model, pretrained=recipe.pretrained).config, kind)
        with accelerator.main_process_first():  # one process packs the data, the others find them
            self.task: Task = kind(recipe, quiet=self.quiet)
        self.total_steps = min(recipe.epochs * self.task.steps_per_epoch, recipe.steps or sys.maxsize)
        self.model = self._build_model().to(self.device)
        self.task.start(self.model, self.device, accelerator.process_index, accelerator.num_processes)
        self.ema = make_ema(self.model, recipe)
        self.optimizer = make_optimizer(self.model, recipe)
        self.schedule = make_schedule(self.optimizer, recipe, self.total_steps)
        world = accelerator.num_processes
        self.tuning = Tuning(self.model, recipe, self.optimizer, self.total_steps, world)
        self.encodings = [module for module in self.model.modules() if isinstance(module, AttentionEncoding)]
        self.net: nn.Module = accelerator.prepare_model(self.model)
        self.step = 0
        self.seconds = 0.0
        # (loss, gradient norm, parts of the loss) of the steps since the last metrics line, and what the parts are.
        self.pending: list[Tensor] = []
        self.parts: list[str] = []
        self.last_loss: float | None = None
        self.compiled = False

    def _build_model(self) -> nn.Module:
        import zoo

        recipe = self.recipe
        arguments = {"drop_path": recipe.drop_path, **self.task.model_arguments(), **recipe.model_options}
        torch.manual_seed(derive_seed(recipe.seed, "weights"))
        model = zoo.load(recipe.model, pretrained=recipe.pretrained, **arguments)
        prepare_model(model, recipe, self.task.labels)
        return model.train()

    def close(self) -> None:
        """Ends what the task holds."""
        getattr(self.task, "close", lambda: None)()

    @property
    def smoothed(self) -> nn.Module:
        """The model that is evaluated and exported: the moving average, if there is one."""
        return self.model if self.ema is None else self.ema.module

    def state(self) -> dict[str, Any]:
        """Everything that a continuation needs; random numbers follow from the step."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "pending": [row.tolist() for row in self.pending],
            "parts": self.parts,
            "last_loss": self.last_loss,
            "model": self.model.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "tuning": self.tuning.state(),
            "config": json.dumps(self.model.config),
            "recipe": json.loads(json.dumps(self.recipe.to_dict())),
            "data": self.task.facts["sha256"],
            "processes": self.accelerator.num_processes,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ConfigError: If the recipe, the data or the number of processes is not that of the run.
        """
        recipe = json.loads(json.dumps(self.recipe.to_dict()))
        check_same_run(state, recipe, self.task.facts["sha256"], self.accelerator.num_processes)
        self.step, self.seconds, self.last_loss = state["step"], state["seconds"], state["last_loss"]
        self.pending = [torch.tensor(row, device=self.device) for row in state["pending"]]
        self.parts = state.get("parts", [])
        self.model.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.tuning.load(state.get("tuning"))

    def run(self, stop: StopRequest, command: str | None = None) -> TrainResult:
        """Trains to the end or until `stop` asks; writes the files."""
        if self.main:
            self.output.mkdir(parents=True, exist_ok=True)
        self.accelerator.wait_for_everyone()
        if self.recipe.compile and self.step < self.total_steps:
            self.net = self._compile()
        with progress_bar("training", self.total_steps, self.quiet) as update:
            log = MetricsLog(self.output / METRICS, self.step) if self.main else None
            with closing(log) if log else contextmanager(lambda: iter([None]))():
                reason = self._steps(stop, log, update)
        if reason is None and self.main:
            self._export(command)
        self.accelerator.wait_for_everyone()
        return TrainResult(
            self.output, reason is None, self.step, self.total_steps, self.last_loss, self.seconds, reason
        )

    def _steps(self, stop: StopRequest, log: MetricsLog | None, update: Update) -> str | None:
        recipe, per_epoch = self.recipe, self.task.steps_per_epoch
        log_every = recipe.log_every or min(per_epoch, 50)
        resumed_seconds, start = self.seconds, time.monotonic()
        logged, saved = (self.step, start), (self.step, start)
        for inputs, targets in batches(self.task, self.step, self.total_steps, self.device):
            self.pending.append(self._train_step(inputs, targets))
            self.step += 1
            epoch_ends = self.step % per_epoch == 0
            epoch = self.step // per_epoch
            if self.step % log_every == 0 or self.step == self.total_steps:
                record = self._summary()
                now = time.monotonic()
                speed = (self.step - logged[0]) * recipe.batch_size / (now - logged[1])
                logged = self.step, now
                self.seconds = resumed_seconds + now - start
                if log:
                    log.write({**record, "images_per_s": round(speed, 1), "seconds": round(self.seconds, 2)})
                update(self.step, f"loss {self.last_loss:.4f}  {speed:,.0f} samples/s")
            if epoch_ends and recipe.eval_every and (epoch % recipe.eval_every == 0 or self.step == self.total_steps):
                metrics = self.task.evaluate(self.smoothed, recipe.precision)
                if log and metrics:
                    log.write({"step": self.step, "epoch": epoch, **metrics})
                self.tuning.selection.observe(self.step, metrics, self.smoothed)
            reason = self._stop_reason(stop, log_every)
            self.seconds = resumed_seconds + time.monotonic() - start
            if self.tuning.selection.stopped:
                break
            if self.step < self.total_steps and (reason or self._checkpoint_due(epoch_ends, epoch, saved)):
                self._save()
                saved = self.step, time.monotonic()
            if reason and self.step < self.total_steps:
                return reason
        return None

    def _train_step(self, inputs: Any, targets: Any) -> Tensor:
        epoch, index = divmod(self.step, self.task.steps_per_epoch)
        self.schedule.step_update(self.step)
        self.tuning.head_first.begin(self.step)
        begin_step(self.device)
        seed_device(self.device, self._step_seed(epoch, index))
        if getattr(self.task, "draws_on_host", False):
            seed_device(torch.device("cpu"), self._step_seed(epoch, index))
        losses = loss_parts(self.task.loss(call_model(self.net, inputs), targets))
        loss = losses.pop("loss")
        self.parts = list(losses)
        self.accelerator.backward(loss)
        self.tuning.head_first.drop_frozen(self.step)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf)
        self.optimizer.step()
        for encoding in self.encodings:
            encoding.project_parameters()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.model, step=self.step + 1)
        return torch.stack([value.detach().float() for value in (loss, norm, *losses.values())])

    def _step_seed(self, epoch: int, index: int) -> int:
        return derive_seed(self.recipe.seed, "model", epoch, index, self.accelerator.process_index)

    def _check_finite(self) -> list[list[float]]:
        rows = torch.stack(self.pending).tolist() if self.pending else []
        for row, step in zip(rows, range(self.step - len(rows), self.step), strict=True):
            if not all(math.isfinite(value) for value in row):
                raise ZooError(
                    f"step {step + 1} of {self.total_steps}: loss {row[0]:.4g}, gradient norm {row[1]:.4g} not finite; "
                    "lower lr, lengthen warmup, or use precision: float32 (the last checkpoint is from before)"
                )
        return rows

    def _summary(self) -> dict[str, Any]:
        rows = self._check_finite()
        self.pending = []
        means = torch.tensor(rows, dtype=torch.float64).mean(dim=0)
        loss, norm, *parts = self.accelerator.reduce(means.to(self.device, torch.float32), "mean").tolist()
        self.last_loss = loss
        return {
            "step": self.step,
            "epoch": round(self.step / self.task.steps_per_epoch, 4),
            "loss": loss,
            **{f"loss/{name}": value for name, value in zip(self.parts, parts, strict=True)},
            "grad_norm": norm,
            "lr": max(group["lr"] for group in self.optimizer.param_groups),
        }

    def _stop_reason(self, stop: StopRequest, log_every: int) -> str | None:
        reason = stop.reason()
        if self.accelerator.num_processes == 1:
            return reason
        if self.step % log_every:  # processes must agree, which costs a message: not at every step
            return None
        asked = self.accelerator.reduce(torch.tensor([float(reason is not None)], device=self.device), "sum")
        return (reason or "another process was asked to stop") if asked.item() else None

    def _checkpoint_due(self, epoch_ends: bool, epoch: int, saved: tuple[int, float]) -> bool:
        recipe = self.recipe
        if epoch_ends and recipe.checkpoint_every and epoch % recipe.checkpoint_every == 0:
            return True
        return bool(recipe.checkpoint_seconds) and time.monotonic() - saved[1] >= recipe.checkpoint_seconds

    def _save(self) -> None:
        self._check_finite()
        if self.main:
            save_checkpoint(self.output, self.state())

    def _compile(self) -> nn.Module:
        """The network as CUDA graphs, else compiled, else eager: the first whose step agrees with the eager one."""
        inputs, _ = self.task.batch(*divmod(self.step, self.task.steps_per_epoch))
        for graphs in self._graph_choices():
            compiled = compile_model(self.net, graphs=graphs)
            problem = compiled_step_problem(
                self.model,
                self.net,
                compiled,
                lambda net: projection(call_model(net, inputs)),
                self._step_seed(0, 0),
                REPLAYED if graphs else 1,
            )
            failures = self.accelerator.reduce(torch.tensor([float(problem is not None)], device=self.device), "sum")
            if not failures.item():
                self.compiled = True
                return compiled
            what = "CUDA graphs" if graphs else "torch.compile"
            warnings.warn(f"training without {what}: {problem or 'it failed in another process'}", stacklevel=2)
            torch.compiler.reset()
        return self.net

    def _graph_choices(self) -> tuple[bool, ...]:
        return (True, False) if self.device.type == "cuda" and self.accelerator.num_processes == 1 else (False,)

    def _export(self, command: str | None) -> None:
        import zoo

        recipe = self.recipe
        tuned = self.tuning.finish(self.smoothed)
        self.smoothed.config["model"]["drop_path"] = 0.0  # type: ignore[index]
        zoo.save(self.smoothed, self.output, dtype=recipe.weights_dtype)
        cuda = self.device.type == "cuda"
        record = {
            "name": recipe.model,
            "command": command,
            "recipe": recipe.to_dict(),
            "epochs": recipe.epochs,
            "steps": self.step,
            "seed": recipe.seed,
            "device": torch.cuda.get_device_name(self.device) if cuda else platform.processor() or platform.machine(),
            "processes": self.accelerator.num_processes,
            "compiled": self.compiled,
            "duration_s": round(self.seconds, 1),
            "final_train_loss": self.last_loss,
            "parameters": sum(p.numel() for p in self.smoothed.parameters()),
            "data": self.task.facts,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {"torch": torch.__version__, "zoo": zoo.__version__},
            **tuned,
            **self.task.evaluate(self.smoothed, recipe.precision),
        }
        partial = self.output / f"{RECORD}.tmp"
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, self.output / RECORD)
        (self.output / CHECKPOINT).unlink(missing_ok=True)
