"""`publish`: a model folder onto the Hugging Face Hub, checked first, in one commit."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.checkpoints import CARD
from zoo.errors import ConfigError, HubError, ZooError
from zoo.hub import check_repository
from zoo.hub_errors import explain, failures, find, login_hint
from zoo.publish_files import RECORD, Upload, UploadFile, folder_upload, source_folder
from zoo.published_card import EVAL_RESULTS

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Published", "publish", "push"]

MAIN = "main"
# Files that earlier versions of the same model may have left there and that this library alone writes.
_OURS = re.compile(rf"{re.escape(RECORD)}|{re.escape(EVAL_RESULTS)}/pape-zoo-[a-z0-9-]+\.yaml")


@dataclass(frozen=True)
class Published:
    """What `publish` did, or with `dry_run` would do.

    Attributes:
        repo_id: `"org/repo"`.
        url: Of what was published: the commit, the pull request, or with `dry_run` the repository.
        revision: Branch.
        commit: Of the branch as it is now; `None` with `dry_run`.
        files: All files of the model, with size and sha256.
        left_out: Files of the folder that stay, such as logs of training.
        removed: Files of an earlier version that were removed.
        unchanged: Everything was there already, so nothing was committed.
        pull_request: Its number, if one was opened.
        tag: The tag that was set.
    """

    repo_id: str
    url: str
    revision: str
    commit: str | None
    files: tuple[UploadFile, ...]
    left_out: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: bool = False
    pull_request: int | None = None
    tag: str | None = None


def publish(
    name_or_folder: str,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    pull_request: bool = False,
    tag: str | None = None,
    message: str | None = None,
    licence: str | None = None,
    dry_run: bool = False,
) -> Published:
    """Publishes a model on the Hugging Face Hub, for `zoo.load("hf-hub:ORG/REPO")`.

    The folder is checked before anything is sent. What goes up appears in one commit or not at all: config.json,
    model.safetensors, the card, the record of a registered model, and the results of the card as `.eval_results`. Of
    the card the placeholders `local-dir:FOLDER` are filled in. What is there already is not sent again.

    Args:
        name_or_folder: A registered name with weights, or a folder (a path, or `"local-dir:PATH"`).
        repo_id: `"org/repo"`; made if it does not exist.
        private: Make it private; refused where it exists and is public.
        revision: Branch, made from the default branch if it does not exist; or `"refs/pr/N"`.
        pull_request: Open a pull request instead of changing the branch.
        tag: Tag the commit.
        message: First line of the commit's message.
        licence: Of the weights, as the Hub abbreviates it (such as `"mit"`); replaces that of the card.
        dry_run: List what would go up; talks to nobody and needs no token.

    Returns:
        Where it is, and which files it has.

    Raises:
        UnknownModelError: If the name is not registered.
        ConfigError: If the arguments cannot be used, or the folder must not be published; names every fault.
        WeightsError: If there are no weights.
        HubError: If the Hub refuses or cannot be reached; nothing was committed then, unless it says so.
    """
    _check_arguments(repo_id, revision, pull_request, tag, message, licence)
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{repo_id}"
    upload = folder_upload(source_folder(name_or_folder), repo_id, page, licence)
    if dry_run:
        return Published(repo_id, page, revision or MAIN, None, upload.files, upload.left_out, tag=tag)
    repository = _Repository(repo_id, revision or MAIN, page)
    with repository.explained("not published"):
        repository.open(private, pull_request)
        result = repository.commit(upload, message, pull_request, tag)
    if tag and result.commit:
        with repository.explained(f"published as {result.commit}, but not tagged"):
            repository.tag(tag, result.commit)
    return replace(result, tag=tag)


def push(
    model: nn.Module | str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    card: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Published:
    """Publishes a model in memory: `zoo.save` into a folder that goes afterwards, then `publish`.

    Args:
        model: A model of this library; or what `publish` takes, a registered name or a folder.
        repo_id: See `publish`.
        private: See `publish`.
        revision: See `publish`.
        card: A README.md for it. The one that `zoo.save` writes says nothing of the training data, which has to be
            stated before anything is published.
        **options: Others of `publish`, such as `licence="mit"`, `tag="v1.0"` or `dry_run=True`.

    Raises:
        ConfigError: If the model is not of this library, there is no such card, or as `publish` has it.
        WeightsError: If a parameter is NaN or infinite, or there are no weights.
        HubError: As `publish` has it.
    """
    about = {"private": private, "revision": revision, **options}
    if isinstance(model, (str, os.PathLike)):
        if card is not None:
            raise ConfigError("card is for a model in memory; a folder has its own README.md")
        return publish(os.fspath(model), repo_id, **about)
    from zoo.loading import save

    with tempfile.TemporaryDirectory(prefix="pape-zoo-") as folder:
        save(model, folder)
        if card is not None:
            try:
                shutil.copyfile(card, Path(folder) / CARD)
            except OSError as error:
                raise ConfigError(f"card {os.fspath(card)}: cannot be read ({error.strerror or error})") from error
        try:
            return publish(f"local-dir:{folder}", repo_id, **about)
        except ConfigError as error:
            hint = "; give card='README.md'" if card is None and "README.md" in str(error) else ""
            raise ConfigError(str(error).replace(folder, "the model") + hint) from None


def _check_arguments(
    repo_id: str, revision: str | None, pull_request: bool, tag: str | None, message: str | None, licence: str | None
) -> None:
    if not isinstance(repo_id, str) or not check_repository(repo_id):
        raise ConfigError(f"{str(repo_id)!r:.100}: expected ORGANISATION/REPOSITORY")
    for what, name in (("revision", revision), ("tag", tag)):
        if name is not None and not _is_ref(name):
            raise ConfigError(f"{what} {name!r:.100} cannot be the name of a branch or tag")
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ConfigError(f"revision {revision} is a commit, which cannot be changed: give a branch")
    if pull_request and (revision is not None or tag is not None):
        raise ConfigError("a pull request is made to the default branch, without revision and tag")
    if message is not None and (not message.strip() or "\n" in message):
        raise ConfigError("message must be one line of text")
    if licence is not None and (not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence) or licence in ("other", "unknown")):
        raise ConfigError(
            f"licence {licence!r:.60}: expected one that the Hub lists, such as mit or apache-2.0; another goes into "
            "README.md as license: other, license_name and license_link"
        )


def _is_ref(name: str) -> bool:
    """Whether Git takes this as the name of a branch or tag (a little stricter)."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w./-]{0,200}", name)) and not re.search(r"\.\.|//|/\.|\.lock$|[./]$", name)


class _Repository:
    """A repository of the Hub that is written to."""

    def __init__(self, repo_id: str, revision: str, page: str) -> None:
        from huggingface_hub import HfApi, constants, get_token

        import zoo

        self.repo_id, self.revision, self.page = repo_id, revision, page
        self._api = HfApi(library_name="pape-zoo", library_version=zoo.__version__)
        self._head: str | None = None
        self._tags: dict[str, str] = {}
        if constants.HF_HUB_OFFLINE:
            raise HubError(f"not published: HF_HUB_OFFLINE is set: unset it to reach {constants.ENDPOINT}")
        if not get_token():
            raise HubError(f"not published: you are not logged in: {login_hint()} (a token with write access)")

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turns failures into a line that begins with `what`."""
        try:
            yield
        except failures() as error:
            if isinstance(error, ZooError):
                raise
            # Not chained: the messages of the library may quote headers.
            raise HubError(f"{what}: {explain(error, self.repo_id, revision=self.revision)}") from None

    def open(self, private: bool, pull_request: bool) -> None:
        """Makes the repository and the branch where they are not there.

        Raises:
            HubError: If that cannot be, or it is public and was to be private.
        """
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        try:
            info = self._api.repo_info(self.repo_id)
            if private and not info.private:
                raise HubError(
                    f"not published: {self.repo_id} exists and is public: make it private at {self.page}/settings first"
                )
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            if pull_request:
                raise
            self._create(private)
        if not self._look():
            if self.revision.startswith("refs/"):
                raise HubError(f"not published: {self.repo_id} has no {self.revision}")
            self._api.create_branch(self.repo_id, branch=self.revision, exist_ok=True)
            self._look()

    def _look(self) -> bool:
        """Reads where branches and tags are; whether there is the branch."""
        refs = self._api.list_repo_refs(self.repo_id, include_pull_requests=self.revision.startswith("refs/pr/"))
        self._tags = {ref.name: ref.target_commit for ref in refs.tags}
        heads = {ref.name: ref.target_commit for ref in refs.branches}
        heads |= {ref.ref: ref.target_commit for ref in refs.pull_requests or []}
        self._head = heads.get(self.revision)
        return self._head is not None

    def _create(self, private: bool) -> None:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            self._api.create_repo(self.repo_id, private=private or None)
        except HfHubHTTPError as error:
            if error.response.status_code != 409:
                raise
            raise HubError(
                f"not published: {self.repo_id} exists but your token may not read it (`hf auth whoami` says who you "
                "are), or it was made this moment: then run again"
            ) from None

    def commit(self, upload: Upload, message: str | None, pull_request: bool, tag: str | None) -> Published:
        """Sends what differs, in one commit on top of the head that was seen.

        Raises:
            HubError: If the tag is that of another commit.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        there = self._listing([file.path for file in upload.files])
        changed = [file for file in upload.files if not _same(file, there.get(file.path))]
        removed = self._outdated(upload)
        result = Published(
            repo_id=self.repo_id,
            url=f"{self.page}/tree/{self._head}",
            revision=self.revision,
            commit=self._head,
            files=upload.files,
            left_out=upload.left_out,
            removed=tuple(removed),
            unchanged=not changed and not removed,
        )
        if tag in self._tags and not (result.unchanged and self._tags[str(tag)] == self._head):
            raise HubError(f"not published: {self.repo_id} has a tag {tag} of another commit: choose another one")
        if result.unchanged:
            return result
        operations: list[Any] = [
            CommitOperationAdd(file.path, str(file.content) if isinstance(file.content, Path) else file.content)
            for file in changed
        ]
        try:
            done = self._api.create_commit(
                self.repo_id,
                [*operations, *(CommitOperationDelete(path) for path in removed)],
                commit_message=message or f"{upload.name}, by pape-zoo",
                commit_description="\n".join(f"{file.path}: sha256 {file.sha256}" for file in changed),
                revision=self.revision,
                create_pr=pull_request,
                parent_commit=self._head,
            )
        except failures() as error:
            commit = self._after(error, upload, pull_request)
            return replace(result, url=f"{self.page}/tree/{commit}", commit=commit)
        number = int(done.pr_num) if done.pr_num is not None else None
        return replace(result, url=done.pr_url or f"{self.page}/tree/{done.oid}", commit=done.oid, pull_request=number)

    def _after(self, error: BaseException, upload: Upload, pull_request: bool) -> str:
        """The commit, if it was made although there was no answer.

        Raises:
            HubError: Otherwise; says what is known.
        """
        from huggingface_hub.errors import HfHubHTTPError

        text = explain(error, self.repo_id, revision=self.revision)
        response = getattr(find(error, HfHubHTTPError), "response", None)
        answered = response is not None and response.status_code < 500  # Others may come from a gateway.
        before, fate = self._head, "nothing was committed; what is up already is not sent again"
        if pull_request and not answered:
            fate = f"it is not known whether a pull request was opened: look at {self.page}/discussions"
        elif not answered:
            try:
                self._look()
                there = self._listing([file.path for file in upload.files])
            except failures():
                fate = "it is not known whether the commit was made; what is there already is not sent again"
            else:
                if self._head != before and all(_same(file, there.get(file.path)) for file in upload.files):
                    return str(self._head)
        raise HubError(f"not published: {fate}: {text}") from None

    def _listing(self, paths: list[str]) -> dict[str, Any]:
        found = self._api.get_paths_info(self.repo_id, paths, revision=self._head)
        return {item.path: item for item in found if hasattr(item, "blob_id")}

    def _outdated(self, upload: Upload) -> list[str]:
        """Our own files of an earlier version that this one does not have."""
        from huggingface_hub.errors import EntryNotFoundError

        paths = list(self._listing([RECORD]))
        with suppress(EntryNotFoundError):
            paths += [item.path for item in self._api.list_repo_tree(self.repo_id, EVAL_RESULTS, revision=self._head)]
        keep = {file.path for file in upload.files}
        return sorted(path for path in paths if path not in keep and _OURS.fullmatch(path))

    def tag(self, tag: str, commit: str) -> None:
        """Tags a commit; the same tag on the same commit is left alone."""
        if self._tags.get(tag) != commit:
            self._api.create_tag(self.repo_id, tag=tag, revision=commit)


def _same(file: UploadFile, there: Any) -> bool:
    """Whether the Hub has this file: large ones by their sha256, others as Git names them."""
    if there is None or there.size != file.size:
        return False
    if there.lfs is not None:
        return bool(there.lfs.sha256 == file.sha256)
    data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
    return bool(there.blob_id == sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())
