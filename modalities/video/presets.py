"""The registered video models, as data. Imports no torch.

Names are `{encoding}-video-vit-{size}-{data}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.video.axes import AXES, SPACE, TIME, for_axes
from zoo.errors import ConfigError
from zoo.network_sizes import ENCODING_OPTIONS, SIZES, count_attention_layer, count_block, count_encoder

__all__ = ["MOTIONS", "MOTION_DATA", "UCF101_DATA", "UCF101_LABELS", "card_words", "config"]
__all__ += ["count_parameters", "presets"]

# In the order of the numbers of the data set's classInd.txt.
UCF101_LABELS = (
    "ApplyEyeMakeup",
    "ApplyLipstick",
    "Archery",
    "BabyCrawling",
    "BalanceBeam",
    "BandMarching",
    "BaseballPitch",
    "Basketball",
    "BasketballDunk",
    "BenchPress",
    "Biking",
    "Billiards",
    "BlowDryHair",
    "BlowingCandles",
    "BodyWeightSquats",
    "Bowling",
    "BoxingPunchingBag",
    "BoxingSpeedBag",
    "BreastStroke",
    "BrushingTeeth",
    "CleanAndJerk",
    "CliffDiving",
    "CricketBowling",
    "CricketShot",
    "CuttingInKitchen",
    "Diving",
    "Drumming",
    "Fencing",
    "FieldHockeyPenalty",
    "FloorGymnastics",
    "FrisbeeCatch",
    "FrontCrawl",
    "GolfSwing",
    "Haircut",
    "Hammering",
    "HammerThrow",
    "HandstandPushups",
    "HandstandWalking",
    "HeadMassage",
    "HighJump",
    "HorseRace",
    "HorseRiding",
    "HulaHoop",
    "IceDancing",
    "JavelinThrow",
    "JugglingBalls",
    "JumpingJack",
    "JumpRope",
    "Kayaking",
    "Knitting",
    "LongJump",
    "Lunges",
    "MilitaryParade",
    "Mixing",
    "MoppingFloor",
    "Nunchucks",
    "ParallelBars",
    "PizzaTossing",
    "PlayingCello",
    "PlayingDaf",
    "PlayingDhol",
    "PlayingFlute",
    "PlayingGuitar",
    "PlayingPiano",
    "PlayingSitar",
    "PlayingTabla",
    "PlayingViolin",
    "PoleVault",
    "PommelHorse",
    "PullUps",
    "Punch",
    "PushUps",
    "Rafting",
    "RockClimbingIndoor",
    "RopeClimbing",
    "Rowing",
    "SalsaSpin",
    "ShavingBeard",
    "Shotput",
    "SkateBoarding",
    "Skiing",
    "Skijet",
    "SkyDiving",
    "SoccerJuggling",
    "SoccerPenalty",
    "StillRings",
    "SumoWrestling",
    "Surfing",
    "Swing",
    "TableTennisShot",
    "TaiChi",
    "TennisSwing",
    "ThrowDiscus",
    "TrampolineJumping",
    "Typing",
    "UnevenBars",
    "VolleyballSpiking",
    "WalkingWithDog",
    "WallPushups",
    "WritingOnBoard",
    "YoYo",
)
# What the camera does: the direction in which it moves or turns, not that of the picture.
MOTIONS = (
    "pan-left",
    "pan-right",
    "pan-up",
    "pan-down",
    "zoom-in",
    "zoom-out",
    "rotate-left",
    "rotate-right",
    "shake",
    "still",
)

# Fields of `VideoDataConfig`. Frames {0, 1}, {10, 11}, ... of the first 50, pixels in 0..255.
UCF101_DATA: dict[str, Any] = {
    "input_size": [3, 240, 320],
    "resize": "squash",
    "crop_fraction": 1.0,
    "interpolation": "bilinear",
    "antialias": True,
    "mean": [0.0, 0.0, 0.0],
    "std": [1.0, 1.0, 1.0],
    "frames": 10,
    "tubelet": 2,
    "sampling": "released-ucf101",
    "frame_step": 10,
    "frame_rate": None,
    "pixel_range": "bytes",
}
# A second of 16 frames.
MOTION_DATA: dict[str, Any] = {
    **UCF101_DATA,
    "input_size": [3, 64, 64],
    "resize": "shortest",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "frames": 16,
    "sampling": "dense",
    "frame_step": 1,
    "frame_rate": 16.0,
    "pixel_range": "unit",
}
MOTION_ENCODINGS = ("pape", "rope", "none", "alibi")
# Names whose weights come with the package.
EMBEDDED = ("pape-video-vit-n-imagenette-motion",)


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    patch_size: int,
    num_classes: int,
    data: dict[str, Any],
    labels: tuple[str, ...] | None = None,
    time_unit_s: float | None = None,
    released: bool = False,
) -> dict[str, Any]:
    """A complete configuration of a video classifier.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        patch_size: Rows and columns of a tubelet in pixels; its frames are those of `data`.
        num_classes: Number of classes.
        data: Fields of `VideoDataConfig`.
        labels: Class names in the order of the logits.
        time_unit_s: Seconds of a unit of the time coordinate; `None`: it is the number of the tubelet.
        released: Follow the released networks: tubelets counted from 1 and the class token at the origin, instead of
            tubelets counted from 0 and a class token without position.
    """
    return {
        "schema_version": 1,
        "name": name,
        "modality": "video",
        "task": "classification",
        "architecture": "video-vit",
        "model": {
            **SIZES[size],
            "patch_size": patch_size,
            "tubelet": data["tubelet"],
            "in_chans": 3,
            "num_classes": num_classes,
            "encoding": encoding,
            "encoding_options": dict(ENCODING_OPTIONS.get(encoding, {})),
            "coordinate_origin": 1 if released else 0,
            "class_token_position": "origin" if released else None,
            "time_unit_s": time_unit_s,
            "pool": "token",
            "attention": "joint",
            "temporal_depth": 4,
            "drop_path": 0.0,
        },
        "data": {key: list(value) if isinstance(value, list) else value for key, value in data.items()},
        "labels": list(labels) if labels else None,
    }


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    ucf101: dict[str, Any] = {"patch_size": 16, "num_classes": 101, "data": UCF101_DATA}
    for size in SIZES:
        for encoding in ENCODING_OPTIONS:
            name = f"{encoding}-video-vit-{size}-ucf101"
            released = encoding == "pape" and size == "b"
            # The order of the classes of the released network is stated nowhere.
            labels = None if released else UCF101_LABELS
            made = config(name, encoding=encoding, size=size, labels=labels, released=released, **ucf101)
            yield {"name": name, "weights": "release" if released else "none", "config": made}
    # A unit of time is the duration of a tubelet, so that clips at other frame rates lie right.
    unit = MOTION_DATA["tubelet"] / MOTION_DATA["frame_rate"]
    motion: dict[str, Any] = {"patch_size": 8, "num_classes": len(MOTIONS), "data": MOTION_DATA, "labels": MOTIONS}
    for size in ("n", "t"):
        for encoding in MOTION_ENCODINGS:
            name = f"{encoding}-video-vit-{size}-imagenette-motion"
            yield {
                "name": name,
                "weights": "embedded" if name in EMBEDDED else "none",
                "command": f"zoo train imagenette-motion --model {name} --data DIR",
                "config": config(name, encoding=encoding, size=size, time_unit_s=unit, **motion),
            }


# What attends to what -> the blocks in words.
_BLOCKS = {
    "joint": "{depth} blocks",
    "divided": "{depth} blocks with attention over time, then over space",
    "factorised": "{depth} blocks within each time, then {temporal_depth} over time",
}


def card_words(config: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of a video classifier."""
    model, data = config["model"], config["data"]
    patch, blocks = model["patch_size"], _BLOCKS[model["attention"]].format(**model)
    rate = f" at {data['frame_rate']:g} frames a second" if data["frame_rate"] else ""
    clock = f"units of {model['time_unit_s']:g} s" if model["time_unit_s"] else "tubelets"
    return {
        "summary": f"A vision transformer for video {config['task']} with {{encoding}}: tubelets of {model['tubelet']} "
        f"frames x {patch} x {patch} px, width {model['dim']}, {blocks} of {model['num_heads']} heads, "
        f"{model['num_classes']} classes.",
        "input": f"{data['frames']} frames of {data['input_size'][1]} x {data['input_size'][2]} px{rate}; other "
        f"lengths and sizes work; time is counted in {clock}",
    }


def count_parameters(model: Mapping[str, Any]) -> int:
    """Number of parameters of the network that `model` (the `"model"` part of a configuration) describes.

    By arithmetic alone, so that a configuration from a stranger can be refused before anything is allocated.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    attention, pool = model.get("attention", "joint"), model.get("pool", "token")
    sizes = {"tubelet": model.get("tubelet"), "temporal_depth": model.get("temporal_depth", 4)}
    for key, value in sizes.items():
        if type(value) is not int or not 1 <= value <= 1 << 20:
            raise ConfigError(f"model config: {key} must be a whole number from 1 to {1 << 20}, got {value!r:.60}")
    model = {**model, "in_chans": model["in_chans"] * model["tubelet"]}
    dim, tokens = model["dim"], 1 if pool == "token" else 0
    if attention == "joint":
        total = count_encoder(model, AXES)
    else:
        space, time = (_for_axes(model, axes) for axes in (SPACE, TIME))
        total = count_encoder({**model, "depth": 0}, AXES) + model["depth"] * count_block(space, len(SPACE))
        if attention == "divided":  # In each block a LayerNorm and attention over time.
            total += model["depth"] * (2 * dim + count_attention_layer(time, len(TIME)))
        else:  # Blocks over time between LayerNorms of their own, and a class token in each frame.
            total += sizes["temporal_depth"] * count_block(time, len(TIME)) + 4 * dim + tokens * dim
    return int(total + tokens * dim + model["num_classes"] * (dim + 1))


def _for_axes(model: Mapping[str, Any], axes: tuple[int, ...]) -> dict[str, Any]:
    """The model part of a configuration with the encoding that acts on some of the axes."""
    encoding, options = for_axes(model["encoding"], model.get("encoding_options"), axes)
    return {**model, "encoding": encoding, "encoding_options": options}
