"""The try-it panel over real HTTP: every embedded model answers, and says what is wrong with a file."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import threading
import zipfile

import numpy as np
import PIL.Image
import pytest
from pictures import RGB, encode
from site_client import running, site, toy_models

import zoo
from zoo import registry
from zoo.site import predictor as predictor_module
from zoo.site import running as running_module
from zoo.site import samples, uploads
from zoo.site.predictor import Predictor

EMBEDDED = registry.list_models(weights="embedded")
DECODERS = registry.list_models(weights="embedded", modality="sequence")
# What each sees in its first sample, and how many boxes or classes it lists at least.
SEEN = {
    "pape-event-det-n-nmnist-canvas": ("boxes", {"3", "5", "2"}),
    "pape-event-vit-n-nmnist1100": ("classes", {"7"}),
    "pape-fusion-n-simdrive": ("scene", set()),
    "pape-point-vit-n-modelnet10": ("classes", {"table"}),
    "pape-ptv3-n-als3": ("points", {"ground", "vegetation", "building"}),
    "pape-video-vit-n-imagenette-motion": ("classes", {"rotate-left"}),
    "pape-vit-det-n-bccd": ("boxes", {"RBC", "WBC", "Platelets"}),
    "pape-vit-n-imagenette": ("classes", {"church"}),
    "pape-vit-t-imagenette": ("classes", {"church"}),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with running(site(tmp_path_factory.mktemp("site")), Predictor()) as client:
        yield client


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    with running(site(folder / "site"), Predictor(toy_models(folder), held=2)) as client:
        yield client


def picture_of(address: str) -> PIL.Image.Image:
    kind, _, content = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return PIL.Image.open(io.BytesIO(base64.b64decode(content)))


def test_all_embedded_models_are_offered(client):
    listed = {about["name"]: about for about in client.get("/api/models").json}
    assert sorted(listed) == EMBEDDED and set(EMBEDDED) <= {*SEEN, *DECODERS}
    for name, about in listed.items():
        entry = registry.entry(name)
        assert (about["modality"], about["task"]) == (entry.modality, entry.task)
        assert about["samples"] or name in DECODERS
        assert (about["sizes"] is None) == (about["default_size"] is None)
        assert about["sizes"] is None or about["default_size"] in about["sizes"]
    assert listed["pape-vit-t-imagenette"]["input"] == "picture" and listed["pape-vit-t-imagenette"]["patch_bias"]
    assert listed["pape-vit-t-imagenette"]["default_size"] == 112
    assert listed["pape-vit-det-n-bccd"]["default_size"] == 320
    inputs = {about["input"] for about in listed.values()}
    assert inputs == {"picture", "video", "events", "points", "drive", "music"}


@pytest.mark.parametrize("name", [name for name in EMBEDDED if name not in DECODERS])
def test_every_embedded_model_sees_what_its_sample_shows(client, name):
    kind, labels = SEEN[name]
    (sample, *_) = next(about["samples"] for about in client.get("/api/models").json if about["name"] == name)
    if sample.endswith(".mp4"):
        pytest.importorskip("av")
    content = client.get(f"/api/sample/{sample}")
    assert content.status == 200 and content.body == samples.sample(sample)
    found = client.post(f"/api/predict?model={name}", content.body, X_Filename=sample)
    assert found.status == 200, found.body[:300]
    answer = found.json
    assert (answer["model"], answer["kind"]) == (name, kind) and answer["milliseconds"] > 0
    best = answer["boxes"] if kind == "boxes" else answer["classes"]
    assert best and all(0 <= one["score"] <= 1 for one in best)
    if kind == "classes":
        assert best[0]["label"] in labels
    else:
        assert labels <= {one["label"] for one in best}
    for box in answer["boxes"]:
        assert 0 <= box["x1"] < box["x2"] <= answer["width"] and 0 <= box["y1"] < box["y2"] <= answer["height"]
    if kind == "scene":
        assert "m ahead" in best[0]["label"] and best[0]["label"].startswith("car, ")
    if registry.entry(name).modality == "image":
        assert answer["picture"] is None and answer["view"]["x1"] <= 0 < answer["view"]["x2"]
    else:
        assert min(picture_of(answer["picture"]).size) > 100
    if kind in ("scene", "points"):
        assert answer["download"]["data-URL"].startswith("data:") and "." in answer["download"]["name"]


@pytest.mark.parametrize("name", DECODERS)
def test_every_embedded_model_of_music_begins_a_piece(client, name):
    pytest.importorskip("mido")
    body = json.dumps({"prompt": "", "tokens": 16}).encode()
    answer = client.post(f"/api/predict?model={name}", body, Content_Type="application/json").json
    assert (answer["model"], answer["kind"]) == (name, "text") and "soprano" in answer["text"]
    player = client.get(f"/api/{answer['page']}")
    assert player.status == 200 and b"<canvas" in player.body and b'"soprano"' in player.body
    assert base64.b64decode(answer["download"]["data-URL"].partition(",")[2]).startswith(b"MThd")


def test_answers_are_those_of_zoo_predict(client):
    name, content = "pape-vit-t-imagenette", encode("PNG")
    for size in (112, 64):
        expected = zoo.predictor(name, size=size)(content)
        answer = client.post(f"/api/predict?model={name}&size={size}", content, X_Filename="a.png").json
        assert [one["label"] for one in answer["classes"]] == list(expected.labels)
        np.testing.assert_allclose([one["score"] for one in answer["classes"]], expected.scores, atol=1e-5)
        assert (answer["size"], answer["width"], answer["height"]) == (size, RGB.shape[1], RGB.shape[0])
        assert answer["grid"] == [size // 8, size // 8]


def test_the_view_is_what_the_model_sees(client):
    wide = encode("PNG", np.zeros((100, 200, 3), np.uint8))
    square = client.post("/api/predict?model=pape-vit-n-imagenette", wide).json["view"]
    assert square == {"x1": 50.0, "y1": 0.0, "x2": 150.0, "y2": 100.0}
    # Letterboxed into 240 x 320: a border above and below.
    boxed = client.post("/api/predict?model=pape-vit-det-n-bccd", wide).json
    assert boxed["view"] == {"x1": 0.0, "y1": -25.0, "x2": 200.0, "y2": 125.0} and boxed["grid"] == [30, 40]
    # The proportions of training are kept at other sizes.
    assert client.post("/api/predict?model=pape-vit-det-n-bccd&size=160", wide).json["grid"] == [15, 20]


def test_loading_warms_a_model(client):
    found = client.post("/api/load?model=pape-vit-n-imagenette")
    assert found.status == 200 and found.json["ok"] and found.json["milliseconds"] >= 0


@pytest.mark.parametrize("form", ["TIFF", "PPM"])
def test_pictures_that_browsers_cannot_show_come_back(toys, form):
    shown = picture_of(toys.post("/api/predict?model=with", encode(form), X_Filename="a.tif").json["picture"])
    assert shown.size[0] / shown.size[1] == RGB.shape[1] / RGB.shape[0]
    assert toys.post("/api/predict?model=with", encode("GIF"), X_Filename="a.gif").json["picture"] is None


PICTURE = encode("PNG")


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ("model=pape-vit-t-imagenette", b"", 400, "empty"),
        ("model=pape-vit-t-imagenette", b"no picture", 400, "picture"),
        ("model=pape-vit-t-imagenette", PICTURE[:100], 400, "picture"),
        ("model=pape-vit-t-imagenette", encode("JPEG")[:-200], 400, "picture"),
        ("model=pape-vit-t-imagenette&size=0", PICTURE, 400, "multiple of 8"),
        ("model=pape-vit-t-imagenette&size=-8", PICTURE, 400, "multiple of 8"),
        ("model=pape-vit-t-imagenette&size=8", PICTURE, 400, "from 32"),
        ("model=pape-vit-t-imagenette&size=113", PICTURE, 400, "multiple of 8"),
        ("model=pape-vit-t-imagenette&size=1000000000", PICTURE, 400, "4096"),
        ("model=pape-vit-t-imagenette&size=520", PICTURE, 400, "4096"),
        ("model=pape-vit-b-in1k", PICTURE, 404, "no weights here"),
        ("model=rope-vit-t-imagenette", PICTURE, 404, "no weights here"),
        ("model=pape-vit-x-imagenette", PICTURE, 404, "is no model"),
        ("model=local-dir:/etc", PICTURE, 404, "is no model"),
        ("model=hf-hub:a/b", PICTURE, 404, "is no model"),
        ("model=../hub_cards", PICTURE, 404, "is no model"),
        ("model=pape-event-vit-n-nmnist1100", b"x" * 7, 400, "recording"),
        ("model=pape-event-vit-n-nmnist1100&size=34", samples.sample("digit.bin"), 400, "size is for"),
        ("model=pape-event-det-n-nmnist-canvas", samples.sample("digits.dat")[:-3], 400, "truncated|ends"),
        ("model=pape-point-vit-n-modelnet10", b"OFF\n3 1 0\n0 0", 400, "cloud"),
        ("model=pape-ptv3-n-als3", b"\0" * 10, 400, "cloud"),
        ("model=pape-fusion-n-simdrive", b"PK\3\4 no archive", 400, "ZIP"),
        ("model=pape-fusion-n-simdrive", PICTURE, 400, "ZIP"),
    ],
)
def test_what_cannot_be_predicted(client, query, body, status, message):
    found = client.post(f"/api/predict?{query}", body, X_Filename="a.dat" if "event-det" in query else "a.bin")
    assert found.status == status and re.search(message, found.error), found.body


def test_only_the_suffix_of_a_name_is_used():
    assert uploads.source_name("cloud", "../../etc/x.PLY") == "cloud.ply"
    assert uploads.source_name("cloud", "a.pcd.bin") == "cloud.pcd.bin"
    for name in ("", "a", "a.", "a.b/c", "a.x\0y", "a.\n", "a." + "b" * 9, "a.ü"):
        assert uploads.source_name("cloud", name) == "cloud"


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/a", "..\\a", "C:\\a", "a/../b"])
def test_archives_write_nothing_outside(client, tmp_path, monkeypatch, name):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = client.post("/api/predict?model=pape-fusion-n-simdrive", archive(**{name: b"x"}), X_Filename="a.zip")
    assert found.status == 400 and "outside" in found.error
    assert not list(tmp_path.iterdir())


def test_archives_that_hold_no_drive_are_named_as_the_user_knows_them(client):
    for content in (archive(a=b"x"), archive(**{"drive/v1.0-mini/sample.json": b"[]"}), archive()):
        found = client.post("/api/predict?model=pape-fusion-n-simdrive", content, X_Filename="my.zip")
        assert found.status == 400 and "drive.zip" in found.error and "pape-zoo-" not in found.error


def test_archives_that_grow(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(uploads, "MOST_BYTES", 2**20)
    monkeypatch.setattr(uploads, "MOST_FILES", 3)
    with uploads.unpacked(archive(a=bytes(2**20)), "a.zip") as folder:
        assert (folder / "a").stat().st_size == 2**20
    with pytest.raises(zoo.DataError, match="more than 1 MiB"), uploads.unpacked(archive(a=bytes(2**20), b=b"x"), "a"):
        pass
    with pytest.raises(zoo.DataError, match="4 files"), uploads.unpacked(archive(a=b"", b=b"", c=b"", d=b""), "a"):
        pass
    damaged = bytearray(archive(a=bytes(range(256)) * 40))
    damaged[60:70] = b"\xff" * 10
    with pytest.raises(zoo.DataError, match="ZIP"), uploads.unpacked(bytes(damaged), "a.zip"):
        pass
    assert not list(tmp_path.iterdir())


def test_text_is_continued_and_never_read_as_the_name_of_a_file(toys, tmp_path):
    (tmp_path / "secret.txt").write_text("hushhushhush")
    for prompt in ("ROMEO", str(tmp_path / "secret.txt")):
        body = json.dumps({"prompt": prompt, "tokens": 5, "seed": 1}).encode()
        found = toys.post("/api/predict?model=shakespeare", body, Content_Type="application/json")
        if found.status == 200:  # Characters of the path need not be known to the model.
            assert found.json["kind"] == "text" and found.json["text"].startswith(prompt)
            assert len(found.json["text"]) == len(prompt) + 5
        assert b"hush" not in found.body
    assert toys.post("/api/load?model=shakespeare").status == 200
    about = next(about for about in toys.get("/api/models").json if about["name"] == "shakespeare")
    assert (about["input"], about["sizes"], about["patch_bias"]) == ("text", None, False)


def test_music_needs_no_prompt(toys):
    pytest.importorskip("mido")
    body = json.dumps({"prompt": None, "tokens": 8}).encode()
    answer = toys.post("/api/predict?model=jsb", body, Content_Type="application/json").json
    assert answer["download"]["name"] == "result.mid"
    assert base64.b64decode(answer["download"]["data-URL"].partition(",")[2]).startswith(b"MThd")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 3}, "text"),
        ({"prompt": "A", "tokens": 0}, "tokens"),
        ({"prompt": "A", "tokens": 10**9}, "tokens"),
        ({"prompt": "A", "temperature": "hot"}, "temperature"),
        ({"prompt": "A", "path": "/etc/passwd"}, "unknown key 'path'"),
        ({"prompt": "\u2603"}, "\u2603|character|token"),
    ],
)
def test_prompts_that_cannot_be_continued(toys, request_, message):
    body = json.dumps(request_).encode()
    found = toys.post("/api/predict?model=shakespeare", body, Content_Type="application/json")
    assert found.status == 400 and re.search(message, found.error)


def test_files_and_prompts_are_not_mixed_up(toys):
    assert "prompt" in toys.post("/api/predict?model=shakespeare", b"ROMEO").error
    found = toys.post("/api/predict?model=with", b'{"prompt": "a"}', Content_Type="application/json")
    assert found.status == 400 and "takes a file" in found.error


def test_what_takes_too_long_is_told(toys, monkeypatch):
    monkeypatch.setattr(running_module, "MOST_SECONDS", -1.0)
    body = json.dumps({"prompt": "A", "tokens": 5}).encode()
    found = toys.post("/api/predict?model=shakespeare", body, Content_Type="application/json")
    assert found.status == 400 and "takes longer" in found.error


def test_one_prediction_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(predictor_module, "WAIT_SECONDS", 0.05)
    one = Predictor()
    with running(site(tmp_path), one) as client:
        with one._alone():
            found = client.post("/api/predict?model=pape-vit-n-imagenette", PICTURE)
            assert found.status == 503 and "try again" in found.error
            assert client.get("/api/models").status == 200
        assert client.post("/api/predict?model=pape-vit-n-imagenette", PICTURE).status == 200


def test_nothing_is_predicted_that_nobody_waits_for(monkeypatch):
    one = Predictor()
    monkeypatch.setattr(predictor_module, "run_file", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(predictor_module, "patch_bias", lambda *_: pytest.fail("ran"))
    for ask in (one.predict, lambda *given, **options: one.bias(*given, row=0, col=0, layer=0, **options)):
        with pytest.raises(predictor_module.Busy, match="nobody waits"):
            ask("pape-vit-n-imagenette", PICTURE, wanted=lambda: False)
    assert not one._lock.locked()


def test_many_at_once_get_the_same_answers(toys):
    names = ["with", "without", "both"]
    expected = {name: toys.post(f"/api/predict?model={name}", PICTURE).json["classes"] for name in names}
    found: list[tuple[str, object]] = []

    def ask(name):
        found.append((name, toys.post(f"/api/predict?model={name}", PICTURE).json["classes"]))

    threads = [threading.Thread(target=ask, args=(names[number % 3],)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and all(classes == expected[name] for name, classes in found)


def test_few_models_are_held(tmp_path):
    held = Predictor(held=1)
    for name in ("pape-vit-n-imagenette", "pape-vit-t-imagenette"):
        held.predict(name, PICTURE)
        assert list(held._loaded) == [name]


def test_a_long_recording_shows_the_window_with_most(client, monkeypatch):
    from modalities.events import Events, open_events
    from modalities.events.canvas import write_dat

    once = open_events(samples.sample("digits.dat"), name="digits.dat").read()
    where = "/api/predict?model=pape-event-det-n-nmnist-canvas"
    expected = client.post(where, samples.sample("digits.dat"), X_Filename="a.dat").json["boxes"]
    quiet = np.flatnonzero(np.arange(len(once)) % 50 == 0)
    parts = [once[quiet], once, once[quiet]]
    shifted = [
        Events(part.t_us + 300_000 * number, part.x, part.y, part.p, width=once.width, height=once.height)
        for number, part in enumerate(parts)
    ]
    long = write_dat(Events.concatenate(shifted))
    answer = client.post(where, long, X_Filename="a.dat").json
    start, end = map(float, re.match(r"([\d.]+) to ([\d.]+) s, where most", answer["note"]).groups())
    assert 0.3 <= end <= 0.9 and end - start == pytest.approx(0.3, abs=0.01)
    assert len(answer["boxes"]) >= len(expected) - 1
    monkeypatch.setattr(running_module, "MOST_WINDOWS", 2)
    assert "first 2 windows" in client.post(where, long, X_Filename="a.dat").json["note"]


def test_without_matplotlib_a_cloud_has_no_picture(client, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name, file in (("pape-point-vit-n-modelnet10", "table.off"), ("pape-ptv3-n-als3", "village.npz")):
        answer = client.post(f"/api/predict?model={name}", samples.sample(file), X_Filename=file).json
        assert answer["classes"] and answer["picture"] is None and "pape-zoo[viz]" in answer["note"]


def test_samples_are_always_the_same():
    for name in ("cells.png", "digit.bin", "digits.dat", "table.off", "village.npz"):
        assert samples.sample.__wrapped__(name) == samples.sample(name)


def test_no_photographs_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(samples, "PHOTOGRAPHS", tmp_path / "samples")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "mine.jpg").write_bytes(b"x")
    assert samples.names({"modality": "image", "task": "classification"}) == []
    one = Predictor()
    assert one.load("pape-vit-n-imagenette")["ok"]  # Warmed with a picture that is made.
    with pytest.raises(zoo.DataError, match="no sample"):
        samples.sample.__wrapped__("mine.jpg")
