"""A small read-only Hub on localhost: the calls with which huggingface_hub fetches single files, over local folders."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Repository:
    """Revisions (branch, tag or commit) of a repository, each a folder of files."""

    revisions: dict[str, Path]
    gated: bool = False

    def commit(self, revision: str) -> str | None:
        """The 40-digit commit that a revision stands for."""
        for name, folder in self.revisions.items():
            commit = hashlib.sha1(f"{folder}".encode()).hexdigest()
            if revision in (name, commit):
                return commit
        return None

    def folder(self, commit: str) -> Path:
        """Files of a commit."""
        return next(folder for name, folder in self.revisions.items() if self.commit(name) == commit)


@dataclass
class Hub:
    """The repositories by id, where the server listens, and the paths that were asked for."""

    repositories: dict[str, Repository]
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serves the repositories on a free local port until the context closes."""
    hub = Hub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = unquote(self.path.partition("?")[0]).strip("/")
            hub.requests.append(f"{self.command} {path}")
            repo_id, _, rest = path.partition("/resolve/")
            revision, _, filename = rest.partition("/")
            repository = hub.repositories.get(repo_id)
            if repository is None:
                return self._error(401, "RepoNotFound")
            if repository.gated:
                return self._error(403, "GatedRepo")
            commit = repository.commit(revision)
            if commit is None:
                return self._error(404, "RevisionNotFound")
            file = repository.folder(commit) / filename
            if not file.is_file():
                return self._error(404, "EntryNotFound", commit)
            body = file.read_bytes()
            start = 0
            if (span := self.headers.get("Range", "")).startswith("bytes="):
                start = int(span.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            if with_body:
                self.wfile.write(body[start:])

        def _error(self, status: int, code: str, commit: str | None = None) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
            if commit:
                self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
