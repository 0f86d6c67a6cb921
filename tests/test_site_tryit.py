"""The try-it panel in headless Chromium, against a server whose answers are made up."""

from __future__ import annotations

import pytest
from site_api import CLASSIFIER, CLOUD, DETECTOR, HEADS, LAYERS, SAMPLES, serve_site
from site_browser import address, chromium, new_page, page, server, site  # noqa: F401


def posted(server, path):  # noqa: F811
    with server.lock:
        return [one for one in server.asked if one["path"] == path]


def open_panel(page, address, name=CLASSIFIER):  # noqa: F811
    page.goto(f"{address}models/{name}.html")
    page.wait_for_selector("#try-it[data-loaded]")


def first_class(page, words):  # noqa: F811
    page.wait_for_function("(words) => document.querySelector('.class-name')?.textContent === words", arg=words)


def test_a_sample_is_classified(page, address, server):  # noqa: F811
    open_panel(page, address)
    assert page.text_content(".try-status") == "Ready: give it a picture."
    page.click("text=golf ball")
    first_class(page, "thing at 112")
    assert page.text_content(".try-status") == "thing at 112, 90.0 % at 112 px, in 12 ms"
    assert page.locator(".classes li").nth(1).text_content().startswith("<b>markup</b>")
    assert page.locator(".classes b").count() == 0
    assert page.locator("text=golf ball").first.get_attribute("aria-pressed") == "true"
    (asked,) = posted(server, "/api/predict")
    assert asked["name"] == "golf_ball.jpg" and asked["bytes"] == (SAMPLES / "golf_ball.jpg").stat().st_size


def test_a_file_of_ones_own(page, address, server, tmp_path):  # noqa: F811
    path = tmp_path / "größe 1.jpg"
    path.write_bytes((SAMPLES / "church.jpg").read_bytes())
    open_panel(page, address)
    page.set_input_files("#file", path)
    first_class(page, "thing at 112")
    assert posted(server, "/api/predict")[0]["name"] == path.name


def test_a_dropped_file(page, address, server):  # noqa: F811
    open_panel(page, address)
    page.evaluate(
        """async () => {
            const file = new File([await (await fetch("../api/sample/church.jpg")).blob()], "dropped.jpg");
            const given = new DataTransfer();
            given.items.add(file);
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", { dataTransfer: given, bubbles: true, cancelable: true }));
        }"""
    )
    first_class(page, "thing at 112")
    assert posted(server, "/api/predict")[0]["name"] == "dropped.jpg"


def test_the_slider_asks_anew_and_late_answers_are_dropped(page, address, server):  # noqa: F811
    server.slow = 0.4
    open_panel(page, address)
    assert page.get_attribute("#size", "aria-valuetext") == "112 px, as trained"
    page.click("text=golf ball")
    first_class(page, "thing at 112")
    page.focus("#size")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('.results[aria-busy]') !== null")  # 64 px is on its way.
    page.keyboard.press("End")
    first_class(page, "thing at 224")
    page.wait_for_timeout(500)  # The answer for 64 px would be here by now.
    assert page.text_content(".class-name") == "thing at 224"
    assert page.text_content("output") == "224 px"
    assert [one["size"] for one in posted(server, "/api/predict")] == ["112", "64", "224"]


def test_quick_moves_ask_once(page, address, server):  # noqa: F811
    open_panel(page, address)
    page.click("text=golf ball")
    first_class(page, "thing at 112")
    page.evaluate(
        """() => {
            const slider = document.getElementById("size");
            for (const value of ["2", "1", "3"]) {
              slider.value = value;
              slider.dispatchEvent(new Event("input", { bubbles: true }));
            }
        }"""
    )
    first_class(page, "thing at 224")
    assert [one["size"] for one in posted(server, "/api/predict")] == ["112", "224"]


def labels(page):  # noqa: F811
    return page.evaluate("[...document.querySelectorAll('.map')].map((map) => map.getAttribute('aria-label'))")


def test_bias_of_a_patch_by_mouse_and_by_keyboard(page, address, server):  # noqa: F811
    open_panel(page, address)
    page.click("text=golf ball")
    page.wait_for_selector(".head canvas")
    place = "#patch-place"
    assert page.text_content(place) == f"Bias of the patch in row 8 of 14, column 8 of 14, layer 1 of {LAYERS}."
    assert len(labels(page)) == HEADS
    box = page.locator(".patches").bounding_box()
    step = box["width"] / 14
    page.locator(".patches").click(position={"x": 2.5 * step, "y": 1.5 * step})
    page.wait_for_function(
        "() => document.querySelector('#patch-place').textContent.includes('row 2 of 14, column 3 of 14,')"
    )
    assert labels(page)[0] == "Head 1: bias from −5.30 to 0.00, greatest in row 2 of 14, column 3 of 14"
    page.focus(".patch-field")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.text_content(place) == "Patch row 3 of 14, column 4 of 14; Enter shows its bias."
    assert "row 2 of 14, column 3" in labels(page)[0]  # Not before Enter.
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('#patch-place').textContent.startsWith('Bias of the patch in row 3 ')"
    )
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")  # No further than the edge.
    assert "column 1 of 14" in page.text_content(place)
    page.select_option("#patch-layer", index=2)
    page.wait_for_function("() => document.querySelector('#patch-place').textContent.includes('layer 3 of 3')")
    assert " to −2.00, " in labels(page)[0]
    last = posted(server, "/api/bias")[-1]
    assert (last["row"], last["col"], last["layer"], last["size"]) == ("2", "0", "2", "112")


def test_maps_show_the_numbers(page, address):  # noqa: F811
    """The brightest pixel is where the bias is greatest: at the patch itself."""
    open_panel(page, address)
    page.click("text=golf ball")
    page.wait_for_selector(".head canvas")
    found = page.evaluate(
        """() => {
            const map = document.querySelector(".map");
            const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
            const sum = (one) => data[4 * one] + data[4 * one + 1] + data[4 * one + 2];
            const light = Array.from({ length: data.length / 4 }, (_, one) => sum(one));
            const place = light.indexOf(Math.max(...light));
            return [map.width, map.height, Math.floor(place / map.width), place % map.width];
        }"""
    )
    assert found == [14, 14, 7, 7]
    ends = "[...document.querySelectorAll('.ends span:first-child')].map((end) => end.textContent)"
    assert len(set(page.evaluate(ends))) == HEADS
    page.check("#patch-shared")
    assert len(set(page.evaluate(ends))) == 1
    # Another size keeps the place.
    page.focus("#size")
    page.keyboard.press("End")
    page.wait_for_function(
        "() => document.querySelector('#patch-place').textContent.includes('row 16 of 28, column 16 of 28')"
    )


def test_boxes_and_their_table(page, address):  # noqa: F811
    open_panel(page, address, DETECTOR)
    assert page.locator("#size").count() == 0 and page.locator(".bias").count() == 0
    page.click("text=golf ball")
    page.wait_for_selector("canvas.boxes")
    cells = page.evaluate(
        "[...document.querySelectorAll('.results tbody tr')].map((row) => row.innerText.split(/\\s+/))"
    )
    assert cells == [["RBC", "87.5", "%", "10", "20", "60", "90"]]
    pixel = page.evaluate(
        "[...document.querySelector('.boxes').getContext('2d').getImageData(10, 60, 1, 1).data.slice(0, 3)]"
    )
    assert pixel == [255, 93, 71]  # The left side of the box.
    assert page.text_content(".try-status") == "1 object found, in 12 ms"


def test_pictures_notes_and_files_of_the_server(page, address):  # noqa: F811
    open_panel(page, address, CLOUD)
    page.click("text=golf ball")
    page.wait_for_selector("img.answer")
    assert page.get_attribute("img.answer", "alt") == "The cloud in the colours of its classes"
    assert page.text_content(".results .note") == "3 points"
    assert page.get_attribute("a[download]", "download") == "classes.csv"


def test_what_cannot_be_read_is_one_line(page, address, tmp_path):  # noqa: F811
    open_panel(page, address)
    page.click("text=golf ball")
    page.wait_for_selector(".head canvas")
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no picture")
    page.set_input_files("#file", path)
    page.wait_for_function("() => document.querySelector('.fault').textContent !== ''")
    assert page.text_content(".fault") == "broken.jpg: cannot be read as a picture"
    assert page.get_attribute(".fault", "role") == "alert"
    assert page.locator(".results > *").count() == 0 and not page.is_visible(".bias")
    page.click("text=golf ball")
    first_class(page, "thing at 112")
    assert page.text_content(".fault") == ""


def test_a_server_that_stopped_is_told(page, site):  # noqa: F811
    with serve_site(site) as short:
        open_panel(page, f"http://127.0.0.1:{short.server_address[1]}/")
    page.click("text=golf ball")
    page.wait_for_function("() => document.querySelector('.fault').textContent !== ''")
    assert "does not answer" in page.text_content(".fault")


@pytest.mark.parametrize("status", [404, 200])
def test_another_server_leaves_the_note(page, address, status):  # noqa: F811
    page.route("**/api/status", lambda route: route.fulfill(status=status, body="<p>hello"))
    with page.expect_response("**/api/status"):
        page.goto(f"{address}models/{CLASSIFIER}.html")
    page.wait_for_timeout(50)
    assert page.text_content("#try-it-note") == "Run zoo browse to try this model here."
