"""The built site: a page for every model, links that lead somewhere, nothing loaded from elsewhere, text as text."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest
from site_browser import built_site

from zoo import registry
from zoo.advice import measurements, page_data
from zoo.cards import ModelCard, card, read_record
from zoo.cli.main import main
from zoo.errors import ConfigError
from zoo.site import build as building
from zoo.site import facts
from zoo.site.build import MARK, build
from zoo.site.card_html import card_html
from zoo.site.facts import DATA, models
from zoo.site.markup import Html, fill, tag
from zoo.site.measurements_page import measurements_page, read_speed
from zoo.site.model_page import model_page

ROOT = Path(__file__).resolve().parent.parent


class Elements(html.parser.HTMLParser):
    """Elements of a page, their ids, and what it loads and links."""

    LOADS = (("script", "src"), ("link", "href"), ("img", "src"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded, self.links, self.ids, self.headings, self.tags = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        given = dict(attributes)
        self.tags.append((name, given))
        self.loaded += [given[key] for element, key in self.LOADS if element == name and given.get(key)]
        if name == "a":
            self.links.append(given["href"])
        if "id" in given:
            self.ids.append(given["id"])
        if re.fullmatch(r"h[1-6]", name):
            self.headings.append(int(name[1]))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Elements]:
    return {path: Elements(path.read_text("utf-8")) for path in site.rglob("*.html")}


def data_of(site: Path, name: str = "data.js"):
    text = (site / "assets" / name).read_text("utf-8")
    return json.loads(re.fullmatch(r"window\.\w+ = (.*);\n", text, re.DOTALL)[1])


def test_every_registered_model_has_a_page_and_a_row(site):
    names = registry.list_models()
    assert sorted(path.stem for path in (site / "models").iterdir()) == names
    rows = re.findall(r'<tr role="row" data-name="([^"]+)">', (site / "index.html").read_text("utf-8"))
    assert sorted(rows) == names
    found = data_of(site)["models"]
    assert [one["name"] for one in found] == rows
    for one in found:
        entry = registry.entry(one["name"])
        assert (one["modality"], one["task"], one["encoding"]) == (entry.modality, entry.task, entry.encoding)
        assert one["parameters"] == entry.parameters
        assert (one["weights"] == "embedded") == (entry.weights == "embedded")


def test_names_of_sizes_and_data_are_known():
    for one in models():
        assert one["data"] in DATA, one["name"]
        assert re.fullmatch(r"[ntsb]|\d+m", one["size"]), one["name"]
    assert facts.model_facts(registry.entry("pape-video-vit-n-imagenette-motion"))["data"] == "imagenette-motion"
    assert facts.model_facts(registry.entry("rope-decoder-s-index-paper"))["data"] == "index"


def test_weights_are_told_plainly():
    def weights(name):
        return facts.model_facts(registry.entry(name))["weights"]

    assert weights("pape-vit-t-imagenette") == "embedded"
    assert weights("rope-vit-t-imagenette") == "recipe"
    assert weights("pape-vit-b-in1k") == "release"
    assert weights("rope-vit-b-in1k") == "none"


def test_results_are_those_of_the_record():
    for one in models():
        record = read_record(one["name"])
        measured = record is not None and bool(record["evaluation"])
        assert (one["result"] is not None) == measured
        if measured:
            assert f"{record['evaluation'][0]['value']:.1f}" in one["result"]


def test_links_and_assets_lead_somewhere(site, pages):
    assert len(pages) == len(registry.list_models()) + 3
    for path, page in pages.items():
        assert len(set(page.ids)) == len(page.ids), path
        for target in [*page.loaded, *page.links]:
            if target.startswith("https://"):
                assert target in page.links and target not in page.loaded, path
                continue
            file, _, place = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            assert found.is_file() and found.is_relative_to(site.resolve()), (path, target)
            if place and found.parent.name == "models":
                assert place in pages[found].ids, (path, target)


def test_headings_have_no_gaps(pages):
    for path, page in pages.items():
        assert page.headings[0] == 1 and page.headings.count(1) == 1, path
        assert all(later - earlier <= 1 for earlier, later in zip(page.headings, page.headings[1:], strict=False)), path


def test_scripts_and_styles_name_no_other_machine(site):
    for path in [*(site / "assets").glob("*.js"), *(site / "assets").glob("*.css")]:
        if path.name in ("data.js", "advice_data.js"):
            continue
        assert re.findall(r"(?:https?:)?//[\w-]+\.\w", path.read_text("utf-8")) == [], path
    for path in site.rglob("*.html"):
        policy = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]+)"', path.read_text("utf-8"))
        assert "default-src 'none'" in policy[1] and "http" not in policy[1]


def test_only_embedded_models_have_a_panel(pages):
    with_panel = {path.stem for path, page in pages.items() if "try-it" in page.ids}
    assert with_panel == set(registry.list_models(weights="embedded"))


HOSTILE = """---
license: <script>front</script>
---

<!-- comment -->

# <script>title</script>

<script>alert(1)</script> and <img src=x onerror=alert(1)> and <!-- a note -->

![picture](https://evil.example/x.png) [bad](javascript:alert(1)) [data](data:text/html,x) [own](file:///etc/passwd)
[fine](https://example.org/a "t" ) [autolink](//evil.example/y)

### A "quoted" <b>heading</b>

| a <i>b</i> | "c" |
| --- | --- |
| <script>cell</script> | `<script>code</script>` |

| | |
| --- | --- |
| key | value |

## Results

## Results
"""


def test_hostile_cards_are_text():
    made, headings = card_html(HOSTILE)
    page = Elements(made)
    allowed = {"p", "a", "em", "strong", "h2", "h3", "div", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert {name for name, _ in page.tags} <= allowed
    # A picture becomes a link, which loads nothing.
    assert page.links == ["https://evil.example/x.png", "https://example.org/a"]
    assert "onerror" not in {key for _, given in page.tags for key in given}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
    assert "front" not in made and "title</" not in made
    assert ("th", {"scope": "row"}) in page.tags
    assert [place for place, _ in headings] == ["card-a-quoted-b-heading-b", "card-results", "card-results-2"]
    assert page.headings == [2, 2, 2]


def test_hostile_card_within_a_page():
    one = {**models()[0], "result": '<script>"&'}
    text = model_page(one, ModelCard(one["name"], HOSTILE), [one])
    page = Elements(text)
    scripts = [given.get("src", "") for name, given in page.tags if name == "script"]
    assert all(source.startswith("../assets/") for source in scripts)
    assert not [given for name, given in page.tags if name == "img" or "onerror" in given]
    assert text.count("&lt;script&gt;&quot;&amp;") == 2


def test_templates_fill_no_mark_of_a_value():
    assert "{{root}}" in fill("model.html", **dict.fromkeys(
        ("name", "facts", "contents", "panel", "curve", "card", "relatives"), "{{root}}<"
    ))  # fmt: skip
    assert tag("a", "<", Html("<b>"), title='"', hidden=True, open=False) == '<a title="&quot;" hidden>&lt;<b></a>'
    with pytest.raises(KeyError):
        fill("model.html", name="one mark alone")


def test_numbers_on_the_page_of_measurements():
    text = measurements_page()
    for row in measurements.comparison():
        assert f'data-series="{row["name"]}/{row["extend"]}"' in text
        for found in row["top1"].values():
            spread = "" if found["std"] is None else f" ± {found['std']:.1f}"
            assert f">{found['mean']:.1f}{spread}</td>" in text


def test_every_speed_is_one_that_the_readme_states():
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    speed = read_speed()
    assert len(speed["ratios"]) == 3
    for one in speed["ratios"]:
        for values in one["rows"].values():
            assert all(f"{value:.2f}" in readme for value in values)
        assert one["device"].split()[-1] in readme and one["command"].startswith("zoo bench ")
    for one in speed["times"]:
        assert one["time"] in readme and one["command"] in readme
    assert "1.18 | 0.87 | 1.21" in readme  # PaPE, 197 tokens: train step, memory, inference.
    pape = {one["id"]: one["rows"]["pape"] for one in speed["ratios"]}
    assert pape == {
        "block-train": [1.18, 1.14, 1.14],
        "block-inference": [1.21, 1.14, 1.10],
        "block-cpu": [1.15, 0.98, 1.02],
    }


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"source": 1, "ratios": [{"id": "a", "columns": ["b"], "rows": {"c": []}}]}']
)
def test_a_damaged_file_of_speeds_is_named(text, tmp_path, monkeypatch):
    path = tmp_path / "speed.json"
    path.write_text(text)
    monkeypatch.setattr("zoo.site.measurements_page.measured_file", lambda *_: path)
    with pytest.raises(ConfigError, match="cannot read .*speed.json"):
        read_speed()


def test_page_data_names_models_and_commands():
    page = page_data()
    assert set(page["starts"]) == set(page["tokens"])
    assert set(page["starts"]["points"]) == {"no", "invariant"}
    start = page["starts"]["grid"]["no"]["pape"]
    assert start["models"][0]["weights"] == "embedded"
    assert start["commands"]["inference"][0].startswith("zoo predict pape-")


def test_building_again_deletes_what_is_left_over(tmp_path, monkeypatch):
    small = {"index.html": "new", "models/one.html": "one", MARK: "{}"}
    monkeypatch.setattr(building, "_files", lambda: dict(small))
    folder = tmp_path / "deep" / "site"
    assert build(folder) == folder / "index.html"
    for name in ("models/old.html", "mine.txt", "models/note.txt"):
        (folder / name).write_text("old")
    build(folder)
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["note.txt", "one.html"]
    assert (folder / "mine.txt").exists()


def test_folders_of_others_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(building, "_files", lambda: {"index.html": "", MARK: "{}"})
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SystemExit) as stopped:
        main(["browse", "--build", str(tmp_path)])
    assert stopped.value.code == 2
    assert "holds no site of ours" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="is a file"):
        build(tmp_path / "mine.txt")
    with pytest.raises(ConfigError, match="cannot write"):
        build(tmp_path / "mine.txt" / "site")


def test_browse_builds_and_serves(tmp_path, monkeypatch, capsys):
    import sys
    import types

    served = []

    def serve(folder, port, open_browser):
        served.append((port, open_browser, (folder / "index.html").is_file()))

    monkeypatch.setattr(building, "_files", lambda: {"index.html": "", MARK: "{}"})
    monkeypatch.setitem(sys.modules, "zoo.site.server", types.SimpleNamespace(serve=serve))
    for arguments in (["browse", "--port", "0", "--no-open"], ["browse"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
    assert served == [(0, False, True), (8000, True, True)]


def test_cards_keep_every_line_of_their_tables():
    name = "pape-vit-t-imagenette"
    made, _ = card_html(card(name).text)
    for item in read_record(name)["evaluation"]:
        assert f"<td>{item['value']:.1f}</td>" in made
    assert "<!--" not in made and "model-index" not in made
