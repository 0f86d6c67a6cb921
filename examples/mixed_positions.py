"""Place a sequence of text, a picture and a video by the rules of several networks, and let a block attend over it.

Prints the ids (time, row, column) of tokens by each rule, and shows that a block which uses them does not care where
the sequence starts. The block has random weights.

python examples/mixed_positions.py
"""

import torch

from zoo import CoordinateAttention
from zoo.position_ids import V2PE, Image, MRoPE, ResetMRoPE, Text, Video, VideoRoPE

SEGMENTS = [Text(2), Image(rows=2, columns=2), Text(1), Video(frames=2, rows=1, columns=2), Text(1)]
NAMES = ["text", "text", "image", "image", "image", "image", "text", "video", "video", "video", "video", "text"]


def main() -> None:
    for name, scheme in (
        ("Qwen2-VL", MRoPE()),
        ("MRoPE-I", ResetMRoPE()),
        ("VideoRoPE", VideoRoPE()),
        ("V2PE, stride 1/4", V2PE(4)),
    ):
        coords = scheme(SEGMENTS)
        print(name)
        for kind, ids in zip(NAMES, coords.values[0].tolist(), strict=True):
            print(f"  {kind}: {', '.join(f'{value:g}' for value in ids)}")

    torch.manual_seed(0)
    attention = CoordinateAttention(64, num_heads=4, coord_dim=3, encoding="mrope").eval()
    x = torch.randn(1, len(NAMES), 64)
    with torch.inference_mode():
        here, far = (attention(x, MRoPE()(SEGMENTS, start=start)) for start in (0, 1000))
    print(f"started at 0 and at 1000, the outputs differ by {(here - far).abs().max():.0e}")


if __name__ == "__main__":
    main()
