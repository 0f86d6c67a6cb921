"""What prediction needs to know of decoders: how a prompt becomes tokens, and how they are continued."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from modalities.sequence.bpe import BpeTokenizer
from modalities.sequence.data_config import SequenceDataConfig
from modalities.sequence.datasets.find import settings
from modalities.sequence.datasets.indexing import IndirectIndexing
from modalities.sequence.datasets.made import MadeUp
from modalities.sequence.generate import generate
from modalities.sequence.performance import PerformanceTokenizer
from modalities.sequence.presets import INDEX_CHARACTERS
from modalities.sequence.prompts import MOST_TOKENS, as_prompt, encode_prompt
from modalities.sequence.results import CONTINUATIONS, Continuation
from modalities.sequence.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    ChoraleTokenizer,
    DNATokenizer,
    RollTokenizer,
    tokenizer_from_dict,
)
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError, DataError
from zoo.predict_inputs import require_finite
from zoo.reading import Source

__all__ = ["NEW_TOKENS", "Prompts", "Request"]

NEW_TOKENS = {
    CharTokenizer.kind: 200,
    ByteTokenizer.kind: 200,
    DNATokenizer.kind: 200,
    ChoraleTokenizer.kind: 512,
    RollTokenizer.kind: 256,
    BpeTokenizer.kind: 100,
    PerformanceTokenizer.kind: 1024,
}
"""New tokens unless asked: of chorales 32 quarter notes. Of made-up tasks an answer."""
_NOTHING = {ChoraleTokenizer.kind: "chorale", RollTokenizer.kind: "roll", PerformanceTokenizer.kind: "performance"}
_HOTTEST = 1e6
_OPTIONS = ("progress", "seed", "temperature", "tokens")


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and how it is continued.

    Attributes:
        ids: int64 (N,) on the CPU.
        tokens: Most new ones.
        temperature: Of the draws.
        seed: Of the draws.
        placing: What places all tokens, `None`: they are counted.
        progress: Called with the share that is done, 0 to 1.
    """

    ids: Tensor
    tokens: int
    temperature: float
    seed: int
    placing: Callable[[Tensor], Coordinates] | None
    progress: Callable[[float], None] | None


class Prompts:
    """Makes token ids of prompts, and continues them.

    A source is a prompt, see `modalities.sequence.prompts.as_prompt`; `None` begins with the start token, of models of
    music. Each is continued by itself with random numbers from the CPU, so that the same seed gives the same result
    whatever other prompts there are, and on every device as far as its arithmetic agrees. The start token, which is
    read and never predicted, is not drawn.

    Tokens of made-up tasks are placed as in training.

    Args:
        model: A decoder.
        data_config: Its tokenizer and data set.

    Raises:
        ConfigError: If a size was asked for, the model has no tokenizer or one that does not fit, or where its tokens
            are is not known.
    """

    kind = "sequence"
    timed = False
    most = 1

    def __init__(self, model: nn.Module, data_config: SequenceDataConfig) -> None:
        self.model_name = str(model.config["name"])  # type: ignore[index]
        if data_config is not model.data_config:
            raise ConfigError(f"size is not for decoders such as {self.model_name}: tokens says how many are made")
        if data_config.tokenizer is None:
            raise ConfigError(
                f"{self.model_name} has no tokenizer: what its tokens stand for is not known; continue token ids with "
                "zoo.load(name).generate(ids, max_new_tokens)"
            )
        self.tokenizer = tokenizer_from_dict(data_config.tokenizer)
        if self.tokenizer.vocab_size != model.num_classes:
            raise ConfigError(
                f"{self.model_name}: the tokenizer {self.tokenizer.kind!r} has {self.tokenizer.vocab_size} tokens, the "
                f"model {model.num_classes}"
            )
        self.task = _made_up(data_config)
        if self.task is not None and self.task.open("test").tokenizer != self.tokenizer:
            raise ConfigError(f"{self.model_name}: its tokenizer is not that of its data set, {self.task.name}")
        if model.coord_dim != 1 and data_config.dataset is None:
            raise ConfigError(
                f"{self.model_name}: its tokens have positions on {model.coord_dim} axes, and what gives them is not "
                "known; continue token ids with zoo.load(name).generate(ids, max_new_tokens, positions=...)"
            )
        self.result_types: dict[str, type[Continuation]] = {"generation": CONTINUATIONS[self.tokenizer.kind]}

    def sources(self, source: Any, options: Mapping[str, Any]) -> tuple[list[Source], bool]:
        """The prompt itself, and that it is one."""
        return [as_prompt(source, _NOTHING.get(self.tokenizer.kind, "no prompt"))], False

    def samples(self, source: Source, options: Mapping[str, Any]) -> Iterator[tuple[Request, dict[str, Any]]]:
        """A request and the fields of its result.

        Args:
            source: From `sources`.
            options: `tokens`: most new tokens, see `NEW_TOKENS`; `temperature`: 1 unless asked, 0 takes the likeliest
                always; `seed`: 0 unless asked; `progress`: called with the share that is done.

        Raises:
            ConfigError: If an option cannot be used.
            DataError: If the prompt cannot be used.
        """
        options = {key: value for key, value in options.items() if value is not None}
        if options.pop("errors", "raise") != "raise":
            raise ConfigError('errors="keep" is not for prompts, which are whole or not')
        if unknown := sorted(key for key in options if key not in _OPTIONS):
            raise ConfigError(f"unknown option {unknown[0]!r}; of decoders: {', '.join(_OPTIONS)}")
        tokens, temperature, seed = _checked(options, self._new_tokens())
        question = None if self.task is None else self.task.question
        ids = torch.from_numpy(encode_prompt(source, self.tokenizer, question))
        if len(ids) + tokens > MOST_TOKENS:
            raise DataError(
                f"{source.name}: {len(ids)} tokens and {tokens} new ones are more than the {MOST_TOKENS} that are made"
            )
        placing = None if self.task is None else self.task.placing(ids[None])
        path = source.value.value if isinstance(source.value.value, Path) else None
        made_by: dict[str, Any] = {"model": self.model_name, "seed": seed, "temperature": temperature}
        draft = {"name": source.name, "path": path, "prompt": ids.numpy(), "tokenizer": self.tokenizer, **made_by}
        yield Request(ids, tokens, temperature, seed, placing, options.get("progress")), draft

    def collate(self, inputs: list[Request], device: torch.device, dtype: torch.dtype) -> Tensor:
        """Token ids (B, N) of prompts of equal length."""
        return torch.stack([one.ids for one in inputs]).to(device)

    def results(
        self,
        model: Any,
        inputs: list[Request],
        drafts: list[dict[str, Any]],
        *,
        class_names: tuple[str, ...],
        min_score: float,
        top_k: int,
    ) -> list[Continuation]:
        """Continues prompts.

        Raises:
            WeightsError: If scores are not finite.
        """
        made = self.result_types["generation"]
        limit = None if top_k >= self.tokenizer.vocab_size else top_k
        found = []
        for one, draft in zip(inputs, drafts, strict=True):
            tokens = self._continued(model, one, draft["name"], limit)
            found.append(made(tokens=tokens[len(one.ids) :], top_k=limit, **draft))
        return found

    def video(self, path: str | os.PathLike[str], **_: object) -> NoReturn:
        """Sequences have no video.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"{path}: sequences make no video; save {', '.join(self.result_types['generation'].SUFFIXES)}"
        )

    def _continued(self, model: Any, one: Request, name: str, top_k: int | None) -> np.ndarray:
        parameter = next(model.parameters())
        done = 0

        def adjust(logits: Tensor) -> Tensor:
            nonlocal done
            require_finite(logits, name, parameter.dtype)
            done += 1
            if one.progress is not None:
                one.progress(done / one.tokens)
            if self.tokenizer.start is not None:
                logits = logits.clone()
                logits[:, self.tokenizer.start] = float("-inf")
            return logits

        tokens = generate(
            model,
            self.collate([one], parameter.device, parameter.dtype),
            one.tokens,
            temperature=one.temperature,
            top_k=top_k,
            stop_token=self._end(),
            positions=one.placing,
            generator=torch.Generator().manual_seed(one.seed),
            adjust=adjust,
        )
        if one.progress is not None and done < one.tokens:
            one.progress(1.0)
        return tokens[0].cpu().numpy()

    def _new_tokens(self) -> int:
        return NEW_TOKENS[self.tokenizer.kind] if self.task is None else self.task.answer_tokens

    def _end(self) -> int | None:
        """The token that ends an answer, or a document."""
        if isinstance(self.tokenizer, BpeTokenizer):
            return self.tokenizer.end
        if self.task is None or self.task.answer_end is None:
            return None
        return int(self.tokenizer.encode(self.task.answer_end)[0])


def _made_up(data_config: SequenceDataConfig) -> MadeUp | None:
    """The made-up task that a model was trained on."""
    stated = dict(data_config.dataset or {})
    if stated:
        return settings(stated.pop("name"), stated)
    # The registered networks for it, before they are trained.
    return IndirectIndexing() if (data_config.tokenizer or {}).get("characters") == INDEX_CHARACTERS else None


def _checked(options: Mapping[str, Any], new_tokens: int) -> tuple[int, float, int]:
    """Tokens, temperature and seed."""
    tokens, temperature, seed = (
        options.get("tokens", new_tokens),
        options.get("temperature", 1.0),
        options.get("seed", 0),
    )
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"tokens must be a whole number from 1 to {MOST_TOKENS}, not {tokens!r:.60}")
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature <= _HOTTEST:
        raise ConfigError(
            f"temperature must be a number from 0 (the likeliest token) to {_HOTTEST:g}, not {temperature!r:.60}"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r:.60}")
    return tokens, float(temperature), seed
