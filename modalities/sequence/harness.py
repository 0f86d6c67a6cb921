"""Zero-shot tasks through EleutherAI's lm-evaluation-harness (extra `harness`): LAMBADA, HellaSwag, CBT and others.

    import lm_eval, zoo
    from modalities.sequence.harness import cbt_task, harness_model

    model = zoo.load("local-dir:DIR", device="cuda")
    tasks = ["lambada_openai", "hellaswag", cbt_task("CN"), cbt_task("NE")]
    print(lm_eval.simple_evaluate(model=harness_model(model, "tokenizer.json"), tasks=tasks)["results"])

The library fetches the data of its tasks. It has none for the Children's Book Test (lm_eval 0.4.13), so that task is
described here. Tried with lm_eval 0.4.13 on made-up tasks of all kinds of requests; no public task was run here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from modalities.sequence.bpe import BpeTokenizer, read_bpe
from modalities.sequence.datasets.base import batch_tokens
from zoo.errors import ConfigError, require

if TYPE_CHECKING:
    from modalities.sequence.model import Decoder

__all__ = ["CBT_KINDS", "Scorer", "cbt_task", "harness_model", "windows"]

CBT_KINDS = {"CN": "common nouns", "NE": "named entities", "V": "verbs", "P": "prepositions"}
"""Kinds of missing words in the Children's Book Test."""

_BLANK = "X" * 5

_NEW_TOKENS = 256
_STRIDE = 32  # New tokens between looks for a stop.
_OPTIONS = ("do_sample", "max_gen_toks", "temperature", "until")  # Of `generate_until`.


class Scorer:
    """Log-likelihoods and continuations of token ids by a decoder.

    Sequences are batched with others of equal length alone: nothing is filled up, which encodings that look at the
    whole sample would see.

    Args:
        model: In eval mode.
        end: The token that stands for an empty context.
        max_length: Most tokens that the model reads; `None`: those of training. Contexts are cut from the left.

    Raises:
        ConfigError: If the length cannot be used.
    """

    def __init__(self, model: Decoder, end: int, max_length: int | None = None) -> None:
        length = model.data_config.length if max_length is None else max_length
        if type(length) is not int or length < 2:
            raise ConfigError(f"max_length must be a whole number, 2 or more, got {length!r:.40}")
        self.model, self.end, self.max_length = model, end, length

    @torch.inference_mode()
    def continuations(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """Of (context, continuation): nats of the continuation after the context, and whether it is the greedy one.

        Args:
            pairs: Token ids; an empty context is that of a new document.

        Raises:
            ConfigError: If a continuation is empty or longer than the model reads.
        """
        rows = [self._row(context, continuation) for context, continuation in pairs]
        results: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        device = self.model.embed.weight.device
        most = batch_tokens(device, int(self.model.num_classes))
        for chosen in _by_length([len(row) for row in rows], most):
            ids = torch.tensor([rows[index] for index in chosen], device=device)
            features = self.model.forward_features(ids[:, :-1])
            for row, index in enumerate(chosen):
                count = len(pairs[index][1])
                # Logits of what is asked for alone: those of contexts are most of the work with a large vocabulary.
                scores = F.log_softmax(self.model.forward_head(features[row, -count:]).float(), dim=-1)
                targets = ids[row, -count:]
                nats = scores.gather(1, targets[:, None]).double().sum()
                results[index] = (float(nats), bool((scores.argmax(dim=-1) == targets).all()))
        return results

    def rolling(self, ids: Sequence[int]) -> float:
        """Nats of a whole text as a document of its own: every token is predicted once, from up to a window before."""
        parts = self.continuations(windows(ids, self.end, self.max_length)) if len(ids) else []
        return sum(nats for nats, _ in parts)

    @torch.inference_mode()
    def until(
        self,
        context: Sequence[int],
        tokenizer: BpeTokenizer,
        stops: Sequence[str],
        *,
        max_new_tokens: int = _NEW_TOKENS,
        temperature: float = 0.0,
    ) -> str:
        """Continues a context until one of some texts, or the end of the document, comes; without these.

        Args:
            context: Token ids.
            tokenizer: Of the ids.
            stops: Texts.
            max_new_tokens: At most.
            temperature: 0 takes the likeliest token always.

        Raises:
            ConfigError: If the model cannot read as many.
        """
        if not 1 <= max_new_tokens < self.max_length:
            raise ConfigError(f"max_new_tokens must be 1 to {self.max_length - 1}, got {max_new_tokens}")
        given = list(context or [self.end])[max_new_tokens - self.max_length :]
        made: list[int] = []
        while len(made) < max_new_tokens:
            ids = torch.tensor([given + made], device=self.model.embed.weight.device)
            count = min(_STRIDE, max_new_tokens - len(made))
            new = self.model.generate(ids, count, temperature=temperature, stop_token=self.end)[0, ids.shape[1] :]
            made += new.tolist()
            ended = self.end in made
            made = made[: made.index(self.end)] if ended else made
            text = tokenizer.decode(made)
            places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
            if places:
                return text[: min(places)]
            if ended:
                return text
        return tokenizer.decode(made)

    def _row(self, context: Sequence[int], continuation: Sequence[int]) -> list[int]:
        """What is read, and the last token of the continuation."""
        if not 1 <= len(continuation) <= self.max_length:
            raise ConfigError(
                f"a continuation has 1 to {self.max_length} tokens, not {len(continuation)}: give a larger max_length"
            )
        return [*(context or [self.end]), *continuation][-(self.max_length + 1) :]


def windows(ids: Sequence[int], end: int, length: int) -> list[tuple[list[int], list[int]]]:
    """(context, continuation) of a text: continuations follow each other and are the whole of it.

    All but the last window read as many tokens as they predict; the last reads as far back as it may.

    Args:
        ids: Of the text.
        end: The token before its first.
        length: Most tokens that are read.
    """
    text = list(ids)
    found = []
    for begin in range(0, len(text), length):
        stop = min(begin + length, len(text))
        before = [end, *text][max(0, stop - length) : begin + 1]
        found.append((before, text[begin:stop]))
    return found


def harness_model(model: Decoder, tokenizer: str | os.PathLike[str], *, max_length: int | None = None) -> Any:
    """A model of lm-evaluation-harness.

    Args:
        model: A decoder of text, on the device to use.
        tokenizer: Its file; see `modalities.sequence.bpe.read_bpe`.
        max_length: See `Scorer`.

    Returns:
        An `lm_eval.api.model.LM`.

    Raises:
        ConfigError: If the tokenizer is not that of the model.
        MissingDependencyError: If a library is not installed.
    """
    base: Any = require("lm_eval.api.model", "harness").LM
    own, _ = read_bpe(tokenizer)
    stated = model.data_config.tokenizer
    if own.vocab_size != model.num_classes or (stated is not None and stated != own.to_dict()):
        raise ConfigError(f"{tokenizer}: not the tokenizer of {model.config['name']}")
    scorer = Scorer(model.eval(), own.end, max_length)

    class HarnessDecoder(base):
        """Requests of the harness as token ids."""

        def loglikelihood(self, requests: Iterable[Any]) -> list[tuple[float, bool]]:
            pairs = [_split(own, *request.args) for request in requests]
            return scorer.continuations(pairs)

        def loglikelihood_rolling(self, requests: Iterable[Any]) -> list[float]:
            return [scorer.rolling(own.encode(request.args[0]).tolist()) for request in requests]

        def generate_until(self, requests: Iterable[Any]) -> list[str]:
            return [
                scorer.until(own.encode(context).tolist(), own, **_generation(settings, scorer.max_length))
                for context, settings in (request.args for request in requests)
            ]

    return HarnessDecoder()


def _generation(settings: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Arguments of `Scorer.until` from the options of a request.

    Raises:
        ConfigError: If there is an option that would be passed over, such as `top_p`, or one cannot be used.
    """
    if unknown := sorted(str(key) for key in settings if key not in _OPTIONS):
        raise ConfigError(f"unknown option {unknown[0]!r:.60} of generate_until; there are {', '.join(_OPTIONS)}")
    stops = settings.get("until") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, (list, tuple)) or not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"generate_until: until must be a text or several, got {stops!r:.60}")
    count, sampled = settings.get("max_gen_toks", min(_NEW_TOKENS, longest - 1)), settings.get("do_sample", False)
    if type(count) is not int:
        raise ConfigError(f"generate_until: max_gen_toks must be a whole number, got {count!r:.60}")
    if type(sampled) is not bool:
        raise ConfigError(f"generate_until: do_sample must be true or false, got {sampled!r:.60}")
    temperature = settings.get("temperature", 1.0 if sampled else 0.0)
    if type(temperature) not in (int, float) or not 0 <= temperature < float("inf"):
        raise ConfigError(f"generate_until: temperature must be a number from 0 on, got {temperature!r:.60}")
    return {"stops": stops, "max_new_tokens": count, "temperature": float(temperature) if sampled else 0.0}


def _split(tokenizer: BpeTokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of a context and of what follows, encoded together: spaces belong to the piece behind them."""
    bare = context.rstrip()
    context, continuation = bare, context[len(bare) :] + continuation
    before = tokenizer.encode(context).tolist()
    whole = tokenizer.encode(context + continuation).tolist()
    return whole[: len(before)], whole[len(before) :]


def cbt_task(kind: str) -> dict[str, Any]:
    """The Children's Book Test (arXiv 1511.02301) as a task of the harness, without examples.

    After twenty sentences of a book comes one with a word left out. The ten words to choose from are ranked by the
    likelihood of the whole sentence with each, as section 4.4 of the paper has it for language models. The data are
    `cam-cst/cbt` on the Hub (its page says under which terms), whose fields were taken on trust: `sentences`,
    `question` with five letters X for the word, `options` and `answer`. How others evaluate may differ.

    Args:
        kind: A key of `CBT_KINDS`.

    Returns:
        A configuration for `tasks` of `lm_eval.simple_evaluate`.

    Raises:
        ConfigError: For another kind.
    """
    if kind not in CBT_KINDS:
        raise ConfigError(
            f"no kind {kind!r:.40} of words in the Children's Book Test; there are {', '.join(CBT_KINDS)}"
        )

    def passage(doc: Mapping[str, Any]) -> str:
        return " ".join(doc["sentences"])

    def sentences(doc: Mapping[str, Any]) -> list[str]:
        return [doc["question"].replace(_BLANK, option) for option in doc["options"]]

    def answer(doc: Mapping[str, Any]) -> int:
        return list(doc["options"]).index(doc["answer"])

    return {
        "task": f"cbt_{kind.lower()}",
        "dataset_path": "cam-cst/cbt",
        "dataset_name": kind,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": passage,
        "doc_to_choice": sentences,
        "doc_to_target": answer,
        "target_delimiter": " ",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def _by_length(lengths: Sequence[int], most: int) -> Iterable[list[int]]:
    """Batches of indices of equal length with at most so many tokens, the longest first."""
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        groups.setdefault(length, []).append(index)
    for length, members in sorted(groups.items(), reverse=True):
        step = max(1, most // length)
        for first in range(0, len(members), step):
            yield members[first : first + step]
