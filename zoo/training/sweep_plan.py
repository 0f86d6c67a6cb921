"""What a sweep does: its settings, how they are measured, and what published numbers its table stands beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zoo.errors import ConfigError
from zoo.training.recipe import Recipe, load_recipe
from zoo.training.settings import parse, read_settings

__all__ = ["About", "Needs", "Paper", "Run", "Sweep", "built_in_sweeps", "load_sweep", "merged"]

T = TypeVar("T")

# What a dry run changes of every run: whatever the recipe is, it takes a second or two on a CPU.
DRY: dict[str, Any] = {
    "epochs": 1,
    "steps": 2,
    "batch_size": 2,
    "precision": "float32",
    "compile": False,
    "ema": 0.0,
    "checkpoint_seconds": 0.0,
    "model_options": {"depth": 1},
}
DRY_SIZES, DRY_SAMPLES = 2, 2


@dataclasses.dataclass(frozen=True)
class Paper:
    """A published number beside a row of the table.

    Attributes:
        value: In the unit of the sweep's main metric; `None` where there is only something to say.
        std: Its standard deviation over seeds, where it is known.
        comparable: Whether it was measured on the same data in the same way; if not, no figure shows it.
        note: What the number is of, where that is not plain.
    """

    value: float | None = None
    std: float | None = None
    comparable: bool = True
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Data that a sweep needs.

    Attributes:
        files: Names in the folder, as shell patterns, of which one must be there; `--data` may also be a file itself.
        source: Where they come from.
        licence: Their terms.
    """

    files: tuple[str, ...]
    source: str
    licence: str


@dataclasses.dataclass(frozen=True)
class About:
    """What a sweep reproduces.

    Attributes:
        reproduces: Paper, and the table or section.
        difference: How our setting differs from the paper's, in a sentence or two.
        needs: Its data; `None` where they are made up.
        minutes: On one H200, for all of it; `None` as long as nobody has measured that.
        minutes_note: What the minutes are of, where they are not of everything.
        size: What sizes are, for headings and axes.
        plot: Rows that the figure shows, as `rope` or `rope with yarn`; empty for all.
    """

    reproduces: str
    difference: str
    needs: Needs | None = None
    minutes: float | None = None
    minutes_note: str = ""
    size: str = "size"
    plot: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """One setting of a sweep, with one training run per seed.

    Attributes:
        name: Names its files and its row; of letters, digits and `+-_.`.
        model: Registered name that is trained.
        seeds: Seeds of its runs.
        encoding: Another position encoding than that of the model.
        encoding_options: Options of the encoding.
        settings: Recipe keys that this run has otherwise, such as `dataset_options`, or fewer `epochs`.
        extend: Methods of context extension that the run of the first seed is measured with, beside none.
        paper: The published number of this setting.
        note: What a reader of its row must know.
    """

    name: str
    model: str
    seeds: tuple[int, ...] = (0,)
    encoding: str | None = None
    encoding_options: dict[str, Any] | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    extend: tuple[str, ...] = ()
    paper: Paper | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "+-_." for c in self.name) or self.name.startswith("."):
            raise ConfigError(f"sweep: a run's name has letters, digits and + - _ . only, got {self.name!r:.60}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"sweep: run {self.name}: seeds must be different whole numbers, at least one")

    def model_options(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load`."""
        options = {"encoding": self.encoding, "encoding_options": self.encoding_options}
        return {key: value for key, value in options.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep does.

    Attributes:
        recipe: Name or path of the recipe of all runs.
        runs: Settings, the most important first.
        sizes: At which every run is measured: sides in pixels, tokens, or what else the data grow by; empty for what
            the evaluation takes by default.
        trained_size: The size of training, above which extensions are measured; `None` is that of the model's inputs.
        metrics: Names in the results of the evaluation; the first is the one of the table.
        split: Of the measurement.
        data: Of the measurement, where it is a made-up task: its name. No data are needed then.
        limit: Only the first samples are measured; `None` for all.
        dtype: Of the measurement, see `zoo.evaluate.evaluate`.
        extend_every_seed: Extensions are measured on the runs of all seeds.
        settings: Recipe keys that replace those of the file.
        dry_run: Recipe keys that a dry run needs otherwise, besides those of `DRY`.
        about: What it reproduces.
        dry: Whether this is the sweep of a dry run, see `dry_sweep`.
    """

    recipe: str
    runs: tuple[Run, ...]
    sizes: tuple[int, ...] = ()
    trained_size: int | None = None
    metrics: tuple[str, ...] = ("top1",)
    split: str = "validation"
    data: str | None = None
    limit: int | None = None
    dtype: str = "float32"
    extend_every_seed: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    dry_run: dict[str, Any] = dataclasses.field(default_factory=dict)
    about: About | None = None
    dry: bool = dataclasses.field(default=False, metadata={"internal": True})

    def __post_init__(self) -> None:
        if not self.metrics or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError("sweep: metrics must be different names, at least one")
        if self.about is not None:
            self.named([row.partition(" with ")[0] for row in self.about.plot])

    def named(self, only: Sequence[str]) -> list[Run]:
        """The runs of these names, in the order of the sweep; all of them for none.

        Raises:
            ConfigError: If `only` names a run that is not there.
        """
        known = [run.name for run in self.runs]
        if missing := [name for name in only if name not in known]:
            raise ConfigError(f"sweep: no run {missing[0]!r}; its runs: {', '.join(known)}")
        return [run for run in self.runs if not only or run.name in only]

    def jobs(self, only: Sequence[str] = ()) -> list[tuple[Run, int]]:
        """Runs and seeds in the order of work: all first seeds, then all second ones, and so on.

        Raises:
            ConfigError: If `only` names a run that is not there.
        """
        runs = self.named(only)
        rounds = max(len(run.seeds) for run in runs)
        return [(run, run.seeds[turn]) for turn in range(rounds) for run in runs if turn < len(run.seeds)]

    def methods(self, run: Run, seed: int) -> tuple[str, ...]:
        """Methods of extension that a run is measured with; `"none"` is the model as it is."""
        extended = self.extend_every_seed or seed == run.seeds[0]
        return ("none", *(run.extend if extended else ()))

    def settings_of(self, run: Run) -> dict[str, Any]:
        """Recipe keys that a run has otherwise than the recipe, but model, encoding, data and seed."""
        return merged(self.settings, run.settings)

    def recipe_of(self, run: Run, seed: int, data: str | None, folder: Path, device: str | None = None) -> Recipe:
        """The recipe of a training run.

        Args:
            run: One of `runs`.
            seed: One of its seeds.
            data: Of training; made-up tasks have none.
            folder: Where the run is kept.
            device: `"cpu"` or `"cuda"`; `None` leaves it to the recipe.

        Raises:
            ConfigError: If there is no such recipe, or the settings do not fit it.
        """
        options = {"model_options": run.model_options()}
        changed = merged(self.settings_of(run), options, *((DRY, self.dry_run) if self.dry else ()))
        own: dict[str, Any] = {"model": run.model, "data": data, "output": str(folder), "seed": seed}
        own |= {} if device is None else {"device": device}
        return load_recipe(self.recipe, {**changed, **own})

    def dry_sweep(self) -> Sweep:
        """The same with one seed of every run, two steps of training, and little that is measured."""
        runs = tuple(dataclasses.replace(run, seeds=run.seeds[:1]) for run in self.runs)
        return dataclasses.replace(self, runs=runs, sizes=self.sizes[:DRY_SIZES], limit=DRY_SAMPLES, dry=True)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings on top of each other, the last on top; values that are mappings themselves are merged too."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            below = found.get(key)
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                found[key] = {**below, **value}
            else:
                found[key] = value
    return found


def built_in_sweeps() -> dict[str, Path]:
    """Name -> file of the sweeps that come with the modalities."""
    import modalities

    files = sorted(path for root in modalities.__path__ for path in Path(root).glob("*/sweeps/*.yaml"))
    return {path.stem: path for path in files}


def load_sweep(config: str | Path) -> Sweep:
    """Reads a sweep.

    Args:
        config: Path of a YAML file, or the name of a built-in sweep.

    Raises:
        ConfigError: If there is no such sweep, or it is not a good one.
    """
    path, values = read_settings(config, built_in_sweeps(), "sweep")
    if not isinstance(values.get("runs"), list) or not values["runs"]:
        raise ConfigError(f"{path}: a sweep is a mapping with a list of runs")
    runs = []
    for number, row in enumerate(values["runs"], start=1):
        where = f"{path}: run {number}"
        runs.append(parse(Run, _nested(row if isinstance(row, Mapping) else {}, "paper", Paper, where), where))
    if len({run.name for run in runs}) != len(runs):
        raise ConfigError(f"{path}: two runs have the same name")
    if isinstance(values.get("about"), Mapping):
        values = {**values, "about": _nested(values["about"], "needs", Needs, f"{path}: about")}
    values = _nested(values, "about", About, str(path))
    return parse(Sweep, {**values, "runs": tuple(runs)}, str(path))


def _nested(values: Mapping[str, Any], key: str, cls: type[T], where: str) -> dict[str, Any]:
    """Values with the mapping of one key made into its class."""
    inner = values.get(key)
    if not isinstance(inner, Mapping):
        return dict(values)
    return {**values, key: parse(cls, inner, f"{where}: {key}")}
