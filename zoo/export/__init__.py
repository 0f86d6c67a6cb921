"""`zoo.export(model, path)`: models as ONNX or torch.export graphs for inputs of any size, with what they need to know.

The graphs take batches, heights and widths (and lengths of clips) that they were never traced at: coordinates are
computed in them. `zoo.load` runs the files, and with it everything else that takes a model: `zoo predict`, `zoo eval`.
"""

from __future__ import annotations

from zoo._callable_module import make_callable
from zoo.export.write import OPSET, ExportReport, export

__all__ = ["OPSET", "ExportReport", "export"]

make_callable(__name__, "export")
