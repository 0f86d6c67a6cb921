"""How well decoders predict: negative log-likelihood and accuracy, at the size of training and at larger ones."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.sequence.batch import IGNORED
from modalities.sequence.bpe import BpeTokenizer
from modalities.sequence.datasets import SequenceSet, open_sequences
from modalities.sequence.datasets.find import MADE_UP, dataset_at
from modalities.sequence.tokenizers import tokenizer_from_dict
from zoo.encodings.extendable import extended
from zoo.encodings.extension import Extension, parse_extension
from zoo.errors import ConfigError
from zoo.evaluate import data_facts, evaluating, report
from zoo.model_inputs import call_model
from zoo.progress import progress_bar
from zoo.sharing import ALONE, Share

__all__ = ["evaluate_sequences", "extension_for", "score"]

_PART = 1 << 24  # Logits that become nats at a time.
_LARGEST = 700.0  # Nats, below those whose exponential is too large for a float.


@torch.inference_mode()
def score(
    model: nn.Module,
    data: SequenceSet,
    size: int,
    *,
    dtype: str = "float32",
    limit: int | None = None,
    share: Share = ALONE,
) -> dict[str, float]:
    """Scores a decoder on a split.

    Args:
        model: On the device where the data are; left in the mode it was in.
        data: The split, started.
        size: See `SequenceSet.scored`.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        limit: Only so many sequences.
        share: Of this process, where several evaluate together; all of them get the results of all sequences.

    Returns:
        `nll`, the mean negative log-likelihood of a token in nats; `accuracy`, percent of tokens that got the largest
        logit; `exact`, percent of sequences without a wrong one, of made-up tasks; `nll_frame`, nats of a frame of
        music; `perplexity`, of text in pieces of a vocabulary; `tokens`, how many were scored.

    Raises:
        ConfigError: If there are no sequences of this size.
    """
    device = next(model.parameters()).device
    # Of each batch: nats, tokens, right, sequences without a fault, ends, sequences.
    sums: dict[int, Tensor] = {}
    with evaluating(model, dtype) as autocast:
        for number, batch in enumerate(data.scored(size, limit)):
            if number % share.world != share.rank:
                continue
            with autocast():
                logits: Tensor = call_model(model, batch.inputs)
            targets, asked = batch.targets, batch.targets != IGNORED
            nats = _nats(logits, targets)
            right = (logits.argmax(dim=-1) == targets) & asked
            ends = targets == (IGNORED - 1 if data.frame_end is None else data.frame_end)
            faultless = (right == asked).all(dim=1)
            parts = (nats, asked, right, faultless, ends, torch.ones(len(targets), device=device))
            sums[number] = torch.stack([part.sum(dtype=torch.float64) for part in parts])
    own = dict(zip(sums, torch.stack(list(sums.values())).cpu() if sums else (), strict=True))
    every = {number: part for parts in share.gather(own) for number, part in parts.items()}
    # Added in the order of the batches, however many processes there are.
    total = sum((every[number] for number in sorted(every)), torch.zeros(6, dtype=torch.float64))
    nats_, tokens, hits, exact, frames, sequences = total.tolist()
    found = {"nll": nats_ / tokens, "accuracy": 100 * hits / tokens}
    if isinstance(data.tokenizer, BpeTokenizer):
        found["perplexity"] = math.exp(found["nll"]) if found["nll"] < _LARGEST else math.inf
    if data.made_up:
        found["exact"] = 100 * exact / sequences
    if data.frame_tokens is not None:
        found["nll_frame"] = nats_ / tokens * data.frame_tokens
    if data.frame_end is not None:
        found["nll_frame"] = nats_ / max(frames, 1)
    return {**found, "tokens": tokens}


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Of every target, flat; in parts, since a large vocabulary in float32 takes several times what the logits do."""
    rows, wanted = logits.flatten(0, 1), targets.flatten()
    step = max(1, _PART // rows.shape[-1])
    parts = zip(rows.split(step), wanted.split(step), strict=True)
    return torch.cat([F.cross_entropy(part.float(), of, ignore_index=IGNORED, reduction="none") for part, of in parts])


def extension_for(model: Any, method: str, factor: float) -> Extension:
    """A context extension of a decoder.

    Args:
        model: A decoder.
        method: A name of `zoo.encodings.extension.METHODS`.
        factor: New length over that of training.

    Raises:
        ConfigError: If the method is unknown, or the factor below 1.
    """
    extent = [float(model.data_config.length)] * int(model.coord_dim)
    # Dynamic NTK measures the length of each sequence itself.
    given = 1.0 if method == "dynamic-ntk" else factor
    found = parse_extension({"extend": str(method), "factor": given, "extent": extent})
    assert found is not None
    return found


def evaluate_sequences(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "validation",
    sizes: Sequence[int | tuple[int, int]] | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    skip_bad: bool = False,
    quiet: bool = True,
    command: str | None = None,
    share: Share = ALONE,
) -> dict[str, Any]:
    """Scores a decoder on data from disk, or on a made-up task, at several sizes.

    Args:
        model: On the device to use, with the tokenizer of its data.
        data: File or folder; of made-up tasks their name, such as `index`.
        split: `"train"`, `"validation"` or `"test"`, of those that the data have.
        sizes: Tokens of a window, or of made-up tasks columns or pictures; `None` = that of training, and larger ones.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: `None`: sequences are batched by their length.
        limit: Only the first sequences of each size; `None` = all.
        dtype: Of autocast, or `"float32"`.
        extend: Context extension at sizes above that of training.
        factor: Its factor; `None` = size / that of training.
        skip_bad: `False`: a damaged file is an error.
        quiet: Show no progress bar.
        command: For the report.
        share: See `score`.

    Returns:
        As `zoo.evaluate.evaluate_data`; results have what `score` gives.

    Raises:
        ConfigError: If model and data do not fit, or a setting is not one for sequences.
        DataError: If the data cannot be used.
    """
    if skip_bad or batch_size is not None:
        raise ConfigError("sequences are batched by their length, and damaged files an error: no skip_bad, batch_size")
    opened = _opened(model, data, split)
    opened.start(next(model.parameters()).device)
    if opened.tokenizer.vocab_size != int(model.num_classes):  # type: ignore[arg-type]
        raise ConfigError(
            f"{opened.name} has {opened.tokenizer.vocab_size} tokens, the model {model.num_classes}: not its data"
        )
    asked = _whole(sizes) if sizes is not None else opened.default_sizes()
    own = opened.trained_size()
    results: list[dict[str, Any]] = []
    with progress_bar("evaluating", len(asked), quiet) as update:
        for done, size in enumerate(asked, start=1):
            ratio = (size / own if factor is None else factor) if size > own else 1.0
            extension = None if extend is None else extension_for(model, extend, ratio)
            began = time.perf_counter()
            with extended(model, extension) if extension is not None else nullcontext():
                scores = score(model, opened, size, dtype=dtype, limit=limit, share=share)
            speed = scores["tokens"] / (time.perf_counter() - began)
            row = {"size": size, "condition": f"{size} {opened.what}", **scores, "images_per_s": speed}
            results.append(row if extend is None else {**row, "extend": extend, "factor": [ratio]})
            update(done, f"{size} {opened.what}")
    facts = data_facts(opened, opened.split, round(results[0]["tokens"]))
    return report(model, results, **facts, name=name, command=command, dtype=dtype)


def _opened(model: Any, data: str | os.PathLike[str], split: str) -> SequenceSet:
    """The split that a decoder is measured on: of its own data set, found at `data`."""
    config = model.data_config
    stated = dict(config.dataset or {})
    own = stated.pop("name", None)
    asked = str(data)
    if asked in MADE_UP:
        return open_sequences(asked, None, split, length=config.length, options=stated if own == asked else {})
    dataset = own if own is not None and own not in MADE_UP else dataset_at(data)
    tokenizer = None if config.tokenizer is None else tokenizer_from_dict(config.tokenizer)
    return open_sequences(dataset, data, split, length=config.length, tokenizer=tokenizer)


def _whole(sizes: Sequence[int | tuple[int, int]]) -> list[int]:
    found = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if len(found) != len(sizes) or not found:
        raise ConfigError(f"sizes of sequences are whole numbers, at least one, got {list(sizes)!r:.80}")
    return found
