"""Build the site of `zoo browse`, serve it on this computer, and try a model through the server's API.

Prints how many pages there are, what the model sees in a picture at two sizes, and which patches the position encoding
of each head favours around the patch in the middle.

python examples/browse.py [PICTURE]
"""

import json
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

from zoo.site.build import build
from zoo.site.server import make_server

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
MODEL = "pape-vit-n-imagenette"


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        print(f"{len(list(Path(folder).rglob('*.html')))} pages")
        server = make_server(Path(folder))  # On 127.0.0.1 alone, at any free port.
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/api"

        def ask(question: str) -> dict:
            request = urllib.request.Request(f"{address}/{question}", data=picture.read_bytes(), method="POST")
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)

        for size in (112, 224):
            best = ask(f"predict?model={MODEL}&size={size}")["classes"][0]
            print(f"{size} px: {best['label']} {best['score']:.1%}")
        found = ask(f"bias?model={MODEL}&row=7&col=7&layer=0")
        for head, term in enumerate(found["heads"]):
            ranked = sorted(((value, row, col) for row, line in enumerate(term) for col, value in enumerate(line)))
            print(f"head {head}: most is added at row {ranked[-1][1]}, column {ranked[-1][2]} of {found['grid']}")
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES / "golf_ball.jpg")
