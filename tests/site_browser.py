"""Headless Chromium with a built site, for tests of pages; skips with a reason where there is none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from site_api import serve_site

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 20_000  # Milliseconds, for a machine that is busy; what is waited for comes at once.


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on the PATH (Debian and Ubuntu have it in the package chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


def built_site(tmp_path_factory) -> Path:
    """The site, built once in a run of tests."""
    from zoo.site.build import build

    folder = tmp_path_factory.getbasetemp() / "built-site"
    if not folder.exists():
        build(folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def server(site):
    with serve_site(site) as running:
        yield running


@pytest.fixture
def address(server) -> str:
    server.asked.clear()
    server.slow = 0.0
    return f"http://127.0.0.1:{server.server_address[1]}/"


@pytest.fixture
def new_page(chromium):
    """Makes pages; fails where a script does, or where anything was asked of another machine."""
    contexts, wrong, asked = [], [], []

    def make(**options):
        context = chromium.new_context(**options)
        context.set_default_timeout(WAIT)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        contexts.append(context)
        return page

    yield make
    for context in contexts:
        context.close()
    assert wrong == []
    assert asked
    assert [url for url in asked if not re.match(r"http://127\.0\.0\.1:|file:|data:|blob:", url)] == []


@pytest.fixture
def page(new_page):
    return new_page()
