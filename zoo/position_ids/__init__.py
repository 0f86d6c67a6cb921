"""Position ids for mixed content: text, images and videos in one sequence, as `zoo.Coordinates`.

A sequence is a list of segments; a scheme gives every token its ids. Names below are those of this module:

    >>> coords = MRoPE()([Text(2), Image(1, 2), Text(1)])
    >>> coords.values.shape, coords.values[0].int().tolist()
    (torch.Size([1, 5, 3]), [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4]])

| network | scheme | axes | encoding |
|---|---|---|---|
| Qwen2-VL | `MRoPE()` | t, row, column | `mrope`, arrangement chunked |
| Qwen2.5-VL | `MRoPE(Seconds(2))` | t, row, column | `mrope`, arrangement chunked |
| Qwen2.5-VL in transformers 5 | `TransformersMRoPE(2)` | t, row, column | `mrope`, arrangement chunked |
| Qwen3-VL | `FramewiseMRoPE()` on `timestamped(video, ...)` | t, row, column | `mrope`, arrangement interleaved |
| MRoPE-I | `ResetMRoPE()` | t, row, column | `mrope`, arrangement interleaved |
| VideoRoPE | `VideoRoPE()` | t, row, column | `mrope`, arrangement videorope |
| V2PE | `V2PE(stride)`, `RandomV2PE()`, `SpanV2PE(span)` | one | `rope` with base 10000 or more |
| 2-D text | `fixed_rows`, `newline_rows` | row, column | `rope` |

Batches are padded or packed; padding has no position:

    >>> coords = MRoPE().batch([[Text(3)], [Text(1)]])
    >>> coords.positioned.tolist()
    [[True, True, True], [True, False, False]]
    >>> MRoPE().packed([[Text(3)], [Text(1)]]).cu_seqlens.tolist()
    [0, 3, 4]

A crop keeps the coordinates of the whole picture, a margin of padding shifts nothing:

    >>> MRoPE()([Image(4, 4, crops=[Crop(2, 1, 1, 2)]), Text(1)]).values[0].int().tolist()
    [[0, 2, 1], [0, 2, 2], [4, 4, 4]]
    >>> coords = MRoPE()([Image(1, 2, margin=Margin(left=1)), Padding(1), Text(1)])
    >>> coords.values[0, coords.positioned[0]].int().tolist(), coords.positioned[0].tolist()
    ([[0, 0, 0], [0, 0, 1], [2, 2, 2]], [False, True, True, False, True])

Ids may start anywhere; `origin` is subtracted exactly, before anything becomes floating point:

    >>> MRoPE()([Text(2)], start=10**17 + 5, origin=10**17).values[0, :, 0].tolist()
    [5.0, 6.0]
"""

from zoo.position_ids.mrope import (
    Clock,
    FrameIndex,
    FramewiseMRoPE,
    MRoPE,
    ResetMRoPE,
    Seconds,
    TransformersMRoPE,
    VideoRoPE,
)
from zoo.position_ids.scheme import Placement, Scheme
from zoo.position_ids.segments import Crop, Image, Margin, Padding, Segment, Text, Video, Vision, timestamped
from zoo.position_ids.text2d import fixed_rows, newline_rows
from zoo.position_ids.v2pe import V2PE, RandomV2PE, SpanV2PE

__all__ = [
    "Clock",
    "Crop",
    "FrameIndex",
    "FramewiseMRoPE",
    "Image",
    "MRoPE",
    "Margin",
    "Padding",
    "Placement",
    "RandomV2PE",
    "ResetMRoPE",
    "Scheme",
    "Seconds",
    "Segment",
    "SpanV2PE",
    "Text",
    "TransformersMRoPE",
    "V2PE",
    "Video",
    "VideoRoPE",
    "Vision",
    "fixed_rows",
    "newline_rows",
    "timestamped",
]
