"""`zoo publish`: a model onto the Hugging Face Hub."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from zoo.publishing import Published

__all__ = ["publish"]


def publish(
    model: Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="Registered name with weights, or folder.")],
    repo: Annotated[str, typer.Argument(metavar="ORG/REPO", help="Repository; made if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
    revision: Annotated[str | None, typer.Option(metavar="BRANCH", help="Branch; made if it does not exist.")] = None,
    pull_request: Annotated[bool, typer.Option("--pull-request", help="Open a pull request.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag the commit, such as v1.0.")] = None,
    message: Annotated[str | None, typer.Option(help="Message of the commit, one line.")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence of the weights, such as mit; replaces that of the card.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would go up; talks to nobody and needs no token.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a model and put it on the Hugging Face Hub in one commit, with card and results."""
    from zoo import publishing

    done = publishing.publish(
        model,
        repo,
        private=private,
        revision=revision,
        pull_request=pull_request,
        tag=tag,
        message=message,
        licence=licence,
        dry_run=dry_run,
    )
    if as_json:
        files = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in done.files]
        print(json.dumps({**vars(done), "files": files, "dry_run": dry_run}, indent=2))
        return
    for file in done.files:
        print(f"{file.sha256}  {file.size:>13,}  {file.path}")
    for name in done.left_out:
        print(f"left out: {name}", file=sys.stderr)
    for name in done.removed:
        print(f"removed there: {name}", file=sys.stderr)
    print(_summary(done, dry_run))


def _summary(done: Published, dry_run: bool) -> str:
    total = sum(file.size for file in done.files)
    tagged = f", tagged {done.tag}" if done.tag else ""
    if dry_run:
        would = f"{len(done.files)} files, {total:,} bytes, would go to {done.url} ({done.revision}{tagged})"
        return f"{would}; nothing was sent"
    if done.unchanged:
        return f"unchanged: {done.url} has all of it already{tagged}"
    if done.pull_request is not None:
        return f"pull request: {done.url}"
    return f'published: {done.url}{tagged}\nload it: zoo.load("hf-hub:{done.repo_id}@{done.commit}")'
