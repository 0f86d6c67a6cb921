"""Samples in memory, and batches of augmented tokens of constant shape, made by several threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from modalities.events.augment import Augmentation, Change, draw
from modalities.events.data_config import EventDataConfig
from modalities.events.datasets.base import ClipSet, EventSample, SceneSet
from modalities.events.prepare import prepare
from modalities.events.tokenizer import Tokens
from modalities.events.tokens import EventTokens
from zoo.errors import ConfigError
from zoo.progress import progress_bar

__all__ = ["SampleStore", "TokenBatches", "check_sensor", "tokens_of"]

_COUNTED = 1024  # samples whose tokens are counted to find how many places a batch needs
_SPARE = 1.05  # places more than the longest of them needs, since augmentation can add some
_BYTES = 17  # of an event in memory


def check_sensor(data: ClipSet | SceneSet, data_config: EventDataConfig) -> None:
    """Refuses a data set of another sensor than the model's.

    Raises:
        ConfigError: Says both sizes.
    """
    if (data.width, data.height) != (data_config.width, data_config.height):
        raise ConfigError(
            f"{data.name} has {data.width} x {data.height} pixels, the model takes {data_config.width} x "
            f"{data_config.height}"
        )


def tokens_of(sample: EventSample, data_config: EventDataConfig) -> Tokens:
    """The tokens of a sample, as `modalities.events.prepare` makes them."""
    return prepare(sample.events, data_config, start_us=sample.start_us, end_us=sample.end_us)


class SampleStore:
    """Samples of a data set, read once as far as they fit into memory, and whenever they are asked for beyond that.

    Args:
        data: Where they come from.
        indices: Which ones; number i of the store is `indices[i]` of the data.
        memory_gib: What their events may take.
        quiet: Show no progress bar.
    """

    def __init__(self, data: ClipSet | SceneSet, indices: np.ndarray, memory_gib: float, quiet: bool = True) -> None:
        self.data, self.indices = data, np.asarray(indices)
        self._kept: dict[int, EventSample] = {}
        left = memory_gib * 2**30
        with progress_bar(f"reading {data.name}", len(self.indices), quiet) as update:
            for index, events in data.read_all(self.indices.tolist()):
                left -= _BYTES * len(events)
                if left < 0:
                    break
                self._kept[index] = data.sample(index, events)
                update(len(self._kept), "")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, row: int) -> EventSample:
        index = int(self.indices[row])
        kept = self._kept.get(index)
        return kept if kept is not None else self.data.sample(index, self.data.read(index))


class TokenBatches:
    """Makes batches of one shape from the samples of a store.

    Args:
        store: The samples.
        data_config: Tokenizer and clock of the model.
        steps: Augmentations.
        max_tokens: Places of every sample; of longer ones the latest tokens stay. `None` takes a twentieth more than
            the longest of up to 1,024 samples has without augmentation.
        workers: Threads.
    """

    def __init__(
        self,
        store: SampleStore,
        data_config: EventDataConfig,
        steps: Sequence[Augmentation] = (),
        max_tokens: int | None = None,
        workers: int = 8,
    ) -> None:
        self.store, self.data_config, self.steps = store, data_config, tuple(steps)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tokens")
        self._workers = workers
        rows = np.unique(np.linspace(0, len(store) - 1, min(len(store), _COUNTED)).astype(np.int64)).tolist()
        lengths = np.array(list(self._pool.map(lambda row: len(tokens_of(store[row], data_config)), rows)))
        longest = max(1, int(lengths.max()))
        self.length = max_tokens or 8 * math.ceil(_SPARE * longest / 8)
        self.facts = {
            "tokens": self.length,
            "mean_tokens": round(float(lengths.mean()), 1),
            "longest_tokens": longest,
            "samples_over_tokens": round(float((lengths > self.length).mean()), 4),
        }
        # Counts go up to the threshold: one byte each where that is enough.
        self._dtype: Any = np.uint8 if data_config.threshold <= 255 else np.int16

    def __call__(self, rows: Sequence[int], seed: int) -> tuple[EventTokens, list[EventSample]]:
        """A batch; depends on the arguments alone.

        Args:
            rows: Samples of the store.
            seed: Of all augmentation in the batch.

        Returns:
            Tokens of shape (len(rows), `length`), patches uint8 or int16, on the CPU; and the augmented samples.
        """
        config = self.data_config
        rng = np.random.default_rng(seed)
        changes = [draw(self.steps, rng, (config.height, config.width)) for _ in rows]
        shape = (len(rows), self.length)
        volume = (2, config.buckets, config.patch_size, config.patch_size)
        out = {name: np.zeros(shape, np.int64) for name in ("x", "y", "t_us")}
        out |= {"patches": np.zeros((*shape, *volume), self._dtype), "mask": np.zeros(shape, np.bool_)}
        # A few samples for each thread at a time: handing over costs more than a small sample.
        size = math.ceil(len(rows) / self._workers)

        def make(start: int) -> list[EventSample]:
            places = range(start, min(start + size, len(rows)))
            return [self._fill(place, self.store[rows[place]], changes[place], out) for place in places]

        parts = self._pool.map(make, range(0, len(rows), size))
        samples = [sample for part in parts for sample in part]
        return EventTokens(**{name: torch.from_numpy(array) for name, array in out.items()}), samples

    def _fill(self, place: int, sample: EventSample, change: Change, out: dict[str, np.ndarray]) -> EventSample:
        sample = change(sample) if self.steps else sample
        tokens = tokens_of(sample, self.data_config)
        count = min(len(tokens), self.length)
        first = len(tokens) - count
        for name in ("x", "y", "t_us", "patches"):
            out[name][place, :count] = getattr(tokens, name)[first:]
        out["mask"][place, :count] = True
        return sample

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()
