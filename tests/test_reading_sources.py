import http.server
import io
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import RGB, encode

import zoo
from zoo.errors import DataError
from zoo.reading import Source, expand, fetch, holds_many, read, read_bounded


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    (root / "below").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "c.webp", ".hidden.png", "notes.txt", "below/d.png"):
        (root / name).write_bytes(encode("PNG"))
    (root / "link.png").symlink_to(root / "b.png")
    (root / "below" / "loop").symlink_to(root)
    (root / "dangling.png").symlink_to(root / "gone.png")
    return root


def names(sources: list[Source]) -> list[str]:
    return [Path(source.name).name for source in sources]


def test_folder(folder):
    assert names(expand(folder)) == ["a.JPG", "b.png", "c.webp", "dangling.png", "link.png"]
    assert names(expand(str(folder) + "/")) == names(expand(folder))


def test_patterns(folder):
    assert names(expand(f"{folder}/*")) == ["a.JPG", "b.png", "c.webp", "dangling.png", "link.png"]
    assert names(expand(f"{folder}/[bc].*")) == ["b.png", "c.webp"]
    found = [source.name for source in expand(f"{folder}/**/*.png")]
    assert found == sorted(f"{folder}/{name}" for name in ("b.png", "dangling.png", "link.png", "below/d.png"))


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    path = tmp_path / "photo[1].png"
    path.write_bytes(encode("PNG"))
    assert not holds_many(path) and names(expand(path)) == ["photo[1].png"]


def test_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.png").write_bytes(encode("PNG"))
    assert np.array_equal(zoo.read("~/a.png").rgb, RGB)
    assert names(expand("~/*.png")) == ["a.png"] and names(expand("~")) == ["a.png"]


def test_nothing_found(folder, tmp_path):
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    with pytest.raises(DataError, match=r"empty: the folder holds no picture.*\*\*"):
        expand(tmp_path / "empty")
    with pytest.raises(DataError, match="the pattern matches no picture"):
        expand(f"{folder}/*.gif")
    with pytest.raises(DataError, match="the pattern matches no picture"):
        expand(f"{folder}/*.txt")


def test_an_empty_name_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert not holds_many("")
    with pytest.raises(DataError, match="an empty name"):
        expand("")
    assert expand(".")


def test_what_holds_many(folder):
    assert all(map(holds_many, ([], (), iter([]), folder, str(folder), f"{folder}/*", "absent-*.png")))
    singles = ("absent.png", "http://host/*.png", b"*", RGB, torch.zeros(3, 4, 4), Source(RGB, "x"), None, "a\0*")
    assert not any(map(holds_many, singles[:-1]))


def test_names_of_things_in_memory():
    assert [expand(value, 4)[0].name for value in (RGB, b"", torch.zeros(1))] == [
        "array (item 4)",
        "bytes (item 4)",
        "tensor (item 4)",
    ]
    with pytest.raises(DataError, match="^scan 7: .*it is empty"):
        read(Source(b"", "scan 7"))


# --- addresses ---------------------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/redirect/"):
            self.send_response(302)
            self.send_header(
                "Location", {"ftp": "ftp://127.0.0.1/x.png", "file": "file:///etc/passwd"}.get(path[10:], "/a.png")
            )
            self.end_headers()
            return
        body = {"/a.png": encode("PNG"), "/big%20%C3%BC.png": encode("PNG"), "/text.jpg": b"hello", "/loop": b""}.get(
            path
        )
        if path == "/slow":
            self.server.release.wait(10)
        self.send_response(200 if body is not None else 404)
        if path == "/lies":
            self.send_header("Content-Length", "-5")
        elif "nolength" not in self.path:
            self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.release = threading.Event()
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.release.set()
        running.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_url(server):
    for url in (f"{server}/a.png", f"{server}/a.png?size=2#part", f"{server}/big ü.png", f"{server}/redirect/http"):
        image = zoo.read(url)
        assert np.array_equal(image.rgb, RGB) and image.name == url and image.path is None
    assert np.array_equal(zoo.read(f"{server}/a.png".replace("http", "HTTP")).rgb, RGB)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/absent.png", "answered 404"),
        ("/text.jpg", "it is text"),
        ("/redirect/ftp", "cannot be fetched|answered 302"),
        ("/redirect/file", "cannot be fetched|answered 302"),
    ],
)
def test_bad_answers(server, path, word):
    with pytest.raises(DataError, match=rf"{server}{path}: .*({word})"):
        zoo.read(server + path)


@pytest.mark.parametrize("query", ["", "?nolength"])
def test_url_byte_bound(server, query):
    size = len(encode("PNG"))
    assert len(fetch(f"{server}/a.png{query}", max_bytes=size)) == size
    with pytest.raises(DataError, match=f"{size - 1}"):
        fetch(f"{server}/a.png{query}", max_bytes=size - 1)


def test_url_timeout(server):
    with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
        fetch(f"{server}/slow", timeout_s=0.2)


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://127.0.0.1:99999/", "http://127.0.0.1:1/a.png", "http://a b/"]
)
def test_bad_addresses(url):
    with pytest.raises(DataError, match="cannot be fetched"):
        zoo.read(url)


def test_bounded_stream():
    assert read_bounded(io.BytesIO(b"abc"), "stdin", max_bytes=3) == b"abc"
    with pytest.raises(DataError, match="stdin: more than 2 bytes"):
        read_bounded(io.BytesIO(b"abc"), "stdin", max_bytes=2)
    with pytest.raises(DataError, match="not complete after"):
        read_bounded(io.BytesIO(b"abc"), "stdin", seconds=-1)
