"""The registered decoders, as data. Imports no torch.

Names are `{encoding}-decoder-{size}-{data}[-{variant}]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.encodings.parameter_count import count_token
from zoo.errors import ConfigError
from zoo.network_sizes import SIZES, count_attention_layer

__all__ = ["INDEX_CHARACTERS", "card_words", "config", "count_parameters", "presets", "text_options"]

# Tokens of indirect indexing: "<string>, <letter>, <shift>, <target>".
INDEX_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789,+- "
# Of the text at https://github.com/karpathy/char-rnn, in the order of code points.
SHAKESPEARE_CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Made-up tasks that a decoder of any name may be trained on -> what they are.
_TASKS = {
    "copy": "copying a line of text (made up)",
    "column": "finding the largest digit of each column of a text (made up)",
    "pictures": "questions about cells of pictures in a context (made up)",
}
# Data -> size of the vocabulary, and fields of `SequenceDataConfig`.
DATA: dict[str, tuple[int, dict[str, Any]]] = {
    "index": (
        len(INDEX_CHARACTERS),
        {"length": 64, "tokenizer": {"kind": "characters", "characters": INDEX_CHARACTERS}},
    ),
    "jsb": (90, {"length": 1024, "tokenizer": {"kind": "chorales"}}),
    "shakespeare": (
        len(SHAKESPEARE_CHARACTERS),
        {"length": 256, "tokenizer": {"kind": "characters", "characters": SHAKESPEARE_CHARACTERS}},
    ),
    "hg38": (5, {"length": 512, "tokenizer": {"kind": "dna"}}),
}
# Large data, in packed tokens (`zoo make-tokens`): vocabulary, fields of the data, and sizes. The tokenizer of GPT-2 is
# a file, which the data name.
LARGE: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "owt": (50_257, {"length": 1024, "tokenizer": None}, ("124m", "253m", "774m")),
    "maestro": (389, {"length": 2048, "tokenizer": {"kind": "performance"}}, ("s",)),
    "genome": (5, {"length": 1024, "tokenizer": {"kind": "dna"}}, ("s",)),
}
# What the data are, in the words of cards.
_WHAT = {
    "index": "indirect indexing (find a letter in a string, step from it, name the letter there)",
    "jsb": "four-voice chorales in 16th notes",
    "shakespeare": "the characters of Shakespeare's plays",
    "hg38": "the bases of human DNA",
    "owt": "the text of web pages (OpenWebText, pieces of GPT-2's vocabulary)",
    "maestro": "piano performances (MAESTRO)",
    "genome": "the bases of the human reference genome",
}
# Parabolas start about a token wide as released, and decoders that start so never learnt to copy a line of 32 letters
# (docs/reproduce/text2d-copy); these start up to so many times as wide.
PAPE_REACH = 64.0
ENCODINGS = ("pape", "rope", "pope", "alibi", "none")
INDEX_ENCODINGS = (*ENCODINGS, "learned")
# The network of the PoPE paper (arXiv 2509.10534) for indirect indexing.
PAPER_SIZE = {**SIZES["s"], "depth": 8}


def _gpt2(dim: int, depth: int, heads: int) -> dict[str, int]:
    return {"dim": dim, "depth": depth, "num_heads": heads, "head_dim": dim // heads, "mlp_dim": 4 * dim}


# Width, depth and heads of the PoPE paper's language models; they are called after what they have with the embedding,
# which is tied to the head as in GPT-2 (PaPE's fifty parabolas add up to an eighth). For MAESTRO and the genome the
# paper's sizes were not known to us: those of indirect indexing are our choice.
LARGE_SIZES = {
    "124m": _gpt2(768, 12, 12),
    "253m": _gpt2(1024, 16, 16),
    "774m": _gpt2(1280, 36, 20),
    "s": PAPER_SIZE,
}
LARGE_ENCODINGS = ("pape", "rope", "pope")

# Names whose weights come with the package.
EMBEDDED = ("pope-decoder-t-jsb",)


def text_options(encoding: str, length: int) -> dict[str, Any]:
    """Options of an encoding for text: the frequency ladders of language models, and a table that does not stretch.

    Args:
        encoding: A name of `zoo.encodings()`.
        length: Tokens of a training sequence.
    """
    made: dict[str, dict[str, Any]] = {
        "pape": {"parabolas": 50, "reach": PAPE_REACH},
        "rope": {"base": 10000.0},
        "pope": {"base": 10000.0},
        "learned": {"grid": length, "stretch": False},
    }
    return made.get(encoding, {})


def config(
    name: str,
    *,
    encoding: str,
    sizes: Mapping[str, int],
    vocabulary: int,
    data: Mapping[str, Any],
    coord_dim: int = 1,
    tie_embeddings: bool = False,
) -> dict[str, Any]:
    """A complete configuration of a decoder.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        sizes: Width, depth, heads, head width and MLP width, as in `zoo.network_sizes.SIZES`.
        vocabulary: Number of tokens.
        data: Fields of `SequenceDataConfig`.
        coord_dim: Axes of positions.
        tie_embeddings: Whether the head has the weights of the embedding.
    """
    return {
        "schema_version": 1,
        "name": name,
        "modality": "sequence",
        "task": "generation",
        "architecture": "decoder",
        "model": {
            **sizes,
            "num_classes": vocabulary,
            "in_chans": 1,
            "coord_dim": coord_dim,
            "encoding": encoding,
            "encoding_options": text_options(encoding, data["length"]),
            "tie_embeddings": tie_embeddings,
            "drop_path": 0.0,
        },
        "data": {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()},
        "labels": None,
    }


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    for kind, (vocabulary, data) in DATA.items():
        for encoding in INDEX_ENCODINGS if kind == "index" else ENCODINGS:
            named = [(f"{encoding}-decoder-{size}-{kind}", sizes) for size, sizes in SIZES.items() if size in "nt"]
            if kind == "index":
                named.append((f"{encoding}-decoder-s-index-paper", PAPER_SIZE))
            for name, sizes in named:
                made = config(name, encoding=encoding, sizes=sizes, vocabulary=vocabulary, data=data)
                entry: dict[str, Any] = {"name": name, "weights": "none", "config": made}
                if kind == "jsb":
                    entry["command"] = f"zoo train jsb --model {name} --data jsb_chorales.npz"
                yield entry | ({"weights": "embedded"} if name in EMBEDDED else {})
    for kind, (vocabulary, data, names) in LARGE.items():
        for encoding in LARGE_ENCODINGS:
            for size in names:
                name, tied = f"{encoding}-decoder-{size}-{kind}", kind == "owt"
                made = config(
                    name,
                    encoding=encoding,
                    sizes=LARGE_SIZES[size],
                    vocabulary=vocabulary,
                    data=data,
                    tie_embeddings=tied,
                )
                yield {"name": name, "weights": "none", "config": made}


def count_parameters(model: Mapping[str, Any]) -> int:
    """Number of parameters of the decoder that `model` (the `"model"` part of a configuration) describes.

    By arithmetic alone, so that a configuration from a stranger can be refused before anything is allocated.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    axes = model.get("coord_dim", 1)
    if type(axes) is not int or not 1 <= axes <= 3:
        raise ConfigError(f"model config: coord_dim must be 1, 2 or 3, got {axes!r:.60}")
    dim, width = model["dim"], model["num_heads"] * model["head_dim"]
    table = count_token(model["encoding"], model.get("encoding_options", {}), dim=dim, axes=axes)
    attention = count_attention_layer(dict(model), axes) - 3 * width - dim  # It has no biases here.
    block = 2 * dim + attention + 2 * dim * model["mlp_dim"]
    vocabulary = (1 if model.get("tie_embeddings") else 2) * dim * model["num_classes"]
    return int(vocabulary + table + model["depth"] * block + dim)


def card_words(config: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of a decoder."""
    model, data = config["model"], config["data"]
    axes = model.get("coord_dim", 1)
    encoding = "RoPE" if model["encoding"] == "rope" and axes == 1 else "{encoding}"
    stated = data.get("tokenizer") or {}
    tokens = f"{model['num_classes']:,} tokens ({stated['kind']})" if stated else f"{model['num_classes']:,} tokens"
    named = next((words for kind, words in _WHAT.items() if f"-{kind}" in config["name"]), "sequences")
    of = _TASKS.get(str((data.get("dataset") or {}).get("name")), named)
    counted = {1: "tokens are counted", 2: "row and column of each token", 3: "three position ids of each token"}
    return {
        "summary": f"A causal transformer decoder for {of}, with {encoding}: a vocabulary of {tokens}, width "
        f"{model['dim']}, {model['depth']} blocks of {model['num_heads']} heads with RMSNorm.",
        "input": f"token ids, in training {data['length']:,} at a time; other lengths work; positions: {counted[axes]}",
        "output": "logits of the token after each token; `generate` continues sequences",
    }
