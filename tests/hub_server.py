"""A small Hugging Face Hub on localhost: the endpoints that huggingface_hub uses to read and write models."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from hub_state import LARGE, Fault, Hub, Repository, described, git_sha1, sha256

__all__ = ["Fault", "Hub", "Repository", "serve"]


class Answer(Exception):
    """Ends a request."""

    def __init__(self, status: int, body: Any = None, code: str | None = None, **headers: str) -> None:
        self.status, self.body, self.headers = status, body, {key.replace("_", "-"): v for key, v in headers.items()}
        if code:
            self.headers |= {"X-Error-Code": code, "X-Error-Message": code}


class Handler(BaseHTTPRequestHandler):
    """The endpoints."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        path = unquote(path).strip("/")
        self.hub.requests.append(f"{self.command} {path}")
        self._fault = self.hub.fault(self.hub.requests[-1])
        if path.startswith(("cdn/", "lfs/")) and "Authorization" in self.headers:
            self.hub.leaks.append(path)
        try:
            body = self._body()
            if self._fault and self._fault.status:
                raise Answer(self._fault.status, code=self._fault.code, **self._fault.headers)
            self._route(path, parse_qs(query), body)
        except Answer as answer:
            if self._fault and self._fault.lose:
                self._hang_up()
            data = b"" if answer.body is None else json.dumps(answer.body).encode()
            self._send(answer.status, data, {"Content-Type": "application/json", **answer.headers})

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if self._fault and self._fault.drop is not None and length:
            self.rfile.read(min(length, self._fault.drop))
            self._hang_up()
        return self.rfile.read(length)

    def _hang_up(self) -> None:
        """Breaks the connection without an answer."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)
        raise ConnectionAbortedError

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers, **self.hub.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._fault and self._fault.garble:
            data = bytes(len(data))
        if self._fault and self._fault.drop is not None:
            self.wfile.write(data[: self._fault.drop])
            self.wfile.flush()
            self._hang_up()
        self.wfile.write(data)

    # ---- who asks, and for what

    def _writes_to(self) -> tuple[str, ...] | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            return None
        if token not in self.hub.tokens:
            message = "Invalid credentials in Authorization header"
            raise Answer(401, {"error": message}, X_Error_Message=message)
        return self.hub.tokens[token]

    def _repository(self, repo_id: str, write: bool = False) -> Repository:
        orgs = self._writes_to()
        repository = self.hub.repositories.get(repo_id)
        member = orgs is not None and repo_id.partition("/")[0] in orgs
        if repository is None or (repository.private and not member):
            raise Answer(401 if orgs is None else 404, {"error": "Repository not found"}, code="RepoNotFound")
        if repository.gated and not member:
            raise Answer(403, {"error": f"Access to model {repo_id} is restricted"}, code="GatedRepo")
        if write and not member:
            raise Answer(401 if orgs is None else 403, {"error": "You don't have the rights"})
        return repository

    def _files(self, repository: Repository, revision: str) -> tuple[str, dict[str, bytes]]:
        commit = repository.commit(revision)
        if commit is None:
            raise Answer(404, {"error": f"Invalid rev id: {revision}"}, code="RevisionNotFound")
        return commit, repository.commits[commit]

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if path == "api/whoami-v2":
            raise Answer(
                200, {"name": "somebody", "type": "user", "orgs": [{"name": o} for o in self._writes_to() or ()]}
            )
        if path == "api/validate-yaml":
            raise Answer(200, {"errors": [], "warnings": []})
        if path == "api/repos/create":
            self._create(json.loads(body))
        if match := re.fullmatch(r"api/models/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.*))?)?", path):
            method = getattr(self, f"_api_{(match[2] or 'revision').replace('-', '_')}", None)
            if method:
                method(match[1], match[3] or "main", query, body)
        if match := re.fullmatch(r"([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._batch(match[1], json.loads(body))
        if match := re.fullmatch(r"lfs/([0-9a-f]{64})", path):
            if sha256(body) != match[1]:
                raise Answer(400, {"error": "BadDigest"})
            self.hub.store[match[1]] = body
            raise Answer(200)
        if match := re.fullmatch(r"cdn/([0-9a-f]{64})/.*", path):
            self._content(self.hub.store[match[1]], {"ETag": f'"{match[1][:32]}"'})
            return
        if match := re.fullmatch(r"([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path):
            return self._resolve(*match.groups())
        raise Answer(404, {"error": "Not Found"})

    # ---- reading

    def _resolve(self, repo_id: str, revision: str, path: str) -> None:
        commit, files = self._files(self._repository(repo_id), revision)
        about = {"X-Repo-Commit": commit}
        if path not in files:
            raise Answer(404, code="EntryNotFound", X_Repo_Commit=commit)
        data = files[path]
        if not path.endswith(LARGE):
            return self._content(data, {**about, "ETag": f'"{git_sha1(data)}"'})
        digest = sha256(data)
        self.hub.store[digest] = data
        about |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        self._send(302, b"", {**about, "Location": f"{self.hub.storage}/cdn/{digest}/{path}"})

    def _content(self, data: bytes, headers: dict[str, str]) -> None:
        start, span = 0, self.headers.get("Range", "")
        if span.startswith("bytes="):
            self.hub.ranges.append(span)
            start = int(span.removeprefix("bytes=").partition("-")[0])
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        if self.command == "HEAD":
            return self._send(200, b"", {**headers, "Content-Length": str(len(data))})
        self._send(206 if span else 200, data[start:], {**headers, "Accept-Ranges": "bytes"})

    def _api_revision(self, repo_id: str, revision: str, *_: Any) -> None:
        repository = self._repository(repo_id)
        commit, files = self._files(repository, revision)
        siblings = [{"rfilename": path} for path in files]
        private = {"private": repository.private, "gated": repository.gated, "tags": [], "siblings": siblings}
        raise Answer(200, {"id": repo_id, "modelId": repo_id, "sha": commit, **private})

    def _api_refs(self, repo_id: str, _: str, query: dict[str, list[str]], *__: Any) -> None:
        repository = self._repository(repo_id)
        named = {"branches": ("refs/heads/", repository.branches), "tags": ("refs/tags/", repository.tags)}
        if "include_prs" in query:
            named["pullRequests"] = ("", repository.pulls)
        refs: dict[str, list[dict[str, str]]] = {"converts": []}
        for kind, (prefix, commits) in named.items():
            refs[kind] = [{"name": n, "ref": prefix + n, "targetCommit": c} for n, c in commits.items()]
        raise Answer(200, refs)

    def _api_paths_info(self, repo_id: str, revision: str, _: Any, body: bytes) -> None:
        files = self._files(self._repository(repo_id), revision)[1]
        asked = parse_qs(body.decode()).get("paths", [])
        raise Answer(200, [described(path, files[path]) for path in asked if path in files] + self.hub.listed)

    def _api_tree(self, repo_id: str, rest: str, *_: Any) -> None:
        revision, _, folder = rest.partition("/")
        files = self._files(self._repository(repo_id), revision)[1]
        found = [described(path, data) for path, data in files.items() if path.startswith(f"{folder}/")]
        if not found and not self.hub.listed:
            raise Answer(404, code="EntryNotFound")
        raise Answer(200, found + self.hub.listed)

    # ---- writing

    def _create(self, asked: dict[str, Any]) -> None:
        orgs, repo_id = self._writes_to(), f"{asked['organization']}/{asked['name']}"
        if orgs is None:
            raise Answer(401, {"error": "Invalid username or password."})
        if asked["organization"] not in orgs:
            raise Answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        if repo_id in self.hub.repositories:
            raise Answer(409, {"error": "You already created this model repo"})
        self.hub.repositories[repo_id] = Repository(private=asked.get("visibility") == "private")
        raise Answer(200, {"url": f"{self.hub.endpoint}/{repo_id}", "name": repo_id})

    def _api_preupload(self, repo_id: str, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        repository = self._repository(repo_id, write="create_pr" not in query)
        there = self._files(repository, revision)[1]
        answers = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            known = described(path, there[path]) if path in there else {}
            oid = known.get("lfs", {}).get("oid") or known.get("oid")
            mode = "lfs" if path.endswith(LARGE) else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        raise Answer(200, {"files": answers})

    def _batch(self, repo_id: str, asked: dict[str, Any]) -> None:
        self._repository(repo_id)
        objects = []
        for item in asked["objects"]:
            if item["oid"] not in self.hub.store:
                verify = {"href": f"{self.hub.endpoint}/api/models/{repo_id}/lfs-verify"}
                item = {
                    **item,
                    "actions": {"upload": {"href": f"{self.hub.storage}/lfs/{item['oid']}"}, "verify": verify},
                }
            objects.append(item)
        raise Answer(200, {"transfer": "basic", "objects": objects})

    def _api_lfs_verify(self, repo_id: str, _: str, __: Any, body: bytes) -> None:
        stated = json.loads(body)
        raise Answer(200 if len(self.hub.store.get(stated["oid"], b"")) == stated["size"] else 400)

    def _api_commit(self, repo_id: str, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        opens = "create_pr" in query
        repository = self._repository(repo_id, write=not opens)
        parent, files = self._files(repository, revision)
        files = dict(files)
        for line in body.splitlines():
            item = json.loads(line)
            kind, value = item["key"], item["value"]
            if kind == "header":
                if value.get("parentCommit", parent) != parent:
                    raise Answer(412, {"error": "A commit has happened since. Please refresh and try again."})
                repository.messages.append((value["summary"], value["description"]))
            elif kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                if value["oid"] not in self.hub.store:
                    raise Answer(400, {"error": "LFS object not found"})
                files[value["path"]] = self.hub.store[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        oid = repository.add(files)
        answer = {"commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{oid}", "commitOid": oid, "success": True}
        if opens:
            number = len(repository.pulls) + 1
            repository.pulls[f"refs/pr/{number}"] = oid
            answer["pullRequestUrl"] = f"{self.hub.endpoint}/{repo_id}/discussions/{number}"
        else:
            (repository.pulls if revision.startswith("refs/pr/") else repository.branches)[revision] = oid
        raise Answer(200, answer)

    def _api_branch(self, repo_id: str, name: str, _: Any, body: bytes) -> None:
        repository = self._repository(repo_id, write=True)
        repository.branches[name] = str(repository.commit(json.loads(body).get("startingPoint", "main")))
        raise Answer(200)

    def _api_tag(self, repo_id: str, revision: str, _: Any, body: bytes) -> None:
        repository = self._repository(repo_id, write=True)
        name = json.loads(body)["tag"]
        if name in repository.tags:
            raise Answer(409, {"error": "Tag reference exists already"})
        repository.tags[name] = self._files(repository, revision)[0]
        raise Answer(200)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """Connections that we broke are no news."""


@contextlib.contextmanager
def serve(repositories: dict[str, Repository] | None = None, **options: Any) -> Iterator[Hub]:
    """Serves the repositories on a free local port until the context closes."""
    hub = Hub({} if repositories is None else repositories, **options)
    server = _Server(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    hub.storage = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
