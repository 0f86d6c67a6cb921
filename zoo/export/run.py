"""Exported files as models: they go wherever a classifier or detector of this library goes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.config_file import check_config, open_regular, parse_json
from zoo.detection.detections import Detections
from zoo.errors import ConfigError, DataError, WeightsError, require

__all__ = ["NOTES", "ExportedModel", "backend_of", "load_exported"]

NOTES = "pape_zoo.json"
"""Name of the notes in a file of torch.export."""

TRUSTED = "trusted:"
"""What stands before a file whose loading may run code that is in it."""

Backend = Callable[[dict[str, Tensor]], Tensor]
"""Runs a graph: from inputs by name to its output, all on the CPU."""


def load_exported(name: str, device: torch.device | None = None) -> ExportedModel:
    """Loads a file that `zoo.export` wrote.

    Args:
        name: A file `.onnx`; or `trusted:FILE.pt2`, since loading what torch.export saved can run code.
        device: The CPU, or CUDA for ONNX where onnxruntime has it.

    Raises:
        ConfigError: If the device cannot be used, or the file must be trusted first.
        WeightsError: If the file cannot be read, or is not one of ours.
        MissingDependencyError: If onnxruntime or torchao is needed and not installed.
    """
    path = Path(name.removeprefix(TRUSTED)).expanduser()
    if path.suffix == ".pt2" and not name.startswith(TRUSTED):
        raise ConfigError(
            f"{path}: a file of torch.export may hold code that runs when it is loaded; if you know where it is from, "
            f"name it {TRUSTED}{path}"
        )
    with open_regular(path) as file:
        data = file.read()
    cuda = device is not None and device.type == "cuda"
    if cuda and path.suffix == ".pt2":
        raise ConfigError(f"{path}: files of torch.export are run on the CPU here")
    try:
        backend = backend_of(data, path.suffix, cuda=cuda)
    except (ConfigError, ImportError):
        raise
    except Exception as error:  # Of damaged files runtimes raise what they please.
        raise WeightsError(f"{path} cannot be loaded: {_first_line(error)}") from error
    text = backend.notes
    if text is None:
        raise WeightsError(f"{path} was not made by zoo export: it has no notes on its inputs")
    notes = parse_json(text.encode(), str(path))
    return ExportedModel(backend, _checked(notes, str(path)))


def _checked(notes: Any, where: str) -> dict[str, Any]:
    """Notes with a configuration that can be used."""
    graph = notes.get("graph") if isinstance(notes, dict) else None
    inputs = graph.get("inputs") if isinstance(graph, dict) else None
    known = (
        isinstance(graph, dict)
        and isinstance(inputs, dict)
        and list(inputs) in (["images"], ["clips"], ["clips", "times_s"])
        and all(
            isinstance(sizes, list) and all(type(size) in (int, str) for size in sizes) for sizes in inputs.values()
        )
        and graph.get("output") in ("logits", "detections")
        and isinstance(notes.get("config"), dict)
    )
    if not known:
        raise WeightsError(f"{where}: the notes on inputs and output are not those of zoo export")
    return {**notes, "config": check_config(notes["config"], where)}


class ExportedModel(nn.Module):
    """A graph with the configuration of the model it was made from.

    It has no parameters that can be trained; on its device is where outputs come back.

    Attributes:
        config: The model's configuration, with `labels`.
        data_config: How pictures or clips are prepared.
        graph: Format, weights (`"float32"`, `"float16"` or `"int8"`), inputs and output.
        num_classes: Number of classes.
    """

    def __init__(self, backend: Backend, notes: Mapping[str, Any]) -> None:
        super().__init__()
        self._backend = backend
        self.config: dict[str, Any] = dict(notes["config"])
        self.graph: dict[str, Any] = dict(notes["graph"])
        self.data_config = registry.architecture(self.config).data_config(self.config["data"])
        self.num_classes = int(self.config["model"]["num_classes"])
        self.patch_size = int(self.config["model"]["patch_size"])
        self.load_report: Any = None
        self.anchor = nn.Parameter(torch.empty(0), requires_grad=False)  # By it callers tell device and dtype.

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, times_s: Tensor | None = None) -> Any:
        """Runs the graph; arguments as for the model it was made from.

        Clips of several lengths run one length after the other.

        Returns:
            Logits (B, classes) float32, or `Detections`, on the device of the inputs.

        Raises:
            DataError: If the graph does not take the inputs; it says which it takes.
        """
        name, sizes = next(iter(self.graph["inputs"].items()))
        self._check(inputs, sizes, name)
        if lengths is not None:
            return self._by_length(inputs, lengths, times_s)
        feed = {name: inputs.detach().to("cpu", torch.float32).contiguous()}
        if "times_s" in self.graph["inputs"]:
            feed["times_s"] = self._times(inputs, times_s)
        elif times_s is not None:
            raise DataError("times_s is for models with time_unit_s; this one counts frames: leave it out")
        try:
            output = self._backend(feed)
        except Exception as error:
            size = " x ".join(map(str, inputs.shape))
            raise DataError(f"the graph does not take {name} of {size}: {_first_line(error)}") from error
        output = output.float().to(inputs.device)
        if self.graph["output"] == "detections":
            return Detections(output, (inputs.shape[-2], inputs.shape[-1]), self.data_config)
        return output

    def _check(self, inputs: Any, sizes: list[int | str], name: str) -> None:
        shape = f"({', '.join(map(str, sizes))})"
        if not isinstance(inputs, Tensor) or inputs.dim() != len(sizes) or not inputs.is_floating_point():
            given = f"{inputs.dtype} {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
            raise DataError(f"{name} must be a floating-point tensor {shape}, got {given}")
        wrong = any(isinstance(size, int) and size != given for size, given in zip(sizes, inputs.shape, strict=True))
        if wrong or min(inputs.shape) < 1:
            raise DataError(f"the graph takes {name} of {shape}, got {tuple(inputs.shape)}; export one for other sizes")
        if self.config["model"].get("size_policy") == "pad":
            return
        height, width = inputs.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise DataError(
                f"{name} of {height} x {width} pixels do not divide into {self.patch_size} x {self.patch_size} patches"
            )

    def _times(self, clips: Tensor, times_s: Tensor | None) -> Tensor:
        """Seconds of each frame; without them, as many frames a second as `data_config` says."""
        shape = (clips.shape[0], clips.shape[2])
        if times_s is None:
            rate = self.data_config.frame_rate
            if rate is None:
                raise DataError(f"the model counts time in seconds: give times_s {shape}, the times of the frames")
            return (torch.arange(shape[1], dtype=torch.float64) / rate).expand(shape).contiguous()
        if tuple(times_s.shape) != shape or not times_s.is_floating_point():
            raise DataError(f"times_s must be floating point {shape}, got {times_s.dtype} {tuple(times_s.shape)}")
        return times_s.detach().to("cpu", torch.float64).contiguous()

    def _by_length(self, clips: Tensor, lengths: Tensor, times_s: Tensor | None) -> Tensor:
        if tuple(lengths.shape) != (clips.shape[0],) or int(lengths.min()) < 1:
            raise DataError(f"lengths must be ({clips.shape[0]},) tubelets, and 1 or more in an exported model")
        tubelet = int(self.config["model"]["tubelet"])
        out = clips.new_zeros(clips.shape[0], self.num_classes, dtype=torch.float32)
        for length in lengths.unique().tolist():
            rows, frames = (lengths == length).nonzero()[:, 0].to(clips.device), length * tubelet
            own = None if times_s is None else times_s[rows.to(times_s.device), :frames]
            out[rows] = self.forward(clips[rows, :, :frames], None, own)
        return out


def backend_of(data: bytes, suffix: str, *, cuda: bool = False) -> Any:
    """What runs the graph of a file's bytes; its `notes` are what the file says of itself, `None` for foreign ones."""
    return _OnnxBackend(data, cuda) if suffix == ".onnx" else _TorchBackend(data)


class _OnnxBackend:
    def __init__(self, data: bytes, cuda: bool) -> None:
        runtime = require("onnxruntime", "export")
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # Errors come as exceptions.
        if torch.get_num_threads() == 1:  # Also under OMP_NUM_THREADS=1, which onnxruntime does not read.
            options.intra_op_num_threads = 1
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"]
        if cuda and providers[0] not in runtime.get_available_providers():
            raise ConfigError("device 'cuda' cannot be used: it takes onnxruntime-gpu in place of onnxruntime")
        self.session = runtime.InferenceSession(data, options, providers=providers)
        self.notes: str | None = self.session.get_modelmeta().custom_metadata_map.get("pape_zoo")

    def __call__(self, feed: dict[str, Tensor]) -> Tensor:
        (output,) = self.session.run(None, {name: value.numpy() for name, value in feed.items()})
        return torch.from_numpy(output)


class _TorchBackend:
    def __init__(self, data: bytes) -> None:
        self.notes = _notes_of(data)
        if self.notes is None:  # Not ours: nothing of it is unpickled.
            return
        if '"weights": "int8"' in self.notes:
            require("torchao", "quant")  # Its classes are in the file.
        self.module = torch.export.load(io.BytesIO(data)).module()

    def __call__(self, feed: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            output: Tensor = self.module(*feed.values())
        return output


def _notes_of(data: bytes) -> str | None:
    """The notes, read before anything is unpickled."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if name.endswith(f"extra/{NOTES}") or name.endswith(f"/{NOTES}"):
                return archive.read(name).decode()
    return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
