"""`hf-hub:` names against a Hub on localhost, then from the cache with sockets blocked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import Repository, serve
from saved_models import make_model

import zoo
from zoo import checkpoints, hub

# Run apart, since huggingface_hub reads its environment when it is imported.
CHILD = """
import json, os, socket, sys
if os.environ.get("BLOCK_SOCKETS"):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was used")
    socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
import torch
import zoo
from zoo import registry
pin = json.loads(os.environ.get("PIN", "null"))
if pin:
    made = registry.Entry(**{**pin, "hub": registry.HubLocation(**pin["hub"])})
    registry._entries()[made.name] = made
answers = []
for name, options in json.loads(sys.argv[1]):
    try:
        model = zoo.load(name, **options)
        with torch.no_grad():
            logits = model(torch.full((1, 3, 32, 32), 0.25))[0].tolist()
        answers.append({"source": model.load_report.source, "sha256": model.load_report.sha256, "logits": logits,
                        "adapted": model.load_report.adapted})
    except zoo.ZooError as error:
        answers.append({"error": type(error).__name__, "message": str(error)})
print(json.dumps(answers))
"""


def loads(calls: list, environment: dict[str, str]) -> list[dict]:
    base = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(calls)],
        env={**base, **quiet, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Two models and folders that are none."""
    from conftest import TINY_CONFIG

    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("first", "second")):
        zoo.save(make_model(TINY_CONFIG, seed), root / name)
        (root / name / "modeling.py").write_text("raise SystemExit('executed')")
    for name, files in {"empty": {}, "huge": {"config.json": "[" + " " * (2 << 20) + "]"}}.items():
        (root / name).mkdir()
        for file, text in files.items():
            (root / name / file).write_text(text)
    (root / "pickled").mkdir()
    (root / "pickled" / "config.json").write_text((root / "first" / "config.json").read_text())
    torch.save({}, root / "pickled" / "pytorch_model.bin")
    return {path.name: path for path in root.iterdir()}


def expected(folder: Path) -> list[float]:
    with torch.no_grad():
        return zoo.load(f"local-dir:{folder}")(torch.full((1, 3, 32, 32), 0.25))[0].tolist()


def test_online_then_offline(models, tmp_path):
    repositories = {
        "org/pape": Repository({"main": models["first"], "v1": models["second"]}),
        "org/gated": Repository({"main": models["first"]}, gated=True),
        "org/empty": Repository({"main": models["empty"]}),
        "org/huge": Repository({"main": models["huge"]}),
        "org/pickled": Repository({"main": models["pickled"]}),
    }
    environment = {"HF_HOME": str(tmp_path / "hf")}
    with serve(repositories) as server:
        environment["HF_ENDPOINT"] = server.endpoint
        calls = [
            ["hf-hub:org/pape", {}],
            ["hf-hub:org/pape@v1", {}],
            ["hf-hub:org/pape", {"revision": "v1", "num_classes": 5}],
            ["hf-hub:org/pape", {"pretrained": False, "in_chans": 3}],
            ["hf-hub:org/pape@v9", {}],
            ["hf-hub:org/absent", {}],
            ["hf-hub:org/gated", {}],
            ["hf-hub:org/empty", {}],
            ["hf-hub:org/huge", {}],
            ["hf-hub:org/pickled", {}],
        ]
        found = loads(calls, environment)
        asked = {request.rpartition("/")[2] for request in server.requests}
        fetched = [request for request in server.requests if request.startswith("GET")]
    commit = repositories["org/pape"].commit("main")
    assert found[0]["source"] == f"hf-hub:org/pape@{commit}"
    assert found[0]["logits"] == pytest.approx(expected(models["first"]), abs=1e-6)
    assert found[1]["logits"] == pytest.approx(expected(models["second"]), abs=1e-6)
    assert found[2]["adapted"][0] == "head: 3 -> 5 classes, re-initialised"
    assert found[3]["source"] == "random"
    messages = [
        "no revision 'v9'",
        "no such repository",
        "gated",
        "has no config.json",
        "1 MiB",
        "has no model.safetensors",
    ]
    for answer, message in zip(found[4:], messages, strict=True):
        assert answer["error"] in ("WeightsError", "ConfigError")
        assert message in answer["message"]
        assert "\n" not in answer["message"]
    assert asked == {"config.json", "model.safetensors"}  # Nothing else of a repository is ever fetched.
    assert not any("huge" in request for request in fetched)

    # The server is gone. From the cache, and with folders, nothing touches a socket.
    offline = {**environment, "HF_HUB_OFFLINE": "1", "BLOCK_SOCKETS": "1", "ZOO_CACHE": str(tmp_path / "zoo")}
    calls = [
        ["hf-hub:org/pape", {}],
        ["hf-hub:org/pape@v1", {}],
        [f"hf-hub:org/pape@{commit}", {}],
        [f"local-dir:{models['first']}", {}],
        ["hf-hub:org/absent", {}],
        ["hf-hub:org/absent", {"local_files_only": True}],
        ["pape-vit-b-in1k", {}],
    ]
    again = loads(calls, offline)
    assert again[0]["logits"] == again[2]["logits"] == again[3]["logits"] == found[0]["logits"]
    assert again[1]["logits"] == found[1]["logits"]
    for answer, variable in zip(again[4:], ("HF_HUB_OFFLINE", "local_files_only", "ZOO_CACHE"), strict=True):
        assert answer["error"] == "WeightsError"
        assert variable in answer["message"]
    assert str(tmp_path / "hf") in again[4]["message"]
    assert str(tmp_path / "zoo") in again[6]["message"]
    (only,) = loads([["hf-hub:org/pape", {"local_files_only": True}]], {**environment, "BLOCK_SOCKETS": "1"})
    assert only["logits"] == found[0]["logits"]


def test_pinned_weights_are_verified(models, tmp_path):
    config = json.loads((models["first"] / "config.json").read_text())
    repository = Repository({"main": models["first"]})
    location = {"repo_id": "org/pinned", "revision": repository.commit("main")}
    right = checkpoints.file_sha256(models["first"] / "model.safetensors")
    with serve({"org/pinned": repository}) as server:
        environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": server.endpoint}
        answers = []
        for sha256 in (right, "0" * 64):
            pin = {"name": "tiny-pinned", "config": config, "weights": "hub", "hub": {**location, "sha256": sha256}}
            answers += loads([["tiny-pinned", {}]], {**environment, "PIN": json.dumps(pin)})
    assert answers[0]["sha256"] == right
    assert answers[0]["logits"] == pytest.approx(expected(models["first"]), abs=1e-6)
    assert answers[1]["error"] == "WeightsError"
    assert "sha256" in answers[1]["message"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("org/repo", ("org/repo", None)),
        ("org/repo@v1.2", ("org/repo", "v1.2")),
        ("org/repo@refs/pr/1", ("org/repo", "refs/pr/1")),
    ],
)
def test_repository_names(name, parts):
    assert hub.split_repository(name) == parts


@pytest.mark.parametrize(
    "name", ["", "repo", "a/b/c", "../x", "org/..", "org/repo@", "org/re po", "-x/y", "org/repo@v1"]
)
def test_bad_repository_names(name):
    with pytest.raises(zoo.ConfigError, match="hf-hub|revisions"):
        zoo.load(f"hf-hub:{name}", revision="v2")


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    assert hub.release_folder("x") == tmp_path / "release" / "x"
    assert hub.release_folder("x", "/elsewhere") == Path("/elsewhere/release/x")
    monkeypatch.delenv("ZOO_CACHE")
    assert hub.cache_folder() == Path.home() / ".cache" / "pape-zoo"
