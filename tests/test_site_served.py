"""The built site before the real server: models answer in the browser, with nothing asked of another machine."""

from __future__ import annotations

import threading

import pytest
from site_api import SAMPLES
from site_browser import chromium, new_page, page, site  # noqa: F401


@pytest.fixture(scope="module")
def address(site):  # noqa: F811
    from zoo.site.server import make_server

    with make_server(site, 0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def open_panel(page, address, name):  # noqa: F811
    page.goto(f"{address}models/{name}.html")
    page.wait_for_selector("#try-it[data-loaded]")


def test_classes_sizes_and_bias(page, address):  # noqa: F811
    import zoo

    open_panel(page, address, "pape-vit-t-imagenette")
    page.click(".samples button:has-text('golf ball')")
    page.wait_for_selector(".class-name")
    predicted = zoo.predictor("pape-vit-t-imagenette")(SAMPLES / "golf_ball.jpg")
    assert page.text_content(".class-name") == predicted.labels[0] == "golf ball"
    assert page.locator(".classes .number").first.text_content() == f"{100 * predicted.scores[0]:.1f} %"
    page.wait_for_selector(".map")
    before = page.evaluate("document.querySelector('.map').getAttribute('aria-label')")
    page.locator(".patches").click(position={"x": 5, "y": 5})
    page.wait_for_function(
        "() => document.querySelector('#patch-place').textContent.includes('row 1 of 14, column 1 ')"
    )
    assert page.evaluate("document.querySelector('.map').getAttribute('aria-label')") != before
    page.focus("#size")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('.try-status').textContent.includes('at 96 px')")
    page.wait_for_function("() => document.querySelector('#patch-place').textContent.includes('of 12')")


def test_boxes(page, address):  # noqa: F811
    open_panel(page, address, "pape-vit-det-n-bccd")
    page.click(".samples button")
    page.wait_for_selector("canvas.boxes")
    assert page.locator(".results tbody tr").count() > 5
    assert {"RBC", "WBC"} <= set(
        page.evaluate("[...document.querySelectorAll('.results tbody th')].map((one) => one.textContent)")
    )


def test_music(page, address):  # noqa: F811
    pytest.importorskip("mido")
    open_panel(page, address, "pope-decoder-t-jsb")
    assert page.locator("#prompt").count() == 0
    page.fill("#seed", "2")
    page.click("text=Make a piece")
    frame = page.wait_for_selector("iframe.player", timeout=60_000).content_frame()
    frame.wait_for_selector("body[data-ready]")
    assert "seed 2" in frame.text_content("#about")
    frame.click("#play")
    assert frame.text_content("#play") == "Pause"
    page.wait_for_function("() => document.querySelector('.answer-text').textContent.includes('soprano')")


def test_a_file_that_is_no_picture(page, address, tmp_path):  # noqa: F811
    open_panel(page, address, "pape-vit-n-imagenette")
    path = tmp_path / "no picture.jpg"
    path.write_bytes(b"nothing of the kind")
    page.set_input_files("#file", path)
    page.wait_for_function("() => document.querySelector('.fault').textContent !== ''")
    assert "\n" not in page.text_content(".fault") and page.locator(".results > *").count() == 0
