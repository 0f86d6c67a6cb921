"""What went wrong between us and the Hugging Face Hub, in one line that says what to do. Never prints a token."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from zoo.results import one_line

__all__ = ["explain", "failures", "find", "login_hint", "redact"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What resolvers of the usual systems say of a host that they do not find.
_NO_HOST = ("name or service not known", "name resolution", "nodename nor servname", "getaddrinfo", "no address")
_UNREADABLE = "no such repository, or it is private"
_RENEW = "log in again with `hf auth login`, or set HF_TOKEN"


def failures() -> tuple[type[BaseException], ...]:
    """What huggingface_hub raises when something fails; of its HTTP library, the base of all errors."""
    from huggingface_hub.errors import HfHubHTTPError

    # The base goes by the HTTP library (httpx, httpx2), which differs between versions.
    return (HfHubHTTPError.__bases__[0], OSError, ValueError, RuntimeError)


def login_hint() -> str:
    """How to be somebody on the Hub."""
    return "log in with `hf auth login` or set HF_TOKEN"


def redact(text: str) -> str:
    """A line without tokens, passwords in addresses and signatures of addresses."""
    from huggingface_hub import get_token

    try:
        token = get_token()
    except (OSError, ValueError):
        token = None
    if token:
        text = text.replace(token, "<token>")
    text = re.sub(r"\bhf_[A-Za-z0-9]{6,}", "<token>", text)
    text = re.sub(r"(?i)(bearer )\s*[^\s'\"]+", r"\1<token>", text)
    text = re.sub(r"(://)[^/\s@]+@", r"\1", text)
    return one_line(re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", text))


def find(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first error of a kind among an error and its causes."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def explain(error: BaseException, where: str, *, filename: str | None = None, revision: str | None = None) -> str:
    """One line on what failed and what to do.

    Args:
        error: As huggingface_hub raised it; its causes are looked at too.
        where: What was asked for, such as `"hf-hub:org/repo@main"`.
        filename: The file that was asked for.
        revision: The revision that was asked for.
    """
    for cause in _causes(error):
        if text := _known(cause, where, filename, revision):
            return text
    for cause in _causes(error):
        if text := _connection(cause, where):
            return text
    return f"{where}: {redact(str(error))[:300] or type(error).__name__}"


def _known(error: BaseException, where: str, filename: str | None, revision: str | None) -> str | None:
    """The text for an error that says by itself what it is."""
    from huggingface_hub import constants, errors, get_token

    if isinstance(error, errors.GatedRepoError):
        page = f" ({redact(constants.ENDPOINT)}/{error.repo_id})" if getattr(error, "repo_id", None) else ""
        return f"{where} is gated: accept its terms on its page{page}, then {login_hint()}"
    if isinstance(error, errors.DisabledRepoError):
        return f"{where} was disabled by the Hub; its page says why"
    if isinstance(error, errors.RepositoryNotFoundError):
        if get_token():
            return f"{where}: {_UNREADABLE} and your token may not read it (`hf auth whoami` says who you are)"
        return f"{where}: {_UNREADABLE} ({login_hint()})"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{where}: the repository has no revision {revision!r}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"{where} has no {filename}, so it does not hold a model of pape-zoo"
    if isinstance(error, errors.HFValidationError):
        return f"{where}: {redact(str(error))}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{where}: HF_HUB_OFFLINE is set, so nothing is asked of the Hub; unset it"
    if isinstance(error, errors.LocalTokenNotFoundError):
        return f"{where}: not logged in: {login_hint()}"
    if isinstance(error, errors.HfHubHTTPError):
        return _status(error, where)
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{where}: the disk is full or a quota is used up ({redact(str(error))}); HF_HOME moves the cache"
    if isinstance(error, PermissionError):
        return f"{where}: not permitted ({redact(str(error))}); HF_HOME moves the cache"
    if isinstance(error, UnicodeEncodeError) or "header value" in str(error).lower():
        return f"{where}: the token holds letters that no token has: {_RENEW}"
    return None


def _status(error: BaseException, where: str) -> str:
    """The text for an answer of the server that has no class of its own."""
    response = getattr(error, "response", None)
    status = 0 if response is None else int(response.status_code)
    said = redact(str(getattr(error, "server_message", None) or ""))[:200]
    quoted = f" ({said})" if said else ""
    if status == 401:
        return f"{where}: the Hub does not accept your token; it is expired, revoked or mistyped: {_RENEW}"
    if status == 403:
        return (
            f"{where}: your token may not do this{quoted}: it needs write access to the organisation or user; make one "
            "at https://huggingface.co/settings/tokens, then log in again with `hf auth login`"
        )
    if status in (409, 412):
        return f"{where}: something else changed there meanwhile{quoted}: run again"
    if status == 429:
        headers = {} if response is None else response.headers
        later = str(headers.get("Retry-After", "")).strip()
        wait = f"wait {later} seconds" if later.isdigit() else "wait some minutes"
        return (
            f"{where}: the Hub limits how often it may be asked (429): {wait}, then run again; {login_hint()} for more"
        )
    if status >= 500:
        return f"{where}: the Hub has a fault of its own ({status}){quoted}: run again later; status.huggingface.co"
    return f"{where}: the Hub refused ({status}){quoted or ': ' + redact(str(error))[:200]}"


def _connection(error: BaseException, where: str) -> str | None:
    """The text for a Hub that does not answer, or stops in the middle."""
    from huggingface_hub import constants

    transport = failures()[0]
    text = redact(str(error))[:200]
    if any(part in text.lower() for part in _NO_HOST):
        host = redact(constants.ENDPOINT).partition("://")[2]
        return f"{where}: there is no host {host} ({text}): check the network and HF_ENDPOINT"
    if isinstance(error, (transport, ConnectionError)):
        name = type(error).__name__
        return f"{where}: no connection to {redact(constants.ENDPOINT)}, or it broke ({text or name}): run again"
    if "consistency check failed" in text.lower():
        return f"{where}: the file came short ({text}): run again"
    return None
