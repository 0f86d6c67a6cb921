"""Turn a recording of an event camera into tokens, whole and as it comes in, and find the digits that move in it.

Prints the events, how many tokens they make, whether the stream made the same ones, and the boxes. Without a file it
takes a recording that is made here: three drawn digits before a simulated camera.

python examples/events.py [RECORDING]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import zoo
from modalities.events.samples import digits
from modalities.events.tokenizer import SpikingPatches, Tokens

MODEL = "pape-event-det-n-nmnist-canvas"


def main(recording: Path) -> None:
    events = zoo.read(recording)
    seconds = (events.t_us[-1] - events.t_us[0]) / 1e6
    print(f"{recording.name}: {len(events):,} events in {seconds:.2f} s on {events.width} x {events.height} pixels")

    # A patch becomes a token when enough events fell into it; a stream gives the same tokens with bounded memory.
    tokenizer = SpikingPatches(events.width, events.height, patch_size=8, threshold=16, refractory_us=10_000)
    whole, stream = tokenizer(events), tokenizer.stream()
    parts = [stream.push(events[start : start + 1000]) for start in range(0, len(events), 1000)]
    pieces = Tokens.concatenate(parts)
    same = all(np.array_equal(getattr(whole, key), getattr(pieces, key)) for key in ("x", "y", "t_us", "patches"))
    print(f"{len(whole)} tokens, {len(parts)} pieces make {'the same' if same else 'OTHERS'}")

    for result in zoo.predictor(MODEL, min_score=0.5)(recording, stride_us=100_000):
        boxes = [f"{label} {score:.0%}" for label, score in zip(result.labels, result.scores, strict=True)]
        print(f"at {result.time_us[1] / 1e6:.2f} s: {', '.join(boxes) or 'nothing yet'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "digits.dat"
            file.write_bytes(digits())
            main(file)
