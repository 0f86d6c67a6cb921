"""How each command of README.md is run by the tests: as it stands, with arguments behind it, or only read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from readme_blocks import Command


@dataclass(frozen=True)
class Way:
    """How a command is run.

    Attributes:
        more: Arguments put behind it, which make it short.
        swap: Words of README and what stands for them.
        slow: It takes more than some seconds.
        read: Why its options are read and nothing is run; empty where it runs.
        code: Exit code that README promises.
        after: Beginning of the command of README that must have run before, where no file says so.
        answers: What is typed at its prompts.
        hub: It talks to a Hub, here one of ours on localhost.
    """

    more: str = ""
    swap: tuple[tuple[str, str], ...] = ()
    slow: bool = False
    read: str = ""
    code: int = 0
    after: str = ""
    answers: str = ""
    hub: bool = False


AS_IT_STANDS = Way()
SIZES = "dim: 32, depth: 1, num_heads: 1, head_dim: 32, mlp_dim: 64"


def train(more: str = "", sizes: str = SIZES) -> Way:
    """Two steps of a network of a few thousand parameters on the CPU."""
    short = "--device cpu --epochs 1 --quiet --set steps=2 --set batch_size=4 --set precision=float32"
    return Way(f"{short} --set compile=false --set ema=0.0 --set 'model_options={{{sizes}}}' {more}")


KEY_FRAME = "the first key frame of the set"
GPU = "measures a GPU; tests/test_bench*.py run it small"
DRY = "--dry-run --device cpu --quiet"

# Beginning of a command -> way; the longest that fits counts.
WAYS: dict[str, Way] = {
    "make": Way(read="installs the package and runs these tests"),
    "pip install": Way(read="the tests are offline"),
    "hf auth login": Way(read="needs a token of the Hub"),
    "accelerate launch": Way(read="eight GPUs; tests/test_training_processes.py starts two processes"),
    "zoo predict": AS_IT_STANDS,
    "zoo predict hf-hub:": Way(hub=True, after="zoo publish runs/mine"),
    "zoo viz": AS_IT_STANDS,
    "zoo viz driving": Way(swap=(("TOKEN", KEY_FRAME),)),
    "zoo make-drive": Way("--scenes 1 --val-scenes 1 --frames 2 --azimuths 90 --workers 1 --quiet"),
    "zoo eval pape-fusion": Way("--limit 1 --device cpu --quiet"),
    "zoo eval local-dir:": Way("--limit 2 --device cpu --quiet"),
    "zoo train imagenette": train("--set image_size=16"),
    "zoo train bccd": train("--set image_size=[64,64] --set backbone=null"),
    "zoo train nmnist1100": train(),
    "zoo make-canvas": Way("--train 4 --val 1 --test 1 --quiet"),
    "zoo train nmnist-canvas": train(),
    "zoo train imagenette-motion": train(),
    "zoo train modelnet10-vit": train(),
    "zoo train als3": train(sizes=""),
    "zoo train simdrive": replace(train("--set batch_size=2", sizes=""), slow=True),
    "zoo make-shards": Way("--samples 4 --quiet"),
    "zoo train imagenet": train("--set image_size=32"),
    "zoo finetune": Way("--epochs 1 --device cpu --quiet"),
    "zoo publish": AS_IT_STANDS,
    "zoo publish runs/mine": Way(hub=True),
    "zoo export": Way(slow=True),
    "zoo predict small.onnx": Way(slow=True),
    "zoo predict trusted:": Way(slow=True),
    "zoo eval small.onnx": Way("--limit 2 --quiet", slow=True),
    "zoo browse": Way("--port 0"),
    "zoo advise": AS_IT_STANDS,
    "zoo doctor": AS_IT_STANDS,
    "zoo doctor rope-vit-t-imagenette --size 512": Way(code=1),
    "zoo train jsb": train("--set length=32"),
    "zoo train shakespeare": train("--set length=32"),
    "zoo train openwebtext": train("--set length=32"),
    "zoo make-tokens": Way("--validation 0.2 --quiet"),
    "zoo reproduce": Way(DRY),
    "zoo reproduce index": Way(DRY, slow=True),
    "zoo bench": Way(read=GPU),
}
EXACT: dict[str, Way] = {
    "zoo advise": Way(answers="grid\nchanging\n2\nno\nno\ntraining\nany\nample\n64\n"),
    "zoo reproduce": AS_IT_STANDS,
}
"""Whole commands, which go before beginnings."""


def way_of(command: Command) -> Way | None:
    """How a command is run, or `None` if nobody said."""
    written = " ".join(command.words)
    if written in EXACT:
        return EXACT[written]
    fitting = [start for start in WAYS if written.startswith(start)]
    return WAYS[max(fitting, key=len)] if fitting else None
