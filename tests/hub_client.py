"""This process as a client of a Hub on localhost, and folders that may be published."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, serve
from saved_models import make_model

import zoo

TOKEN = "hf_Secret0123456789abcdef"

__all__ = ["TOKEN", "finish_card", "hub", "make_folder"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A running Hub with one token, which may write to `org`; waits of retries are skipped."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    with serve(tokens={TOKEN: ("org",)}) as server:
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        settings = {
            "ENDPOINT": server.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "no token"),
        }
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        yield server
        close_session()


def finish_card(folder: Path, **front: Any) -> Path:
    """Completes the card that `zoo.save` wrote, as a person would."""
    import yaml

    card = folder / "README.md"
    text = card.read_text()
    stated = "Made-up shapes, drawn by the tests. Weights: MIT."
    text = re.sub(r"Not stated\. Whoever publishes[^\n]*", stated, text)
    head = yaml.safe_dump({"license": "mit", **front})
    card.write_text(text.replace("---\n", f"---\n{head}", 1))
    return folder


def make_folder(config: dict[str, Any], path: Path, seed: int = 0, **front: Any) -> Path:
    """A model folder that may be published."""
    return finish_card(zoo.save(make_model(config, seed), path), **front)
