"""Pages in headless Chromium, from files and served: filters, advice, plots, keyboard, and an accessibility check."""

from __future__ import annotations

import pytest
from site_browser import address, chromium, new_page, page, server, site  # noqa: F401

import zoo
from zoo import registry
from zoo.advice.rules import load_rules

EMBEDDED = "pape-vit-t-imagenette"
PAGES = ("index.html", f"models/{EMBEDDED}.html", "advise.html#tokens=points", "measurements.html")


@pytest.fixture(params=["file", "served"])
def base(request, site):  # noqa: F811
    return site.as_uri() + "/" if request.param == "file" else request.getfixturevalue("address")


def names(page):  # noqa: F811
    return page.evaluate("[...document.querySelectorAll('#models tbody tr')].map((row) => row.dataset.name)")


def test_filters_and_the_address(page, base):  # noqa: F811
    page.goto(base + "index.html")
    assert len(names(page)) == len(registry.list_models())
    page.select_option("#filter-modality", "points")
    page.select_option("#filter-encoding", "sincos+pape")
    assert sorted(names(page)) == registry.list_models(modality="points", encoding="sincos+pape")
    assert page.text_content("#count") == f"{len(names(page))} of {len(registry.list_models())} models"
    assert page.get_attribute("#count", "aria-live") == "polite"
    page.fill("#search", "modelnet40 B (base)".lower().split()[0])
    assert names(page) == ["sincos-pape-ptv3-b-modelnet40"]
    assert "modality=points" in page.url and "encoding=sincos%2Bpape" in page.url
    kept = page.url
    page.goto("about:blank")
    page.goto(kept)
    assert names(page) == ["sincos-pape-ptv3-b-modelnet40"]
    assert page.input_value("#search") == "modelnet40"
    page.click("#clear")
    assert len(names(page)) == len(registry.list_models())
    assert "#" not in page.url


def test_counts_of_the_other_choices_follow(page, address):  # noqa: F811
    page.goto(address + "index.html#task=segmentation")
    texts = page.evaluate("[...document.querySelector('#filter-modality').options].map((one) => one.textContent)")
    count = len(registry.list_models(task="segmentation"))
    assert f"All ({count})" in texts and f"Point clouds ({count})" in texts and "Images (0)" in texts
    page.fill("#search", "nothing is called so")
    assert page.is_visible("#nothing") and not page.is_visible("#models")
    page.click("#clear-too")
    assert page.is_visible("#models") and not page.is_visible("#nothing")


def test_sorting_by_a_heading(page, address):  # noqa: F811
    page.goto(address + "index.html")
    page.click("[data-sort=parameters]")
    head = page.locator("th", has=page.locator("[data-sort=parameters]"))
    assert head.get_attribute("aria-sort") == "ascending"
    sizes = [registry.entry(name).parameters for name in names(page)]
    assert sizes == sorted(sizes)
    page.click("[data-sort=parameters]")
    assert head.get_attribute("aria-sort") == "descending"
    assert [registry.entry(name).parameters for name in names(page)] == sizes[::-1] or sorted(sizes) == sizes
    page.click("[data-sort=name]")
    page.click("[data-sort=name]")
    assert names(page) == sorted(names(page), reverse=True)
    assert page.url.endswith("#sort=-name")
    page.goto(address + "index.html?again#sort=nonsense&task=nonsense")
    assert names(page)[0] in registry.list_models(weights="embedded")


def test_an_address_of_a_stranger_is_text(page, address):  # noqa: F811
    page.goto(address + "index.html#q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&sort=__proto__&modality=%22%3E")
    assert page.input_value("#search") == "<img src=x onerror=alert(1)>"
    assert page.locator("img").count() == 0
    page.goto(address + "advise.html#tokens=constructor&side=1e99&times=%3Cb%3E")
    assert page.locator("#ranking li").count() == 0


def test_keyboard_alone(page, address):  # noqa: F811
    page.goto(address + "index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "search"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.type("pape-vit-n-imagenette")
    assert names(page) == ["pape-vit-n-imagenette"]
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#models tbody') !== null"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/pape-vit-n-imagenette.html")


def test_the_theme_is_chosen_and_kept(new_page, address):  # noqa: F811
    page = new_page(color_scheme="dark")  # noqa: F811
    page.goto(address + "index.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    assert page.text_content("#theme") == "Theme: light"
    light = page.evaluate(paper)
    assert light != dark
    page.goto(address + "measurements.html")
    assert page.evaluate(paper) == light
    page.click("#theme")
    page.click("#theme")
    assert page.text_content("#theme") == "Theme: automatic"
    assert page.evaluate(paper) == dark


def test_pages_are_no_wider_than_a_telephone(new_page, address):  # noqa: F811
    page = new_page(viewport={"width": 360, "height": 700})  # noqa: F811
    for name in PAGES:
        page.goto(address + name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def some_answers():
    """Every kind of tokens with a few of the other answers each, so that each of these is met twice or more."""
    others = [
        {"size": "changing"},
        {"rotation": "invariant"},
        {"kernel": "plain", "side": 200},
        {"size": "changing", "times": 1.5},
        {"phase": "inference"},
        {"landmarks": "yes", "memory": "tight", "size": "changing", "side": 92},
        {"size": "changing", "times": 40.0, "landmarks": "yes"},
        {"rotation": "invariant", "phase": "inference", "size": "changing"},
        {"memory": "tight", "side": 91},
        {},
    ]
    tokens = list(load_rules()["tokens"])
    assert len(tokens) == 5  # With another number some would never meet.
    each = [(kind, others[(place + 3 * step) % 10]) for place, kind in enumerate(tokens) for step in range(5)]
    return [{"tokens": kind, **more} for kind, more in [*each, ("grid", others[0]), ("points", others[1])]]


def test_the_page_advises_as_python_does(page, site):  # noqa: F811
    asked = some_answers()
    page.goto(site.as_uri() + "/advise.html")
    found = page.evaluate("(asked) => asked.map((one) => ZooAdvise.advise(ZOO_ADVICE, one))", asked)
    for answers, got in zip(asked, found, strict=True):
        expected = zoo.advise(**answers)
        assert got == expected, answers


def test_rounding_is_that_of_python(page, site):  # noqa: F811
    page.goto(site.as_uri() + "/advise.html")
    values = [0.125, -0.125, 0.375, 1.005, 2.675, -1.115, 0.0, 7.0, 1234.5678, 0.0625, 12.1875]
    for digits in (1, 2, 3):
        found = page.evaluate(
            "([values, digits]) => values.map((one) => ZooAdvise.round(one, digits))", [values, digits]
        )
        assert found == [round(value, digits) for value in values]


def test_questions_lead_to_a_ranking(page, site):  # noqa: F811
    page.goto(site.as_uri() + "/advise.html")
    assert not page.is_visible("#answer-times")
    page.check("#tokens-grid")
    page.check("#size-changing")
    assert page.is_visible("#answer-times")
    expected = zoo.advise("grid", size="changing")
    ranked = page.evaluate("[...document.querySelectorAll('.ranking strong')].map((one) => one.textContent)")
    assert ranked == [one["encoding"] for one in expected["ranked"]]
    assert f"First: {ranked[0]}" in page.text_content("#advice-status")
    assert expected["ranked"][0]["commands"][0] in page.text_content(".ranking")
    assert page.locator("#ranking table").count() == sum(bool(table["rows"]) for table in expected["tables"])
    assert page.url.endswith("#tokens=grid&size=changing")
    page.fill("#answer-times", "0")  # No such answer; the default counts.
    assert f"First: {ranked[0]}" in page.text_content("#advice-status")
    page.check("#tokens-points")
    page.check("#rotation-invariant")
    expected = zoo.advise("points", size="changing", rotation="invariant")
    assert page.text_content(".ranking strong") == expected["ranked"][0]["encoding"] == "pape-ri"
    links = page.evaluate("[...document.querySelectorAll('.ranking a')].map((link) => link.getAttribute('href'))")
    assert links and all(link.startswith("models/") for link in links)


def test_lines_are_drawn_by_ticking(page, address):  # noqa: F811
    page.goto(address + "measurements.html")
    assert page.is_visible("g[data-series='pape/none']") and not page.is_visible("g[data-series='string/none']")
    page.check("input[data-series='string/none']")
    assert page.is_visible("g[data-series='string/none'] path")
    assert page.is_visible("#lines li[data-series='string/none']")
    page.click("#draw-none")
    assert page.text_content("#drawn") == "0 lines are drawn"
    assert not page.is_visible("g[data-series='pape/none']")
    page.click("#draw-all")
    assert page.is_visible("g[data-series='cpb/none']")


def test_from_files_a_panel_says_how_to_get_it(page, site):  # noqa: F811
    page.goto(f"{site.as_uri()}/models/{EMBEDDED}.html")
    assert page.text_content("#try-it-note") == "Run zoo browse to try this model here."
    assert page.locator("#try-it-body > *").count() == 0


def test_without_scripts_all_models_are_there(new_page, site):  # noqa: F811
    page = new_page(java_script_enabled=False)  # noqa: F811
    page.goto(site.as_uri() + "/index.html")
    assert page.locator("#models tbody tr").count() == len(registry.list_models())
    assert not page.is_visible("#filters") and not page.is_visible("#theme")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(new_page, address, scheme):  # noqa: F811
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = new_page(color_scheme=scheme, reduced_motion="reduce")  # noqa: F811
    for name in PAGES:
        page.goto(address + name)
        if EMBEDDED in name:
            page.wait_for_selector("#try-it[data-ready]")
            page.click(".samples button")
            page.wait_for_selector(".head canvas")
        if name == "index.html":
            page.fill("#search", "imagenette")  # Rows are alike: some of them tell of all.
        found = axe.Axe().run(page).response
        assert found["passes"]
        wrong = [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
        assert wrong == [], name
