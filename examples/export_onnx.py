"""Export the small embedded model as ONNX, and classify with onnxruntime alone, at sizes that were never traced.

python examples/export_onnx.py [PICTURE]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

import zoo

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


def main(picture: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        print(zoo.export("pape-vit-n-imagenette", file))
        session = onnxruntime.InferenceSession(str(file))

    # From here on nothing of pape-zoo is used: labels and preprocessing are in the file.
    notes = session.get_modelmeta().custom_metadata_map
    labels, wanted = json.loads(notes["labels"]), json.loads(notes["preprocessing"])
    mean, std = (np.array(wanted[key], np.float32).reshape(-1, 1, 1) for key in ("mean", "std"))
    image = Image.open(picture).convert("RGB")
    for width, height in ((112, 112), (224, 224), (320, 240)):
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255
        inputs = (pixels.transpose(2, 0, 1) - mean) / std
        (logits,) = session.run(["logits"], {"images": inputs[None].astype(np.float32)})
        print(f"{width} x {height} px: {labels[int(logits[0].argmax())]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(SAMPLES / "golf_ball.jpg"))
