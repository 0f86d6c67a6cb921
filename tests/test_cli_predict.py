import contextlib
import csv
import http.server
import io
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import zoo
from modalities.image.model import build
from zoo.cli.main import main


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    from conftest import TINY_CONFIG

    torch.manual_seed(0)
    model = build(TINY_CONFIG)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    return zoo.save(model, tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def name(model_folder):
    return f"local-dir:{model_folder}"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    root.mkdir()
    for index in range(4):
        array = np.random.default_rng(index).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        PIL.Image.fromarray(array).save(root / f"{index}.png")
    return root


@pytest.fixture
def run(capsys):
    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["predict", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        assert "Traceback" not in err
        return out, err

    return call


def spoil(folder: Path) -> None:
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:1200])
    (folder / "3.png").write_bytes(b"words")


def test_blocks(run, name, folder):
    out, err = run(name, folder)
    blocks = out.strip().split("\n\n")
    expected = zoo.predictor(name)(folder)
    assert [block.splitlines()[0] for block in blocks] == [f"{folder}/{index}.png (50 x 40)" for index in range(4)]
    assert blocks == [str(result) for result in expected] and err == ""


def test_json(run, name, folder):
    rows = json.loads(run(name, folder, "--json", "--top-k", "2", "--batch-size", "3")[0])
    assert [Path(row["source"]).name for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
    assert all(len(row["predictions"]) == 2 for row in rows)
    assert rows[0]["predictions"][0]["score"] == pytest.approx(zoo.predictor(name)(folder / "0.png").score, abs=1e-5)


def test_csv(run, name, folder):
    odd = folder / 'with "quotes", and commas.png'
    shutil.copy(folder / "0.png", odd)
    rows = list(csv.DictReader(io.StringIO(run(name, odd, folder / "1.png", "--csv")[0])))
    assert list(rows[0]) == ["source", "rank", "index", "label", "score"] and len(rows) == 6
    assert rows[0]["source"] == str(odd) and [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    assert float(rows[0]["score"]) == pytest.approx(zoo.predictor(name)(odd).score, abs=1e-5)


def test_the_others_run_when_some_are_bad(run, name, folder):
    spoil(folder)
    out, err = run(name, folder, "absent.png", f"{folder}/*.gif", "--json", code=2)
    assert [Path(row["source"]).name for row in json.loads(out)] == ["0.png", "2.png"]
    lines = err.splitlines()
    assert len(lines) == 4 and all(line.startswith("error: ") for line in lines)
    for word in (f"{folder}/1.png", f"{folder}/3.png", "absent.png", "*.gif"):
        assert sum(word in line for line in lines) == 1
    assert len(run(name, folder, "--csv", code=2)[0].splitlines()) == 1 + 2 * 3
    assert run(name, folder, code=2)[0].count("(50 x 40)") == 2


def test_when_all_are_bad(run, name, tmp_path):
    (tmp_path / "text.jpg").write_text("words")
    for option, expected in {"--json": "[]\n", "--csv": "source,rank,index,label,score\n", "--quiet": ""}.items():
        out, err = run(name, tmp_path / "text.jpg", option, code=2)
        assert out == expected and err.count("\n") == 1 and "text.jpg" in err and "it is text" in err


def test_keep_and_frame(run, name, folder):
    spoil(folder)
    out, _ = run(name, folder / "1.png", "--errors", "keep", "--json")
    assert json.loads(out)[0]["truncated"] is True
    frames = [PIL.Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    first, second = (run(name, folder / "a.gif", "--frame", frame)[0] for frame in (0, 1))
    assert first != second
    assert "no frame 2, it has 2" in run(name, folder / "a.gif", "--frame", 2, code=2)[1]


def test_save_overwrites_nothing(run, name, folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    target = tmp_path / "new" / "annotated"
    out, err = run(name, folder / "0.png", other / "0.png", "--save", target)
    assert out and "2 annotated pictures" in err
    assert sorted(path.name for path in target.iterdir()) == ["0-2.png", "0.png"]
    assert PIL.Image.open(target / "0.png").width == 320
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(name, folder / "0.png", "--save", folder, "--quiet")[1] == ""
    assert all(path.read_bytes() == data for path, data in before.items()) and (folder / "0-2.png").exists()
    (tmp_path / "plain").write_text("words")
    assert "cannot be made a folder" in run(name, folder, "--save", tmp_path / "plain", code=2)[1]


def test_size(run, name, folder):
    assert run(name, folder / "0.png", "--size", 64)[0] != run(name, folder / "0.png")[0]
    out, err = run(name, folder, "--size", 100, code=2)
    assert out == "" and err == "error: size 100 is not a multiple of the model's patch, 8 pixels: use 96 or 104\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--json", "--csv"], "exclude each other"),
        (["--errors", "drop"], "raise or keep"),
        (["--top-k", "0"], "top_k"),
        (["--batch-size", "0"], "batch_size"),
        (["--device", "warp"], "warp"),
        (["--dtype", "int8"], "dtype"),
        (["--frame", "-1"], "frame must be"),
    ],
)
def test_bad_options(run, name, folder, arguments, word):
    out, err = run(name, folder, *arguments, code=2)
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and word in err


def test_unknown_model_and_no_source(run, folder):
    out, err = run("pape-vit-q-imagenette", folder, code=2)
    assert out == "" and err.startswith("error: no model is called")
    run("pape-vit-t-imagenette", code=2)


def test_damaged_weights_leave_valid_json(run, model_folder, folder, tmp_path):
    from zoo.loading import load

    model = load(f"local-dir:{model_folder}")
    with torch.no_grad():
        model.head.bias.fill_(1e38).mul_(torch.tensor([1.0, -1.0, 1.0]))
        model.head.weight.fill_(1e38)
    zoo.save(model, tmp_path / "broken")
    out, err = run(f"local-dir:{tmp_path / 'broken'}", folder, "--json", code=2)
    assert json.loads(out) == [] and "not finite" in err


def test_names_that_are_no_text(run, name, folder):
    odd = os.fsencode(folder) + b"/\xff\x1b[31m\n.png"
    shutil.copy(folder / "0.png", odd)
    for option, kind in (
        ("--quiet", str),
        ("--json", json.loads),
        ("--csv", lambda text: list(csv.reader(io.StringIO(text)))),
    ):
        out, _ = run(name, os.fsdecode(odd), option)
        assert kind(out) and (option == "--csv" or "\x1b" not in out)


def test_url(run, name, folder, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        out, err = run(name, f"{url}/0.png", f"{url}/gone.png", "--json", "--save", folder / "out", code=2)
        server.shutdown()
    row = json.loads(out)[0]
    assert row["source"] == f"{url}/0.png" and row["path"] is None and "gone.png: the server answered 404" in err
    assert (folder / "out" / "0.png").exists()


def command(*arguments):
    return [sys.executable, "-m", "zoo.cli.main", "predict", *map(str, arguments)]


def test_standard_input(name, folder):
    done = subprocess.run(command(name, "-", "--json"), input=(folder / "0.png").read_bytes(), capture_output=True)
    assert done.returncode == 0 and json.loads(done.stdout)[0]["source"] == "stdin"


def test_empty_standard_input(run, name, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    out, err = run(name, "-", folder / "0.png", code=2)
    assert err == "error: stdin: not a picture that can be read: it is empty\n" and "0.png" in out


def test_progress_bar_on_a_terminal(name, folder):
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(command(name, folder, "--json"), stdout=subprocess.PIPE, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # How Linux says that the other end is closed.
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 4
    assert b"predicting" in shown


@pytest.mark.parametrize(("arguments", "expected"), [([], True), (["--quiet"], False)])
def test_quiet(run, name, folder, monkeypatch, arguments, expected):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out, err = run(name, folder, "--json", *arguments)
    assert len(json.loads(out)) == 4 and ("predicting" in err) is expected


def test_few_pictures_need_no_bar(run, name, folder, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(name, folder / "0.png")[1] == ""
