"""How to use a model, for its card, by modality and task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zoo.registry import Entry

__all__ = ["prompt_example", "usage"]


def usage(entry: Entry, record: Mapping[str, Any]) -> str:
    """Commands and Python for a registered model: how to predict, or how to train it where there are no weights."""
    # A file of the kind that the model was trained on, where that is not a usual one.
    example = record["data"].get("example", _FILES.get((entry.modality, entry.task)))
    names = {"name": entry.name if entry.weights != "none" else "local-dir:OUT", "file": example}
    examples = _sequence(entry, example) if entry.modality == "sequence" else _EXAMPLES[entry.modality, entry.task]
    shell, python = (text.format(**names) for text in examples)
    if entry.weights == "none":
        return (
            "No weights are published under this name: the record and the command that makes them are.\n\n"
            f"```bash\n{record['weights']['command']}\n{shell}\n```\n\n"
            f'```python\nimport zoo\n\nmodel = zoo.load("{entry.name}", pretrained=False)   # architecture alone\n```'
        )
    new_head = ", num_classes=7)   # to fine-tune: same body, new head"
    own = ")   # the network: logits of the token after each token" if entry.task == "generation" else new_head
    return f'```bash\n{shell}\n```\n\n```python\nimport zoo\n\n{python}\n\nmodel = zoo.load("{entry.name}"{own}\n```'


_FILES = {
    ("image", "classification"): "picture.jpg",
    ("image", "detection"): "photo.jpg",
    ("events", "classification"): "recording.raw",
    ("events", "detection"): "recording.raw",
    ("video", "classification"): "clip.mp4",
    ("points", "classification"): "cloud.ply",
    ("points", "segmentation"): "tile.laz",
    ("driving", "detection"): "DATAROOT",
}
# Modality and task -> commands, and Python after `import zoo`.
_EXAMPLES = {
    ("image", "classification"): (
        "zoo predict {name} {file}",
        'predict = zoo.predictor("{name}")\nprint(predict("{file}"))',
    ),
    ("image", "detection"): (
        "zoo predict {name} {file} --save out/   # prints boxes, and draws them on a copy in out/",
        'predict = zoo.predictor("{name}", min_score=0.25)\n'
        'found = predict("{file}")   # any size; boxes are x1, y1, x2, y2 in pixels of the picture\n'
        "for box, label, score in zip(found.boxes, found.labels, found.scores):\n"
        "    print(box, label, score)",
    ),
    ("events", "classification"): (
        "zoo predict {name} {file} --save out.mp4   # prints classes, and writes a video of the events with them",
        'predict = zoo.predictor("{name}")\nprint(predict("{file}"))',
    ),
    ("events", "detection"): (
        "zoo predict {name} {file} --save out.mp4   # a video of the events with boxes",
        'predict = zoo.predictor("{name}", min_score=0.25)\n'
        'for found in predict("{file}", stream=True):   # a result for each window of time\n'
        "    print(found.time_us, found.boxes, found.labels, found.scores)",
    ),
    ("video", "classification"): (
        "zoo predict {name} {file}   # the likeliest classes over windows of time",
        'predict = zoo.predictor("{name}")\nprint(predict("{file}"))',
    ),
    ("points", "classification"): (
        "zoo predict {name} {file}",
        'predict = zoo.predictor("{name}")\nprint(predict("{file}"))',
    ),
    ("points", "segmentation"): (
        "zoo predict {name} {file} --save out/   # how many points of each class; out/ gets the cloud with labels",
        'predict = zoo.predictor("{name}")\nprint(predict("{file}"))',
    ),
    ("driving", "detection"): (
        "zoo predict {name} --dataroot {file} --sample TOKEN --save out/   # boxes in the cameras and from above",
        'predict = zoo.predictor("{name}")\n'
        'found = predict("{file}", sample="TOKEN")   # a key frame of a data set in the format of nuScenes\n'
        "print(found.boxes)   # x forward, y left, z up, in metres from the car",
    ),
}


def prompt_example(config: Mapping[str, Any]) -> str | None:
    """A prompt of a decoder as Python: `None` for the start of a piece of music, or text in quotation marks.

    Returns:
        `None` where the tokens of the decoder stand for nothing that is known.
    """
    kind = (config["data"].get("tokenizer") or {}).get("kind")
    if kind in ("chorales", "roll"):
        return "None"
    text = next((text for data, text in _PROMPTS.items() if f"-{data}" in config["name"]), "TEXT")
    return kind and json.dumps(_PROMPTS["hg38"] if kind == "dna" else text)


def _sequence(entry: Entry, example: str | None) -> tuple[str, str]:
    """Commands and Python for a decoder, with the prompt `example`."""
    prompt = prompt_example(entry.config) if example is None else json.dumps(example)
    if prompt is None:
        return (
            "zoo bench {name}",
            'model = zoo.load("{name}")\nids = model.generate(prompt, max_new_tokens=100)   # prompt: token ids (B, N)',
        )
    prompt = prompt.replace("{", "{{").replace("}", "}}")
    given = "" if prompt == "None" else f" {prompt}"
    made = f'predict = zoo.predictor("{{name}}")\nfound = predict({prompt}'
    if "-index" in entry.name:
        return (
            f"zoo predict {{name}}{given}   # prints T, three letters after r, where it is right",
            f"{made})\nprint(found.text)   # the answer",
        )
    kind = entry.config["data"]["tokenizer"]["kind"]
    if kind == "chorales":
        return (
            f"zoo predict {{name}}{given} --seed 2 --save chorale.html   # a page that plays it; .mid writes MIDI",
            f'{made}, seed=2)\nfound.save("chorale.mid")\nprint(found.pitches)   # MIDI numbers (T, 4), a row a 16th',
        )
    suffix = {"dna": ".fa", "roll": ".npz"}.get(kind, ".txt")
    what = "found.roll" if kind == "roll" else "found.text"
    return (
        f"zoo predict {{name}}{given} --tokens 200 --seed 1 --save out{suffix}",
        f"{made}, tokens=200, seed=1)\nprint({what})",
    )


# Data -> a text to go on from; of questions one of 20 letters.
_PROMPTS = {"index": "qvLrAbTzkWmCxPeJhYnQ,r,+3,", "shakespeare": "ROMEO:", "hg38": "ACGTTGCA"}
