"""Training of decoders: every token is predicted from those before it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from modalities.sequence.augment import Transpose
from modalities.sequence.batch import IGNORED
from modalities.sequence.data_config import SequenceDataConfig
from modalities.sequence.datasets import SequenceSet, open_sequences, splits
from modalities.sequence.evaluate import score
from modalities.sequence.options import SequenceOptions
from modalities.sequence.tokenizers import tokenizer_from_dict
from zoo.sharing import Share
from zoo.sources import locate
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["SequenceGeneration"]


class SequenceGeneration:
    """Task `sequence-generation`; see `zoo.training.task.Task`.

    Args:
        recipe: With `options` of type `SequenceOptions`.
        quiet: Not used: nothing here takes long.

    Raises:
        ConfigError: If there are no data where they are needed.
        DataError: If they cannot be used.
    """

    Options = SequenceOptions
    modality, task = "sequence", "generation"
    labels: list[str] | None = None

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        self.recipe, self.options = recipe, recipe.options
        self.data = self._opened("train", self._own_tokenizer())
        self.num_classes = self.data.tokenizer.vocab_size
        self.order = EpochOrder(self.data.samples, recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch
        semitones = self.options.transpose
        self.transpose = Transpose(semitones, self.data.tokenizer) if semitones else None
        self._dev: SequenceSet | None = None  # Opened now: what is wrong with it is not to be found after training.
        if "validation" in splits(self.options.dataset, recipe.data):
            self._dev = self._opened("validation", self.data.tokenizer)

    def _own_tokenizer(self) -> Any:
        """That of the network, where its weights know it; other networks get that of the data."""
        stated = (
            locate(self.recipe.model, pretrained=True).config["data"].get("tokenizer")
            if self.recipe.pretrained
            else None
        )
        return None if stated is None else tokenizer_from_dict(stated)

    def _opened(self, split: str, tokenizer: Any) -> SequenceSet:
        options = self.options
        return open_sequences(
            options.dataset,
            self.recipe.data,
            split,
            length=options.length,
            tokenizer=tokenizer,
            options=options.dataset_options,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        data = self.data
        return {"name": data.name, "sha256": data.sha256, "samples": data.samples, "length": data.length}

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes, "coord_dim": self.data.axes, "input_size": self.data.length}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Puts the data on the device, and tells the model its tokenizer and data set.

        Raises:
            ConfigError: If the batch cannot be divided.
        """
        self.order.start(torch.device("cpu"), rank, world)
        self.rank, self.device = rank, device
        self.share = Share(rank, world)
        self.data.start(device)
        stated: Any = model.data_config
        known: SequenceDataConfig = stated.replace(
            tokenizer=self.data.tokenizer.to_dict(),
            dataset={"name": self.options.dataset, **self.options.dataset_options},
        )
        described: Any = model
        described.data_config = known
        described.config["data"] = known.to_dict()

    def batch(self, epoch: int, index: int) -> tuple[Any, Tensor]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Token ids int64 (B, N), or these and their positions; targets int64 (B, N), of which
            `IGNORED` are not scored. On the device.
        """
        seed = derive_seed(self.recipe.seed, epoch, index, self.rank)
        batch = self.data.batch(self.order.rows(epoch, index), seed)
        if self.transpose is not None:
            batch = self.transpose(batch, Generator().manual_seed(derive_seed(seed, "transpose")))
        return batch.inputs, batch.targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32 of the tokens that are scored."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Scores of the validation split, see `modalities.sequence.evaluate.score`; none where there is none."""
        if self._dev is None:
            return {}
        self._dev.start(self.device)
        dtype = "bfloat16" if precision == "bf16" else "float32"
        about: Any = {"dtype": dtype, "limit": self.options.dev_limit or None, "share": self.share}
        scores = score(model, self._dev, self._dev.trained_size(), **about)
        return {f"dev_{key}": value for key, value in scores.items() if key != "tokens"}
