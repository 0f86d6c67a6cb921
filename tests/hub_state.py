"""What a Hub on localhost holds (`hub_server`): repositories in memory, tokens, and faults on demand.

Repositories are chains of commits with branches, tags and pull requests. Files that end in .safetensors are large ones:
they go through the LFS endpoints and come from another address than the others.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGE = ".safetensors"


class Repository:
    """Commits by their 40 digits, and names of them."""

    def __init__(self, revisions: dict[str, Path] | None = None, gated: bool = False, private: bool = False) -> None:
        self.gated, self.private = gated, private
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.pulls: dict[str, str] = {}
        self.messages: list[tuple[str, str]] = []
        for name, folder in (revisions or {}).items():
            files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
            self.branches[name] = self.add({path: file.read_bytes() for path, file in files.items()})
        if not self.branches:
            self.branches["main"] = self.add({".gitattributes": b"*.safetensors filter=lfs\n"})

    def add(self, files: dict[str, bytes]) -> str:
        """A new commit."""
        text = repr((len(self.commits), sorted((path, sha256(data)) for path, data in files.items())))
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = files
        return oid

    def commit(self, revision: str) -> str | None:
        """The 40 digits that a revision stands for."""
        named = {**self.branches, **self.tags, **self.pulls}
        return named.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Contents by path."""
        return self.commits[str(self.commit(revision))]


@dataclass
class Fault:
    """What goes wrong with requests whose `"METHOD path"` matches.

    `status` answers with it; `drop` breaks the connection after so many bytes of the body; `garble` sends other
    bytes; `lose` does what was asked, but gives no answer.
    """

    request: str
    status: int = 0
    code: str | None = None
    drop: int | None = None
    garble: bool = False
    lose: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1000


@dataclass
class Hub:
    """The repositories by id, where the server listens, and what was asked for."""

    repositories: dict[str, Repository]
    endpoint: str = ""
    # Another host, as far as clients know: where large files are.
    storage: str = ""
    # Requests to it that came with a token, which it must not see.
    leaks: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    # Token -> organisations that it may write to.
    tokens: dict[str, tuple[str, ...]] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def fault(self, request: str) -> Fault | None:
        """The fault for this request, which is then used up by one."""
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.request, request):
                fault.times -= 1
                return fault
        return None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def described(path: str, data: bytes) -> dict[str, Any]:
    """A file as listings have it."""
    if not path.endswith(LARGE):
        return {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
    lfs = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
    return {"type": "file", "path": path, "size": len(data), "oid": "0" * 40, "lfs": lfs}
