"""The Markdown of model cards, after the template of the Hub: front matter, then sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.card_tables import literal, metric_comparison, metric_results, model_index, table
from zoo.card_usage import prompt_example, usage
from zoo.registry import Entry, architecture

__all__ = ["compared_name", "compared_sizes", "render_config", "render_entry", "render_record"]

# Of the Hub, which has no pipeline that takes recordings of event cameras or point clouds.
PIPELINES = {
    ("image", "classification"): "image-classification",
    ("image", "detection"): "object-detection",
    ("video", "classification"): "video-classification",
}
# Modality -> tag, where the Hub has no pipeline.
TAGS = {
    "events": "event-camera",
    "points": "point-cloud",
    "driving": "autonomous-driving",
    "sequence": "causal-decoder",
}
# Licences with a page on the Hub; others go there by name and link.
HUB_LICENSES = ("apache-2.0", "cc-by-4.0", "cc-by-sa-4.0", "mit")
NAMES = {
    "pape": "PaPE",
    "pape-ri": "PaPE-RI",
    "rope": "axial RoPE",
    "rope-mixed": "RoPE-Mixed",
    "pope": "PoPE",
    "alibi": "ALiBi (Euclidean distance)",
    "lookhere": "LookHere",
    "kerple": "KERPLE",
    "learned": "a learned table",
    "liere": "LieRE",
    "sincos": "sine-cosine",
    "sincos+pape": "sine-cosine and PaPE",
    "none": "no position encoding",
}
CITATION = """@misc{ohrstrom2026pape,
  title  = {Parabolic Position Encoding: Vision-Centric, Principled, Extrapolatable, General},
  author = {{\\O}hrstr{\\o}m, Christoffer Koo and Cabral Muchacho, Rafael I. and Dong, Yifei and Moumtzidellis, Filippos
            and G{\\"u}ldenring, Ronja and Pokorny, Florian T. and Nalpantidis, Lazaros},
  year   = {2026},
  eprint = {2602.01418},
  archivePrefix = {arXiv},
}"""


def render_record(record: Mapping[str, Any], entry: Entry) -> str:
    """The whole card of a name that has a record."""
    name = entry.name
    published = entry.weights in ("embedded", "hub")
    terms = record["license"]
    other = {"license": "other", "license_name": terms["weights"], "license_link": terms.get("link")}
    front = {
        **({"license": terms["weights"]} if terms["weights"] in HUB_LICENSES else other),
        **_front(entry.config),
        "datasets": [record["data"]["hub_id"]] if record["data"].get("hub_id") else None,
        "model-index": model_index(record, entry) if published else None,
    }
    note = "<!-- Generated from record.yaml by `zoo card NAME --write`: edit the record, not this file. -->"
    sections = [
        f"# {name}",
        "\n".join(f"> {line}" for line in record.get("notice", "").strip().splitlines()),
        record["summary"].strip(),
        _facts(entry.config, _weights_line(record, entry)),
        _storage(record["weights"]["dtype"] or "", name) if published else "",
        "## Use" if published else "## Train and use",
        usage(entry, record),
        "## Results",
        _results(record, entry),
        *_comparison(record, entry),
        "## Intended use",
        record["intended_use"].strip(),
        "## Limits",
        "\n".join(f"- {line}" for line in record["limits"]),
        "## Data and licences",
        _data(record),
        "## Training",
        _training(record),
        *_paper(record),
        "## Citation",
        f"```bibtex\n{record['citation'].strip()}\n```",
    ]
    return _page(front, [note, *sections])


def render_entry(entry: Entry) -> str:
    """The card of a registered name without a record: architecture and where weights would come from."""
    name = entry.name
    if entry.weights == "release":
        weights = (
            "This package holds no weights of this name. The authors of PaPE release them (data.dtu.dk, article "
            "32076279: `config.json` and `model.pt`, under the terms stated there). After unpacking:\n\n"
            f'```bash\nzoo convert FOLDER OUT --install   # then zoo.load("{name}") finds them\n```'
        )
    else:
        how = f" Train them with `{entry.command}`." if entry.command else ""
        weights = f"There are no weights of this name: it stands for an architecture, with no measured results.{how}"
    sections = [
        f"# {name}",
        _summary(entry.config),
        _facts(entry.config, "of the authors of PaPE, to be converted" if entry.weights == "release" else "none"),
        "## Weights",
        weights,
        "## Architecture alone",
        f'```python\nimport zoo\n\nmodel = zoo.load("{name}", pretrained=False)\n```',
        "## Citation",
        f"```bibtex\n{CITATION}\n```",
    ]
    return _page(_front(entry.config), sections)


def render_config(
    config: Mapping[str, Any],
    facts: Sequence[str] | None = None,
    front: Mapping[str, Any] | None = None,
    stored: str = "",
) -> str:
    """The card of a saved model, of which the configuration is known.

    Args:
        config: Of the model.
        facts: Sections on results, data, training and licence; `None` says that they are not stated.
        front: What goes into the front matter beside what follows from the configuration.
        stored: Dtype of the weights as `zoo.checkpoints.stored_dtype` gives it, where it is to be explained.
    """
    unknown = (
        "## Results, data, training and licence",
        "Not stated. Whoever publishes these weights says here what they were trained on and how, what was measured, "
        "and under which licence they may be used.",
    )
    usage = [
        "```python",
        *(["import torch"] if config["task"] == "generation" and prompt_example(config) is None else []),
        "import zoo",
        "",
        'model = zoo.load("local-dir:FOLDER")          # this folder',
        *_run(config),
        "```",
    ]
    labels = config.get("labels")
    classes = "Classes have no names."
    if labels:
        classes = f"Classes: {', '.join(map(literal, labels[:50]))}{', ...' if len(labels) > 50 else ''}."
    sections = [
        f"# {config['name']}",
        _summary(config),
        _facts(config, "model.safetensors in this folder"),
        _storage(stored, "local-dir:FOLDER"),
        "## Use",
        "\n".join(usage),
        "## Classes",
        classes,
        *(unknown if facts is None else facts),
        "## Citation",
        f"```bibtex\n{CITATION}\n```",
    ]
    return _page({**_front(config), **(front or {})}, sections)


def _page(front: Mapping[str, Any], sections: Iterable[str]) -> str:
    import yaml

    stated = {key: value for key, value in front.items() if value is not None}
    head = yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=110)
    return f"---\n{head}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _front(config: Mapping[str, Any]) -> dict[str, Any]:
    network = "transformer" if config["modality"] == "sequence" else "vision-transformer"
    tags = ["pape-zoo", network, "position-encoding", config["model"]["encoding"]]
    return {
        "library_name": "pape-zoo",
        "pipeline_tag": PIPELINES.get((config["modality"], config["task"])),
        "tags": [*tags, *([kind, config["task"]] if (kind := TAGS.get(config["modality"])) else [])],
    }


def _summary(config: Mapping[str, Any]) -> str:
    model = config["model"]
    encoding = NAMES.get(model["encoding"], model["encoding"])
    if summary := architecture(config).card_words(config).get("summary"):
        return summary.format(encoding=encoding)
    return (
        f"A vision transformer for {config['modality']} {config['task']} with {encoding}"
        f"{'' if model['encoding'] == 'none' else ' as position encoding'}: patches of {model['patch_size']} px, width "
        f"{model['dim']}, {model['depth']} blocks of {model['num_heads']} heads, {model['num_classes']} classes."
    )


def _run(config: Mapping[str, Any]) -> list[str]:
    """How a saved model is run, in Python."""
    if config["task"] == "generation" and prompt_example(config) is None:
        return ["ids = torch.tensor([[0, 1, 2]])", "print(model.generate(ids, max_new_tokens=100))"]
    return ['predict = zoo.predictor("local-dir:FOLDER")', f"print(predict({_source(config)}))"]


def _source(config: Mapping[str, Any]) -> str:
    """What a predictor is called with in examples."""
    if config["modality"] == "sequence":
        return str(prompt_example(config))
    if config["modality"] == "driving":
        return '"DATAROOT", sample="TOKEN"'
    files = {"events": "recording.raw", "video": "clip.mp4", "points": "cloud.ply"}
    return f'"{files.get(config["modality"], "picture.jpg")}"'


def _facts(config: Mapping[str, Any], weights: str) -> str:
    model, data = config["model"], config["data"]
    count = architecture(config).count_parameters(model)
    rows = [
        ("Position encoding", NAMES.get(model["encoding"], model["encoding"])),
        ("Parameters", f"{count:,}"),
    ]
    words = architecture(config).card_words(config)
    if stated := words.get("input"):
        rows.append(("Input", stated))
    elif data:
        size = " x ".join(map(str, architecture(config).data_config(data).input_size[1:]))
        sized = f"{size} px, patch {model['patch_size']}"
        events = config["modality"] == "events"
        rows.append(("Input", f"events of a sensor of {sized}" if events else f"{sized}; other sizes work"))
    if stated := words.get("output"):
        rows.append(("Output", stated))
    return table(("", ""), [*rows, ("Weights", weights)])


def _weights_line(record: Mapping[str, Any], entry: Entry) -> str:
    weights = record["weights"]
    if entry.weights == "none":
        return f"not published; `{weights['command']}` makes them"
    if not weights["sha256"]:
        return "not published yet"
    place = f"hf-hub:{entry.hub.repo_id}" if entry.hub else "embedded in the package"
    return f"{place}, {weights['dtype']}, {weights['size_bytes'] / 2**20:.1f} MiB, sha256 `{weights['sha256'][:16]}...`"


def _storage(dtype: str, name: str) -> str:
    """What is to be known of weights that are stored in 8 bits; nothing of others."""
    if "int8" not in dtype:
        return ""
    return (
        "The weights are stored in 8 bits: matrices as int8 with a float32 scale for each row (`NAME.scale`), the rest "
        "as float16. `zoo.load` multiplies them out to float32. Other readers of safetensors do not: for them, "
        f'`zoo.save(zoo.load("{name}"), "OUT", dtype="float32")` writes the same weights as plain numbers.'
    )


def _results(record: Mapping[str, Any], entry: Entry) -> str:
    if not record["evaluation"]:
        return "Not measured yet."
    if not _by_size(entry):
        return metric_results(record, entry, entry.weights in ("embedded", "hub"))
    items = sorted(record["evaluation"], key=lambda item: item["size"])
    patch = entry.config["model"]["patch_size"]
    trained = architecture(entry.config).data_config(entry.config["data"]).input_size[1]
    methods = list(dict.fromkeys(item.get("extend", "") for item in items))
    measured: dict[int, dict[str, str]] = {}
    for item in items:
        measured.setdefault(item["size"], {})[item.get("extend", "")] = _spread(item)
    rows = [
        (
            f"{size}{' (training size)' if size == trained else ''}",
            f"{-(-size // patch)} x {-(-size // patch)}",
            *(cells.get(method, "") for method in methods),
        )
        for size, cells in measured.items()
    ]
    first = items[0]
    seeds = max(item.get("seeds", 1) for item in items)
    several = f", mean ± standard deviation over {seeds} seeds (extensions: one seed)" if seeds > 1 else ""
    parts = [
        f"Top-1 accuracy in percent on the {first['split']} split of {record['data']['name']} "
        f"({first['images']:,} pictures), measured by us, in {first['dtype']} on {first['device']}{several}:",
        table(("Size (px)", "Tokens", *(f"Top-1{f' with {m}' if m else ''}" for m in methods)), rows),
        record["data"].get("eval_note", ""),
        "\n".join(f"`{command}`" for command in dict.fromkeys(item["command"] for item in items)),
    ]
    return "\n\n".join(part for part in parts if part)


def _by_size(entry: Entry) -> bool:
    """Whether the card shows one metric by size (classifiers of pictures), instead of all metrics at the one size."""
    return (entry.modality, entry.task) == ("image", "classification")


def _spread(item: Mapping[str, Any]) -> str:
    """A measured value, with its standard deviation over seeds where there is one."""
    return f"{item['value']:.1f}" + (f" ± {item['std']:.1f}" if item.get("std") is not None else "")


def _comparison(record: Mapping[str, Any], entry: Entry) -> list[str]:
    if not record["comparison"]:
        return []
    if not _by_size(entry):
        return ["## Comparison", metric_comparison(record, entry)]
    own = {item["size"]: item["value"] for item in record["evaluation"] if "extend" not in item}
    epochs = (
        {"note": f"{record['training']['epochs']} epochs"} if any(r.get("note") for r in record["comparison"]) else {}
    )
    rows = [(compared_name({"name": entry.name, **epochs}), own)]
    rows += [(compared_name(item), compared_sizes(item)) for item in record["comparison"]]
    sizes = sorted({size for _, values in rows for size in values})
    cells = [(name, *(f"{values[size]:.1f}" if size in values else "" for size in sizes)) for name, values in rows]
    same = "Same recipe, seed and data, one run each; only the position encoding differs."
    return [
        "## Comparison",
        f"{record.get('comparison_note', same)} Top-1 in percent by size in px:",
        table(("Model", *map(str, sizes)), cells),
    ]


def compared_name(item: Mapping[str, Any]) -> str:
    """Name of a row of a record's comparison, with its `note` (what sets the run apart) where it has one."""
    return f"{item['name']} ({item['note']})" if item.get("note") else str(item["name"])


def compared_sizes(item: Mapping[str, Any]) -> dict[int, float]:
    """Top-1 by size of a row of a record's comparison; empty for models with other metrics."""
    if "sizes" in item:
        return dict(item["sizes"])
    numbers = [row for row in item["evaluation"] if row["metric"] == "top1" and "extend" not in row]
    return {row["size"]: row["value"] for row in numbers}


def _data(record: Mapping[str, Any]) -> str:
    data, terms = record["data"], record["license"]
    revision = f" at revision `{data['revision']}`" if data.get("revision") else ""
    lines = [
        f"- Data: {data['name']}, from {data['source']}{revision}. Trained on {data['train_split']}; measured on "
        f"{data['eval_split']}.",
        f"- Terms of the data: {data['terms'].strip()}",
        f"- Code: {terms['code']}. Weights: {terms['weights']}. {terms['terms'].strip()}",
        *(f"- `{file}`: sha256 `{value}`" for file, value in data["sha256"].items()),
    ]
    return "\n".join(lines)


def _training(record: Mapping[str, Any]) -> str:
    run = record["training"]
    duration = None if run["duration_s"] is None else f"{run['duration_s'] / 60:.1f} minutes"
    facts = {
        "epochs": run["epochs"],
        "seed": run["seed"],
        "hardware": run["device"],
        "duration": duration,
        "final training loss": run["final_train_loss"],
        "date": run["date"],
    }
    rows = [(key, str(value)) for key, value in {**facts, **run["recipe"]}.items() if value is not None]
    carbon = "Energy and carbon were not metered; hardware and duration above bound them." if duration else ""
    parts = (f"```bash\n{run['command']}\n```", table(("", ""), rows), run.get("selection"), carbon)
    return "\n\n".join(part for part in parts if part)


def _paper(record: Mapping[str, Any]) -> list[str]:
    if not record["paper"]:
        return []
    lines = "\n".join(f"- {item['claim']} ({item['source']})" for item in record["paper"])
    return ["## Reported elsewhere, not measured here", lines]
