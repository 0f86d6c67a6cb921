"""The training loop on accelerate: the same steps, in the same order, whether or not the run was interrupted."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import time
import warnings
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.encodings.base import AttentionEncoding
from zoo.errors import ConfigError, ZooError
from zoo.model_inputs import call_model
from zoo.progress import Update, progress_bar
from zoo.sources import locate
from zoo.training.checkpoint import CHECKPOINT, check_same_run, load_checkpoint, remove_partials, save_checkpoint
from zoo.training.compile_check import REPLAYED, begin_step, compile_model, compiled_step_problem, projection
from zoo.training.devices import accelerator_for, matmul_precision
from zoo.training.metrics import MetricsLog
from zoo.training.optim import make_ema, make_optimizer, make_schedule
from zoo.training.recipe import Recipe, task_class
from zoo.training.record import RECORD, read_record, write_record
from zoo.training.replicas import distribute
from zoo.training.seeds import derive_seed, seed_device
from zoo.training.stopping import StopRequest
from zoo.training.task import Task, batches, check_model, loss_parts
from zoo.training.tuning import Tuning, prepare_model

__all__ = ["METRICS", "RECORD", "TrainResult", "Trainer", "train"]

METRICS = "metrics.jsonl"


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
        resume: Continue the run in `recipe.output` from its checkpoint; from the beginning where there is none, so that
            the same call can be repeated until the run is finished.
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
    if resume and (record := read_record(output)) is not None:
        steps = record["steps"]
        return TrainResult(output, True, steps, steps, record["final_train_loss"], record["duration_s"])
    if not resume and any((output / name).exists() for name in (CHECKPOINT, METRICS, RECORD, "model.safetensors")):
        raise ConfigError(f"{output} already holds a run: continue it with --resume or choose another --out")
    with (
        StopRequest(recipe.max_minutes) as stop,
        accelerator_for(recipe) as accelerator,
        matmul_precision(),
        closing(Trainer(recipe, accelerator, output, quiet=quiet)) as trainer,
    ):
        if resume and (output / CHECKPOINT).exists():
            trainer.load(load_checkpoint(output))
        elif resume and trainer.main:
            warnings.warn(f"{output}: no checkpoint to resume from: the run starts at its first step", stacklevel=2)
        return trainer.run(stop, command)


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
            self.task: Task = kind(recipe.part_of_step(), quiet=self.quiet)
        self.per_epoch = self.task.steps_per_epoch // recipe.accumulate
        if not self.per_epoch:
            raise ConfigError(f"batch_size {recipe.batch_size} is more than the training samples")
        self.total_steps = min(recipe.epochs * self.per_epoch, recipe.steps or sys.maxsize)
        self.model = self._build_model().to(self.device)
        self.task.start(self.model, self.device, accelerator.process_index, accelerator.num_processes)
        self.ema = make_ema(self.model, recipe)
        self.optimizer = make_optimizer(self.model, recipe)
        self.schedule = make_schedule(self.optimizer, recipe, self.total_steps)
        self.encodings = [module for module in self.model.modules() if isinstance(module, AttentionEncoding)]
        self.replicas = distribute(accelerator, self.model, self.optimizer, self.ema)
        self.net = self.replicas.net
        world = accelerator.num_processes
        # After the parameters have been replaced, where they are divided.
        self.tuning = Tuning(self.model, recipe, self.optimizer, self.total_steps, world)
        self.step = 0
        self.losses: list[Tensor] = []  # (loss, parts of the loss) of the parts of this step that are done
        self.seconds = 0.0
        # (loss, gradient norm, parts of the loss) of the steps since the last metrics line, and what the parts are.
        self.pending: list[Tensor] = []
        self.loss_names: list[str] = []
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
        """The model that is evaluated and exported; all processes ask for it together."""
        return self.replicas.smoothed

    def state(self) -> dict[str, Any]:
        """Everything that a continuation needs; random numbers follow from the step. All processes call it together."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "pending": [row.tolist() for row in self.pending],
            "parts": self.loss_names,
            "last_loss": self.last_loss,
            **self.replicas.state(),
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
        self.loss_names = state.get("parts", [])
        self.replicas.load(state)
        self.tuning.load(state.get("tuning"))

    def run(self, stop: StopRequest, command: str | None = None) -> TrainResult:
        """Trains to the end or until `stop` asks; writes the files."""
        if self.main:
            self.output.mkdir(parents=True, exist_ok=True)
            remove_partials(self.output)
        self.accelerator.wait_for_everyone()
        if self.recipe.compile and self.step < self.total_steps:
            self.net = self._compile()
        with progress_bar("training", self.total_steps, self.quiet) as update:
            log = MetricsLog(self.output / METRICS, self.step) if self.main else None
            with closing(log) if log else nullcontext():
                reason = self._steps(stop, log, update)
        if reason is None:
            self._export(command)
        self.accelerator.wait_for_everyone()
        return TrainResult(
            self.output, reason is None, self.step, self.total_steps, self.last_loss, self.seconds, reason
        )

    def _steps(self, stop: StopRequest, log: MetricsLog | None, update: Update) -> str | None:
        recipe, per_epoch = self.recipe, self.per_epoch
        log_every = recipe.log_every or min(per_epoch, 50)
        resumed_seconds, start = self.seconds, time.monotonic()
        logged, saved = (self.step, start), (self.step, start)
        parts = itertools.product(range(self.step, self.total_steps), range(recipe.accumulate))
        places = itertools.starmap(self._place, parts)
        for inputs, targets in batches(self.task, places, self.device):
            row = self._train_step(inputs, targets)
            if row is None:
                continue
            self.pending.append(row)
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
            reason, late = self._asked(stop, saved, log_every)
            self.seconds = resumed_seconds + time.monotonic() - start
            if self.tuning.selection.stopped:
                break
            if self.step < self.total_steps and (reason or late or self._checkpoint_due(epoch_ends, epoch)):
                self._save(log)
                saved = self.step, time.monotonic()
            if reason and self.step < self.total_steps:
                return reason
        return None

    def _place(self, step: int, part: int) -> tuple[int, int]:
        """Epoch, and index in it, of the batch that is a part of a step."""
        epoch, index = divmod(step, self.per_epoch)
        return epoch, index * self.recipe.accumulate + part

    def _train_step(self, inputs: Any, targets: Any) -> Tensor | None:
        """Takes a part of a step; the last one changes the weights and gives (loss, gradient norm, parts of it)."""
        part, parts = len(self.losses), self.recipe.accumulate
        if part == 0:
            self.schedule.step_update(self.step)
            self.tuning.head_first.begin(self.step)
        seed = self._step_seed(*self._place(self.step, part))
        begin_step(self.device)
        seed_device(self.device, seed)
        if getattr(self.task, "draws_on_host", False):
            seed_device(torch.device("cpu"), seed)

        def loss() -> Tensor:
            losses = loss_parts(self.task.loss(call_model(self.net, inputs), targets))
            self.loss_names = list(losses)[1:]
            self.losses.append(torch.stack([value.detach().float() for value in losses.values()]))
            return losses["loss"] / parts

        self.replicas.backward(loss, last=part + 1 == parts)
        return self._update() if part + 1 == parts else None

    def _update(self) -> Tensor:
        self.tuning.head_first.drop_frozen(self.step)
        norm = self.replicas.clip(self.recipe.clip)
        self.optimizer.step()
        for encoding in self.encodings:
            encoding.project_parameters()
        self.optimizer.zero_grad(set_to_none=True)
        self.replicas.update_average(self.step + 1)
        means = torch.stack(self.losses).mean(dim=0)
        self.losses = []
        return torch.cat([means[:1], norm.detach().float().reshape(1), means[1:]])

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
            "epoch": round(self.step / self.per_epoch, 4),
            "loss": loss,
            **{f"loss/{name}": value for name, value in zip(self.loss_names, parts, strict=True)},
            "grad_norm": norm,
            "lr": max(group["lr"] for group in self.optimizer.param_groups),
        }

    def _asked(self, stop: StopRequest, saved: tuple[int, float], log_every: int) -> tuple[str | None, bool]:
        """Why to stop now, if at all, and whether the last checkpoint is old; the same in all processes."""
        reason, limit = stop.reason(), self.recipe.checkpoint_seconds
        late = bool(limit) and time.monotonic() - saved[1] >= limit
        if self.accelerator.num_processes == 1:
            return reason, late
        if self.step % log_every:  # processes must agree, which costs a message: not at every step
            return None, False
        asked = torch.tensor([float(reason is not None), float(late and self.main)], device=self.device)
        stops, late = (value > 0 for value in self.accelerator.reduce(asked, "sum").tolist())
        return ((reason or "another process was asked to stop") if stops else None), late

    def _checkpoint_due(self, epoch_ends: bool, epoch: int) -> bool:
        every = self.recipe.checkpoint_every
        return bool(every) and epoch_ends and epoch % every == 0

    def _save(self, log: MetricsLog | None) -> None:
        self._check_finite()
        if self.pending and self.accelerator.num_processes > 1:  # What is saved is that of all processes.
            self.pending = list(self.accelerator.reduce(torch.stack(self.pending), "mean"))
        state = self.state()
        if log:
            log.sync()
            save_checkpoint(self.output, state)

    def _compile(self) -> nn.Module:
        """The network as CUDA graphs, else compiled, else eager: the first whose step agrees with the eager one."""
        if self.replicas.sharded:
            warnings.warn("training without torch.compile: it is not used together with FSDP2", stacklevel=2)
            return self.net
        inputs, _ = self.task.batch(*self._place(self.step, 0))
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

        model = self.smoothed
        tuned = self.tuning.finish(model)
        measured = self.task.evaluate(model, self.recipe.precision)
        if not self.main:
            return
        model.config["model"]["drop_path"] = 0.0  # type: ignore[index]
        zoo.save(model, self.output, dtype=self.recipe.weights_dtype)
        facts = {
            "command": command,
            "steps": self.step,
            "processes": self.accelerator.num_processes,
            "compiled": self.compiled,
            "duration_s": round(self.seconds, 1),
            "final_train_loss": self.last_loss,
            "parameters": sum(p.numel() for p in model.parameters()),
            "data": self.task.facts,
            **tuned,
            **measured,
        }
        write_record(self.output, self.recipe, self.device, facts)
