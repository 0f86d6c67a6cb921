"""The local server as a web server: what it serves, and what it refuses."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest
from site_client import running, site

import zoo
from zoo.errors import ConfigError
from zoo.site import kept_pages
from zoo.site import server as server_module
from zoo.site.predictor import Predictor
from zoo.site.server import make_server, serve

HEADERS = ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy")


class Told(Predictor):
    """Answers without a model, and remembers what it was asked."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__({})
        self.error = error
        self.asked: list[tuple] = []

    def _answer(self, *asked):
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return {"ok": True}

    def models(self):
        return [self._answer("models")]

    def load(self, name):
        return self._answer("load", name)

    def predict(self, name, body, *, filename="", size=None, wanted=None):
        assert wanted()
        return self._answer("predict", name, body, filename, size)

    def continued(self, name, request):
        return self._answer("continued", name, request)

    def bias(self, name, body, *, filename="", size=None, row, col, layer, wanted=None):
        return self._answer("bias", name, body, filename, size, row, col, layer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("site")
    made = site(top / "built")
    (made / "app.js").write_text("export const a = 1;")
    (made / "models").mkdir()
    (made / "models" / "index.html").write_text("all")
    (made / "models" / "a b.html").write_text("one")
    (made / "empty").mkdir()
    (made / ".hidden").write_text("secret")
    (top / "secret.txt").write_text("secret")
    (made / "out.txt").symlink_to(top / "secret.txt")
    (made / "folder").symlink_to(top)
    (made / "loop").symlink_to(made / "loop")
    (made / "inside.js").symlink_to(made / "app.js")
    return made


@pytest.fixture(scope="module")
def told():
    return Told()


@pytest.fixture(scope="module")
def client(folder, told):
    with running(folder, told) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/", "text/html; charset=utf-8", b"models"),
        ("/index.html?a=b", "text/html; charset=utf-8", b"models"),
        ("/app.js", "text/javascript; charset=utf-8", b"export"),
        ("/inside.js", "text/javascript; charset=utf-8", b"export"),
        ("/models/", "text/html; charset=utf-8", b"all"),
        ("/models/a%20b.html", "text/html; charset=utf-8", b"one"),
    ],
)
def test_files_of_the_site(client, path, kind, text):
    found = client.get(path)
    assert (found.status, found.headers["Content-Type"]) == (200, kind)
    assert text in found.body and len(found.body) == int(found.headers["Content-Length"])
    assert all(name in found.headers for name in HEADERS)
    head = client.ask("HEAD", path)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", found.headers["Content-Length"])


def test_a_folder_is_sent_on_to_its_page(client):
    found = client.get("/models")
    assert (found.status, found.headers["Location"]) == (301, "/models/")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/models/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/%252e%252e/secret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "//example.com/models",
        "/out.txt",
        "/folder/secret.txt",
        "/folder",
        "/loop",
        "/.hidden",
        "/empty/",
        "/empty",
        "/app.js/",
        "/app.js%00.html",
        "/%ff",
        "/" + "a" * 5000,
        "/nothing.html",
    ],
)
def test_nothing_outside_of_the_folder_is_served(client, path):
    found = client.get(path)
    assert found.status == 404 and found.body == b"not found"


def test_status(client):
    found = client.get("/api/status")
    assert (found.status, found.json) == (200, {"ok": True, "version": zoo.__version__})
    assert found.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["example.com", "example.com:{port}", "localhost", "127.0.0.1:1", "", "[::1]:{port}"])
@pytest.mark.parametrize("path", ["/", "/api/status"])
def test_another_host_is_refused(client, host, path):
    # A name of a stranger that was rebound to this address.
    found = client.get(path, Host=host.format(port=client.port))
    assert found.status == 403 and b"version" not in found.body and b"title" not in found.body


def test_both_names_of_this_computer_are_answered(client):
    for host in ("localhost", "127.0.0.1", "LOCALHOST"):
        assert client.get("/api/status", Host=f"{host}:{client.port}").status == 200
    two = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nHost: example.com\r\n\r\n"
    assert b" 403 " in client.raw(two.encode()).splitlines()[0]
    assert b" 403 " in client.raw(b"GET / HTTP/1.1\r\n\r\n").splitlines()[0]


@pytest.mark.parametrize("origin", ["http://example.com", "null", "https://localhost:{port}", "http://localhost:1", ""])
def test_pages_of_other_origins_may_not_ask(client, told, origin):
    told.asked.clear()
    found = client.post("/api/load?model=a", Origin=origin.format(port=client.port))
    assert found.status == 403 and "origins" in found.error and not told.asked
    assert not [name for name in found.headers if name.startswith("Access-Control")]


def test_pages_of_the_site_may(client, told):
    for host in ("localhost", "127.0.0.1"):
        assert client.post("/api/load?model=a", Origin=f"http://{host}:{client.port}").status == 200
    assert client.post("/api/load?model=a").status == 200


def test_what_is_asked_arrives(client, told):
    told.asked.clear()
    client.post("/api/predict?model=a%20b&size=112", b"\0pixels", X_Filename="f%C3%BC%2Fx.JPG")
    client.post("/api/predict?model=a", b"\0")
    client.post("/api/predict?model=a", b'{"prompt": "\xc3\xbc"}', Content_Type="application/json; charset=utf-8")
    client.post("/api/bias?model=a&size=64&row=1&col=2&layer=-1", b"x")
    assert told.asked == [
        ("predict", "a b", b"\0pixels", "fü/x.JPG", 112),
        ("predict", "a", b"\0", "", None),
        ("continued", "a", {"prompt": "ü"}),
        ("bias", "a", b"x", "", 64, 1, 2, -1),
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "message"),
    [
        ("GET", "/api/", None, {}, 404, "no such address"),
        ("GET", "/api/predict?model=a", None, {}, 405, "POST"),
        ("POST", "/api/status", b"", {}, 404, "no such address"),
        ("POST", "/index.html", b"", {}, 404, None),
        ("PUT", "/api/predict", b"", {}, 501, "PUT"),
        ("OPTIONS", "/api/predict", None, {}, 501, "OPTIONS"),
        ("POST", "/api/predict", b"x", {}, 400, "model is missing"),
        ("POST", "/api/predict?model=", b"x", {}, 400, "model is missing"),
        ("POST", "/api/predict?model=a&size=", b"x", {}, 400, "whole number"),
        ("POST", "/api/predict?model=a&size=1.5", b"x", {}, 400, "whole number"),
        ("POST", "/api/predict?model=a&size=1e9", b"x", {}, 400, "whole number"),
        ("POST", "/api/predict?model=a&size=" + "9" * 5000, b"x", {}, 400, "whole number"),
        ("POST", "/api/predict?model=a&size=%EF%BC%91", b"x", {}, 400, "whole number"),
        ("POST", "/api/predict?" + "&".join(f"a{i}=1" for i in range(50)), b"x", {}, 400, "address"),
        ("POST", "/api/bias?model=a&row=1&col=2", b"x", {}, 400, "layer is missing"),
        ("POST", "/api/predict?model=a", b"{", {"Content_Type": "application/json"}, 400, "no JSON"),
        ("POST", "/api/predict?model=a", b"[1]", {"Content_Type": "application/json"}, 400, "object"),
        ("POST", "/api/predict?model=a", b"\xff", {"Content_Type": "application/json"}, 400, "no JSON"),
        ("POST", "/api/predict?model=a", b'{"a": NaN}', {"Content_Type": "application/json"}, 400, "no JSON"),
        ("POST", "/api/predict?model=a", b"[" * 100_000, {"Content_Type": "application/json"}, 400, "no JSON"),
        ("POST", "/api/predict?model=a&size=8", b"{}", {"Content_Type": "application/json"}, 400, "not for prompts"),
        ("POST", "/api/predict?model=a", b" " * (2**20 + 1), {"Content_Type": "application/json"}, 413, "at most"),
        ("GET", "/api/sample/nothing.jpg", None, {}, 404, "no sample"),
        ("GET", "/api/sample/..%2fREADME.md", None, {}, 404, "no sample"),
        ("GET", "/api/sample/", None, {}, 404, "no sample"),
    ],
)
def test_requests_that_cannot_be_answered(client, told, method, path, body, headers, status, message):
    told.asked.clear()
    found = client.ask(method, path, body, **headers)
    assert found.status == status and not told.asked
    assert all(name in found.headers for name in HEADERS)
    if message is not None:
        assert message in found.error


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("Content-Length: 67108865", 413),
        ("Content-Length: 99999999999999999999999", 413),
        ("Content-Length: -1", 400),
        ("Content-Length: 1, 2", 400),
        ("Content-Length: 0x10", 400),
        ("Content-Length: 1\r\nContent-Length: 2", 400),
        ("Transfer-Encoding: chunked", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3", 411),
        ("Accept: */*", 411),
    ],
)
def test_lengths(client, told, length, status):
    told.asked.clear()
    head = f"POST /api/predict?model=a HTTP/1.1\r\nHost: localhost:{client.port}\r\n{length}\r\n\r\n"
    answer = client.raw(head.encode() + b"abc")
    assert f" {status} ".encode() in answer.splitlines()[0] and b"Connection: close" in answer
    assert b"error" in answer and not told.asked


def test_a_body_that_ends_early_is_not_predicted(client, told):
    told.asked.clear()
    head = f"POST /api/predict?model=a HTTP/1.1\r\nHost: localhost:{client.port}\r\nContent-Length: 10\r\n\r\n"
    assert client.raw(head.encode() + b"abc") == b"" and not told.asked


def test_a_large_file_that_is_refused_gets_the_answer(client):
    found = client.post("/api/predict?model=a", bytes(server_module.MOST_BYTES + 1))
    assert found.status == 413 and "at most" in found.error


def test_a_browser_that_hangs_up_is_noticed(folder):
    came, gone, found = threading.Event(), threading.Event(), []

    class Waits(Told):
        def predict(self, name, body, *, wanted, **options):
            found.append(wanted())
            came.set()
            gone.wait(10)
            found.append(wanted())
            came.set()
            return {}

    with running(folder, Waits()) as client:
        head = f"POST /api/predict?model=a HTTP/1.1\r\nHost: localhost:{client.port}\r\nContent-Length: 1\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(head.encode() + b"a")
            assert came.wait(10)
        came.clear()
        gone.set()
        assert came.wait(10) and found == [True, False]


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\0\xff\r\n\r\n"])
def test_what_is_no_request(client, request_):
    answer = client.raw(request_)
    assert b"Traceback" not in answer and b"<html" not in answer.lower()
    assert client.get("/api/status").status == 200


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (zoo.DataError("a\nb: bad"), 400, "a b: bad"),
        (zoo.ConfigError("size"), 400, "size"),
        (zoo.UnknownModelError("no model"), 404, "no model"),
        (zoo.MissingDependencyError("pip install 'pape-zoo[video]'"), 501, "pip install"),
        (zoo.WeightsError("damaged"), 500, "damaged"),
        (server_module.Busy("try again"), 503, "try again"),
        (MemoryError(), 507, "memory"),
        (KeyError("secret"), 500, "a defect of the server (KeyError)"),
    ],
)
def test_errors_are_one_line(folder, capsys, error, status, message):
    with running(folder, Told(error)) as client:
        found = client.post("/api/predict?model=a", b"x")
        assert found.status == status and message in found.error and "secret" not in found.error
        if not isinstance(error, MemoryError):
            assert client.get("/api/models").status == status
        assert client.get("/api/status").status == 200
    assert "Traceback" not in capsys.readouterr().err


def test_only_this_computer_can_reach_it(folder):
    with make_server(folder) as server:
        assert server.server_address[0] == "127.0.0.1" and server.server_address[1] > 0


def test_a_taken_port_and_other_settings_that_cannot_be(folder, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken"):
            make_server(folder, port)
        with pytest.raises(ConfigError, match="is taken"):
            serve(folder, port, open_browser=False)
    for port in (-1, 65_536, True, "80"):
        with pytest.raises(ConfigError, match="port must be"):
            make_server(folder, port)
    with pytest.raises(ConfigError, match=r"index\.html"):
        make_server(tmp_path)


def test_ctrl_c_ends_it(folder, monkeypatch, capsys):
    seen = []

    def interrupted(self, poll_interval=0.5):
        seen.append(self.server_address[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(server_module._Server, "serve_forever", interrupted)
    serve(folder, 0, open_browser=False)
    out = capsys.readouterr().out
    assert f"http://127.0.0.1:{seen[0]}/" in out.replace("\n", "") and "stopped" in out
    with make_server(folder, seen[0]):  # The port is free again.
        pass


def test_the_server_imports_nothing_heavy():
    import subprocess

    code = "import sys, zoo.site.server; sys.exit(any(n in sys.modules for n in ('torch', 'numpy', 'PIL')))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_numbers_that_json_lacks_are_a_defect(folder, monkeypatch):
    # NaN in an answer would be no JSON, and the page could not read the whole of it.
    found = Told()
    monkeypatch.setattr(found, "models", lambda: [{"a": float("nan")}])
    with running(folder, found) as client:
        assert "a defect" in client.get("/api/models").error


def test_pages_of_results_are_cut_off_from_the_site_and_kept_for_a_while():
    pages = kept_pages.KeptPages()
    keys = [pages.keep(f"<p>{number} \u00fc") for number in range(10)]
    assert len(set(keys)) == 10 and pages.get(keys[0]) is None and pages.get("") is None
    assert pages.get(keys[9]) == "<p>9 \u00fc".encode()
    policy = kept_pages.HEADERS["Content-Security-Policy"]
    assert (
        "sandbox allow-scripts" in policy
        and "allow-same-origin" not in policy
        and "'self'" in policy.split("frame-")[1]
    )


def test_a_page_of_a_result(client, told, monkeypatch):
    monkeypatch.setattr(told, "continued", lambda name, request: {"page": "<script>1</script>", "kind": "text"})
    made = client.post("/api/predict?model=a", b"{}", Content_Type="application/json").json
    assert made["kind"] == "text" and made["page"].startswith("page/")
    found = client.get(f"/api/{made['page']}")
    assert (found.status, found.body) == (200, b"<script>1</script>")
    assert found.headers["Content-Security-Policy"] == kept_pages.HEADERS["Content-Security-Policy"]
    assert found.headers["X-Frame-Options"] == "SAMEORIGIN"
    assert client.get("/api/page/0123").status == 404
