"""A Hub that refuses, fails, breaks off or lies: each time one line that says what to do, and no harm done."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest
import torch
from conftest import TINY_CONFIG
from hub_client import TOKEN, hub, make_folder  # noqa: F401
from hub_server import Fault, Hub, Repository
from hub_state import sha256
from saved_models import logits

import zoo
from zoo import hub_errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_folder(TINY_CONFIG, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def filled(hub, folder) -> Hub:  # noqa: F811
    """The Hub with a public model, a private and a gated one."""
    files = {"main": folder}
    hub.repositories |= {
        "org/tiny": Repository(files),
        "other/private": Repository(files, private=True),
        "other/gated": Repository(files, gated=True),
    }
    return hub


def message(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and text.isprintable() and len(text) < 900
    assert TOKEN not in text and "Secret" not in text
    # A traceback would show what the library says.
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    return text


def load_error(name: str = "hf-hub:org/tiny", **options) -> str:
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load(name, **options)
    return message(caught.value)


def publish_error(folder: Path, repo_id: str = "org/tiny", **options) -> str:
    with pytest.raises(zoo.HubError) as caught:
        zoo.publish(str(folder), repo_id, **options)
    return message(caught.value)


STATUS = {
    401: ("does not accept your token", "`hf auth login`"),
    403: ("may not do this", "settings/tokens"),
    429: ("wait 7 seconds", "(429)"),
    500: ("a fault of its own (500)", "run again later"),
    503: ("(503)", "run again later"),
}
INVALID = {"X_Error_Message": "Invalid credentials in Authorization header"}


def answer(status: int, request: str, **options) -> Fault:
    headers = {401: INVALID, 429: {"Retry_After": "7"}}.get(status, {})
    return Fault(request, status=status, headers=headers, **options)


# ---- loading


@pytest.mark.parametrize("status", STATUS)
def test_answers_to_a_download(filled, status):
    filled.faults = [answer(status, "resolve/main/config.json")]
    text = load_error()
    assert all(part in text for part in STATUS[status]), text
    filled.faults = [answer(status, "GET cdn/")]
    text = load_error()
    assert all(part in text for part in STATUS[status]), text
    filled.faults = []
    assert zoo.load("hf-hub:org/tiny").load_report.sha256


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("org/absent", ("no such repository, or it is private", "hf auth whoami")),
        ("other/private", ("no such repository, or it is private", "your token may not read it")),
        ("other/gated", ("is gated: accept its terms on its page", "other/gated", "`hf auth login`")),
        ("org/tiny@v9", ("the repository has no revision 'v9'",)),
    ],
)
def test_what_is_not_to_be_had(filled, name, parts, monkeypatch):
    text = load_error(f"hf-hub:{name}")
    assert all(part in text for part in parts), text
    monkeypatch.delenv("HF_TOKEN")
    if "private" in parts[0]:
        assert "log in with `hf auth login` or set HF_TOKEN" in load_error(f"hf-hub:{name}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_that_are_not_there(filled, name):
    del filled.repositories["org/tiny"].files()[name]
    assert f"has no {name}, so it does not hold a model of pape-zoo" in load_error()


def test_a_download_that_breaks_off_goes_on_where_it_was(filled, folder, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # What is less than a chunk is asked for again.
    filled.faults = [Fault("GET cdn/", drop=1000, times=1), Fault("GET cdn/", drop=3000, times=1)]
    model = zoo.load("hf-hub:org/tiny")
    assert filled.ranges == ["bytes=1000-", "bytes=4000-"]
    assert torch.equal(logits(model), logits(zoo.load(f"local-dir:{folder}")))
    assert model.load_report.sha256 == sha256((folder / "model.safetensors").read_bytes())


def test_a_download_that_always_breaks_off_leaves_nothing(filled, tmp_path):
    filled.faults = [Fault("GET cdn/", drop=0)]
    text = load_error()
    assert f"no connection to {filled.endpoint}, or it broke" in text and "run again" in text
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [name for name in left if name.endswith((".incomplete", ".safetensors"))]


def test_other_bytes_than_stated_are_refused(filled):
    filled.faults = [Fault("GET cdn/", garble=True)]
    text = load_error()
    assert "is damaged or was changed: its sha256 is" in text
    blob = Path(text.partition("; delete ")[2].partition(" and get it again")[0])
    filled.faults = []
    assert "damaged" in load_error()  # Also from the cache.
    blob.unlink()
    assert zoo.load("hf-hub:org/tiny").load_report.sha256 == blob.name


def test_no_network(filled, monkeypatch, tmp_path):
    from huggingface_hub import constants

    zoo.load("hf-hub:org/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(filled.requests)
    assert zoo.load("hf-hub:org/tiny").load_report.sha256
    assert "Unset HF_HUB_OFFLINE to download" in load_error("hf-hub:other/model")
    assert "local_files_only is set" in load_error("hf-hub:other/model", local_files_only=True)
    assert len(filled.requests) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    look_up = socket.getaddrinfo

    def nowhere(host, *args, **kwargs):  # Without asking the resolver.
        if str(host).endswith("invalid"):
            raise socket.gaierror(-2, "Name or service not known")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    for endpoint, part in (("http://127.0.0.1:9", "no connection to"), ("http://hub.invalid", "no host hub.invalid")):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        text = load_error("hf-hub:other/model")
        assert part in text and "not in the cache either" in text, text
        assert zoo.load("hf-hub:org/tiny").load_report.sha256


def test_a_full_disk(filled, file_size_limit, tmp_path):
    with file_size_limit(4096):
        text = load_error()
    assert "the disk is full or a quota is used up" in text and "HF_HOME" in text
    assert zoo.load("hf-hub:org/tiny")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written(filled, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    assert "not permitted" in load_error()


# ---- hostile repositories

HOSTILE = {
    "huge": "[" + " " * (2 << 20) + "]",
    "deep": "[" * 100_000,
    "no object": "[1, 2]",
    "not text": "\udcff",
    "wrong types": json.dumps({**TINY_CONFIG, "model": 3, "labels": {"a": 1}}),
    "a class to import": json.dumps({**TINY_CONFIG, "architecture": "os:system", "auto_map": {"AutoModel": "x.Y"}}),
    "a large model": json.dumps({**TINY_CONFIG, "model": {**TINY_CONFIG["model"], "dim": 1 << 20, "mlp_dim": 1 << 20}}),
    "a path": json.dumps({**TINY_CONFIG, "name": "../../evil"}),
}


@pytest.mark.filterwarnings("ignore:.*unknown keys ignored")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_configurations(filled, what):
    files = filled.repositories["org/tiny"].files()
    files["config.json"] = HOSTILE[what].encode(errors="surrogateescape")
    files["modeling.py"] = b"raise SystemExit('executed')"
    with pytest.raises(zoo.ConfigError) as caught:
        zoo.load("hf-hub:org/tiny")
    assert len(str(caught.value)) < 900
    fetched = [request for request in filled.requests if request.startswith("GET") and "resolve" in request]
    assert fetched == ([] if what == "huge" else ["GET org/tiny/resolve/main/config.json"])


def test_names_of_files_that_lead_elsewhere(filled, folder, tmp_path):
    evil = ["../evil", "/etc/evil", "..\\evil", ".eval_results/../../evil", "a/../../../evil"]
    files = filled.repositories["org/tiny"].files()
    files.update({path: b"evil" for path in evil})
    filled.listed = [{"type": "file", "path": path, "size": 4, "oid": "0" * 40} for path in evil]
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    zoo.load("hf-hub:org/tiny")
    zoo.publish(str(folder), "org/tiny")
    assert set(evil) <= set(filled.repositories["org/tiny"].files())  # Nothing of others is removed there.
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before
    names = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert "evil" not in names and {"config.json", "model.safetensors"} <= names
    assert not any("evil" in request for request in filled.requests)


def test_a_commit_that_leads_elsewhere(filled, tmp_path):
    filled.headers = {"X-Repo-Commit": "../../../evil"}
    load_error()
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("revision", ["../../x", "/etc/passwd", "a\\..\\b", "refs/../../x", "a\x1bb"])
def test_revisions_that_lead_elsewhere(filled, revision):
    with pytest.raises(zoo.ConfigError, match="give a branch, a tag or a commit"):
        zoo.load("hf-hub:org/tiny", revision=revision)
    assert not filled.requests


# ---- publishing

STEPS = [
    "GET api/models/org/tiny$",
    "GET .*/refs",
    "POST .*/paths-info",
    "POST .*/preupload",
    "POST .*batch",
    "PUT lfs/",
]
STEPS += ["POST .*lfs-verify", "POST .*/commit/"]


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_at_any_step_commits_nothing(filled, folder, step):
    repository = filled.repositories["org/tiny"] = Repository()
    filled.faults = [answer(500, step)]
    text = publish_error(folder)
    assert text.startswith("not published: ") and "(500)" in text and "run again later" in text
    assert len(repository.commits) == 1 and set(repository.files()) == {".gitattributes"}
    filled.faults = []
    assert zoo.publish(str(folder), "org/tiny").commit == repository.branches["main"]
    assert len([request for request in filled.requests if "/commit/" in request]) <= 2


@pytest.mark.parametrize("status", STATUS)
def test_answers_to_an_upload(filled, folder, status):
    filled.repositories["org/tiny"] = Repository()
    filled.faults = [answer(status, "POST .*/commit/")]
    text = publish_error(folder)
    assert "nothing was committed" in text and all(part in text for part in STATUS[status]), text


def test_an_upload_that_breaks_off_is_sent_again(filled, folder):
    repository = filled.repositories["org/tiny"] = Repository()
    filled.faults = [Fault("PUT lfs/", drop=2000, times=2)]
    zoo.publish(str(folder), "org/tiny")
    assert repository.files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert sum(request.startswith("PUT lfs/") for request in filled.requests) == 3


def test_an_upload_that_always_breaks_off(filled, folder):
    repository = filled.repositories["org/tiny"] = Repository()
    filled.faults = [Fault("POST .*/commit/", drop=10)]
    text = publish_error(folder)
    assert "nothing was committed; what is up already is not sent again" in text and "run again" in text
    assert set(repository.files()) == {".gitattributes"}
    filled.faults, sent = [], len(filled.requests)
    zoo.publish(str(folder), "org/tiny")
    assert not any(request.startswith("PUT lfs/") for request in filled.requests[sent:])


def test_an_answer_that_is_lost(filled, folder):
    repository = filled.repositories["org/tiny"] = Repository()
    filled.faults = [Fault("POST .*/commit/", lose=True)]
    done = zoo.publish(str(folder), "org/tiny", tag="v1")
    assert repository.branches == {"main": done.commit} and repository.tags == {"v1": done.commit}
    assert "README.md" in repository.files() and not done.unchanged

    repository = filled.repositories["org/tiny"] = Repository()
    filled.faults = [
        Fault("POST .*/commit/", lose=True),
        Fault("GET .*/refs", times=1),
        Fault("GET .*/refs", status=500),
    ]
    text = publish_error(folder)
    assert "it is not known whether the commit was made" in text and "run again" in text
    filled.faults = []
    assert zoo.publish(str(folder), "org/tiny").unchanged

    filled.faults = [Fault("POST .*/commit/", lose=True)]
    (filled.repositories["org/tiny"].files())["README.md"] = b"old"
    text = publish_error(folder, pull_request=True)
    assert f"look at {filled.endpoint}/org/tiny/discussions" in text


def test_somebody_else_commits_meanwhile(filled, folder, monkeypatch):
    from huggingface_hub import HfApi

    repository, create = filled.repositories["org/tiny"], HfApi.create_commit
    del repository.files()["README.md"]

    def late(self, *args, **kwargs):
        repository.branches["main"] = repository.add({**repository.files(), "theirs": b""})
        return create(self, *args, **kwargs)

    monkeypatch.setattr(HfApi, "create_commit", late)
    assert "something else changed there meanwhile" in publish_error(folder)
    assert "README.md" not in repository.files() and "theirs" in repository.files()


def test_namespaces_of_others(filled, folder):
    assert "needs write access to the organisation" in publish_error(folder, "other/new")
    assert "exists but your token may not read it" in publish_error_in_own(filled, folder)
    text = publish_error(folder, "other/gated")
    assert "is gated: accept its terms" in text


def publish_error_in_own(filled, folder) -> str:
    filled.repositories["org/hidden"] = Repository()
    filled.faults = [Fault("GET api/models/org/hidden", status=404, code="RepoNotFound")]
    return publish_error(folder, "org/hidden")


@pytest.mark.parametrize("token", ["hf_SecretOther123", "hf_Secret\x7f", "hf_Secrét", "hf_Secret two"])
def test_tokens_that_are_none(filled, folder, monkeypatch, capfd, token):
    monkeypatch.setenv("HF_TOKEN", token)
    for text in (publish_error(folder), load_error()):
        assert "`hf auth login`" in text and "token" in text and token not in text
    assert "Secr" not in "".join(capfd.readouterr())


def test_a_tag_that_cannot_be_set(filled, folder):
    filled.faults = [Fault("POST .*/tag/", status=403)]
    text = publish_error(folder, "org/new", tag="v1")
    commit = filled.repositories["org/new"].branches["main"]
    assert text.startswith(f"published as {commit}, but not tagged: ")


# ---- texts


def test_nothing_secret_is_quoted(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "plain-secret")
    for text in (
        "Illegal header value b'Bearer hf_abcdefgh1234'",
        "the token plain-secret was refused",
        "Authorization: bearer plain-other",
        "GET https://user:plain-pass@hub.example/x failed",
        "https://s3.example/x?X-Amz-Signature=0123abcd&y=plain-secret",
        "hf_abcdefgh1234\n\x1b[31m",
    ):
        shown = hub_errors.redact(text)
        assert not any(part in shown for part in ("abcdefgh", "plain-", "0123abcd", "\x1b", "\n")), shown


def test_causes_are_looked_through():
    full = RuntimeError("Error while uploading")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert "the disk is full" in hub_errors.explain(full, "org/x")
    circle = RuntimeError("a")
    circle.__cause__ = ValueError("b")
    circle.__cause__.__cause__ = circle
    assert hub_errors.explain(circle, "org/x") == "org/x: a"
    assert hub_errors.explain(RuntimeError(), "org/x") == "org/x: RuntimeError"
