"""Finding model files: the cache of converted weights, and Hugging Face Hub repositories.

From a Hub repository two files are fetched, `config.json` and `model.safetensors`; nothing in it is executed. One thing
the server that `HF_ENDPOINT` names is trusted with: huggingface_hub names files of its cache by what it answers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from zoo.config_file import MAX_JSON_BYTES
from zoo.errors import ConfigError, WeightsError
from zoo.hub_errors import explain, failures, find

__all__ = ["cache_folder", "check_repository", "download", "release_folder", "split_repository", "stated_sha256"]


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where converted weights are installed: `cache_dir`, else `ZOO_CACHE`, else `~/.cache/pape-zoo`."""
    return Path(cache_dir or os.environ.get("ZOO_CACHE") or "~/.cache/pape-zoo").expanduser()


def release_folder(name: str, cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where `zoo convert --install` puts the released weights of a registered name."""
    return cache_folder(cache_dir) / "release" / name


def split_repository(name: str, revision: str | None = None) -> tuple[str, str | None]:
    """Splits `"org/repo[@revision]"`.

    Args:
        name: What follows `hf-hub:`.
        revision: A revision given apart; must agree with one in `name`.

    Returns:
        Repository id and revision (`None` for the default branch).

    Raises:
        ConfigError: If the form is wrong or two different revisions are given.
    """
    repo_id, _, stated = name.partition("@")
    if not check_repository(repo_id):
        raise ConfigError(f"'hf-hub:{name:.100}': expected hf-hub:ORGANISATION/REPOSITORY or the same with @REVISION")
    if "@" in name and not stated:
        raise ConfigError(f"'hf-hub:{name:.100}': the revision after @ is empty")
    if stated and revision and stated != revision:
        raise ConfigError(f"two revisions were given: {stated!r} in the name and revision={revision!r}")
    wanted = stated or revision
    # The cache of huggingface_hub has a file of this name.
    if wanted and (wanted.startswith("/") or ".." in re.split(r"[/\\]", wanted) or not wanted.isprintable()):
        raise ConfigError(f"revision {wanted!r:.100} is none: give a branch, a tag or a commit")
    return repo_id, wanted


def check_repository(repo_id: str) -> bool:
    """Whether this has the form `ORGANISATION/REPOSITORY`."""
    return bool(re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", repo_id)) and ".." not in repo_id


def stated_sha256(path: Path) -> str | None:
    """The sha256 that the Hub stated for a file of its cache, or `None` where it stated none.

    The cache keeps large files as `blobs/SHA256`, and links to them from the revisions.
    """
    # One link, not all: what it leads to may be a link to a store by other hashes.
    target = Path(os.readlink(path)) if path.is_symlink() else path
    return target.name if target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name) else None


def download(
    repo_id: str,
    filename: str,
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool | None = None,
) -> Path:
    """Path of a file of a Hub repository in the Hub cache, fetched if need be.

    Args:
        repo_id: `"org/repo"`.
        filename: File in the repository.
        revision: Branch, tag or commit.
        cache_dir: Hub cache folder; by default that of huggingface_hub (`HF_HUB_CACHE`, `HF_HOME`).
        local_files_only: Use the cache alone; `None` follows `HF_HUB_OFFLINE`.

    Raises:
        WeightsError: Saying which of repository, revision, file, access or connection failed; offline, where it looked.
    """
    from huggingface_hub import hf_hub_download

    options: dict[str, Any] = {
        "repo_id": repo_id,
        "filename": filename,
        "revision": revision,
        "cache_dir": cache_dir,
        "local_files_only": bool(local_files_only),
        "library_name": "pape-zoo",
    }
    try:
        if filename.endswith(".json") and not local_files_only:
            size = hf_hub_download(**options, dry_run=True).file_size
            if size is not None and size > MAX_JSON_BYTES:
                raise ConfigError(f"{filename} of hf-hub:{repo_id} is larger than 1 MiB: not a configuration")
        return Path(hf_hub_download(**options))
    except failures() as error:
        if isinstance(error, ConfigError):
            raise
        raise WeightsError(_explain(error, repo_id, filename, revision, cache_dir, local_files_only)) from None


def _explain(
    error: BaseException,
    repo_id: str,
    filename: str,
    revision: str | None,
    cache_dir: str | os.PathLike[str] | None,
    local_files_only: bool | None,
) -> str:
    from huggingface_hub import constants, errors

    where = f"hf-hub:{repo_id}" + (f"@{revision}" if revision else "")
    setting = "cache_dir" if cache_dir else "HF_HUB_CACHE or HF_HOME sets it"
    looked = f"looked for {filename} in {cache_dir or constants.HF_HUB_CACHE} ({setting})"
    # The library wraps the answer of the server when the cache has no copy either.
    absent = find(error, errors.LocalEntryNotFoundError) is not None
    if absent and local_files_only:
        return f"{where} is not in the cache and local_files_only is set; {looked}"
    if absent and constants.HF_HUB_OFFLINE:
        return (
            f"{where} is not in the cache and HF_HUB_OFFLINE is set; {looked}. Unset HF_HUB_OFFLINE to download, "
            "or load a folder with local-dir:PATH"
        )
    text = explain(error, where, filename=filename, revision=revision)
    return f"{text}; it is not in the cache either: {looked}" if absent else text
