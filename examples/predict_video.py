"""Say how the camera of a video moves, window by window, with the embedded model of camera motions.

Prints the likeliest motions of the whole clip, then those over time. Without a file it takes a clip that is drawn here.

python examples/predict_video.py [VIDEO]        # needs: pip install 'pape-zoo[video]'
"""

import sys
import tempfile
from pathlib import Path

import zoo
from modalities.video.samples import turning


def main(video: Path) -> None:
    predictor = zoo.predictor("pape-video-vit-n-imagenette-motion", top_k=3)
    result = predictor(video)
    for label, score in zip(result.labels, result.scores, strict=True):
        print(f"{label}: {score:.1%}")
    for start_us, end_us, label, score in result.stretches():
        print(f"{start_us / 1e6:.2f} to {end_us / 1e6:.2f} s: {label} {score:.1%}")

    # Larger than trained, with the same weights: coordinates count patches of 8 px.
    larger = zoo.predictor("pape-video-vit-n-imagenette-motion", size=96)(video)
    print(f"at 96 px: {larger.labels[0]} {larger.scores[0]:.1%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            clip = Path(folder) / "turning.mp4"
            clip.write_bytes(turning("rotate-left"))
            main(clip)
