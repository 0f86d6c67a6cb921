"""Pictures and pages of clouds: what is shown, how it is coloured, and that names cannot break out of a page."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import point_files
import pytest
from point_files import cloud

import zoo
from modalities.points import Points
from modalities.points.colours import choices, class_colour, colouring, scale
from modalities.points.viewer import page, save_page
from modalities.points.viz import VIEWS, chosen_points, draw_points, parse_view, project
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}\u2028 & \"'$"


def labelled(count: int = 60) -> Points:
    data = cloud(count)
    fields = {"intensity": data["intensity"], "rgb": data["rgb"], "label": np.arange(count) % 3 * 127 + 1}
    return Points(data["xyz"] + [5e5, 6e6, 0], fields, name="a cloud")


def test_what_a_cloud_is_coloured_by():
    points = labelled()
    assert choices(points) == ["label", "rgb", "intensity", "z", "x", "y"]
    found = colouring(points)
    assert found.name == "label" and [(one[0], one[2]) for one in found.classes] == [
        ("1", 20),
        ("128", 20),
        ("ignored", 20),
    ]
    assert (found.rgb[0] == class_colour(1)).all() and (found.rgb[2] == (176, 176, 176)).all()
    named = colouring(points, "label", names=["zero", "one"])
    assert named.classes[0][0] == "one" and named.classes[1][0] == "128"
    assert np.array_equal(colouring(points, "rgb").rgb, points.fields["rgb"])
    height = colouring(points, "z")
    assert height.span[0] < height.span[1] and np.array_equal(height.rgb, scale()[height.values])
    order = np.argsort(points.xyz[:, 2])
    assert (np.diff(height.values[order].astype(int)) >= 0).all() and height.values.min() == 0
    assert len({class_colour(index) for index in range(40)}) == 40
    codes = Points(points.xyz, {"classification": np.arange(60).astype(np.uint8) % 3 + 5})
    assert [one[0] for one in colouring(codes).classes] == ["high vegetation", "building", "low noise"]
    with pytest.raises(ConfigError, match="cannot be coloured by 'colour'; it has label, rgb"):
        colouring(points, "colour")


def test_classes_stored_as_floats_and_what_maps_show():
    points = Points(cloud(60)["xyz"], {"label": np.arange(60) % 3 + 0.0, "segment": np.arange(60) / 7})
    found = colouring(points, "label", names=("ground", "vegetation", "building"))
    assert [one[0] for one in found.classes] == ["ground", "vegetation", "building"]
    brown, green, orange = (one[1] for one in found.classes)
    assert green[1] > max(green[0], green[2]) and brown != orange and (found.rgb[1] == green).all()
    assert colouring(points, "segment").span is not None and not colouring(points, "segment").classes
    odd = points.with_fields(label=np.where(np.arange(60) == 5, np.nan, 1.0))
    assert not colouring(odd, "label").classes
    mixed = colouring(points, "label", names=("ground", "sofa", "building"))
    assert [one[1] for one in mixed.classes] == [class_colour(index) for index in range(3)]
    codes = Points(points.xyz, {"classification": np.array([2, 5, 6, 40] * 15, np.uint8)})
    assert dict((one[0], one[1]) for one in colouring(codes).classes) == {
        "ground": brown,
        "high vegetation": (0, 120, 60),
        "building": orange,
        "code 40": class_colour(40),
    }


def test_headings_are_within_the_picture():
    pytest.importorskip("matplotlib")
    tall = Points(cloud(60)["xyz"] * [0.05, 1, 1], name="a name of a file that is rather long for a narrow cloud.las")
    for view in ("top", "front", "side"):
        figure = draw_points(tall, "z", view=view)
        figure.draw_without_rendering()
        box = figure.texts[0].get_window_extent()
        assert tall.name in figure.texts[0].get_text()
        assert 0 <= box.x0 < 20 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


@pytest.mark.parametrize(
    "values", [np.full(60, 7.0), np.full(60, np.nan), np.r_[np.inf, np.arange(59.0)], np.arange(60) % 2 == 0]
)
def test_odd_fields_are_coloured(values):
    found = colouring(Points(cloud(60)["xyz"], {"value": values}), "value")
    assert found.rgb.shape == (60, 3) and np.isfinite(found.span).all()
    page(Points(cloud(60)["xyz"], {"value": values}))


def test_colours_of_other_depths():
    rgb = cloud()["rgb"]
    for stored in (rgb.astype(np.uint16) * 256, rgb.astype(np.uint16), rgb / 255):
        found = colouring(Points(cloud()["xyz"], {"rgb": stored}), "rgb").rgb
        assert found.dtype == np.uint8 and np.array_equal(found, rgb)


def test_projection():
    axes = np.eye(3)
    flat, near = project(axes, 0, 0)  # From the x axis: y to the right, z up.
    assert np.allclose(flat, [[0, 0], [1, 0], [0, 1]]) and np.allclose(near, [1, 0, 0])
    flat, near = project(axes, *VIEWS["top"])  # As on a map.
    assert np.allclose(near, [0, 0, 1]) and np.allclose(flat, [[1, 0], [0, 1], [0, 0]])
    points = np.random.default_rng(0).normal(size=(20, 3))
    flat, near = project(points, 33, 21)
    assert np.allclose(np.linalg.norm(np.column_stack([flat, near]), axis=1), np.linalg.norm(points, axis=1))
    assert parse_view("top") == "top" and parse_view("10,-20.5") == (10, -20.5)
    for bad in ("behind", "1,2,3", "0,91", "nan,0"):
        with pytest.raises(ConfigError, match="view"):
            parse_view(bad)


def test_large_clouds_are_thinned_with_a_seed():
    points = labelled(500)
    assert chosen_points(points, 500) is points
    first, again, other = (chosen_points(points, 100, seed) for seed in (0, 0, 1))
    assert len(first) == 100 and np.array_equal(first.xyz, again.xyz) and not np.array_equal(first.xyz, other.xyz)
    places = [int(np.flatnonzero((points.xyz == row).all(axis=1))[0]) for row in first.xyz]
    assert places == sorted(set(places)) and np.array_equal(first.fields["label"], points.fields["label"][places])
    with pytest.raises(ConfigError, match="positive whole number"):
        chosen_points(points, 0)


def test_figure():
    pytest.importorskip("matplotlib")
    from modalities.points.viz import draw_points, to_picture

    points = labelled()
    figure = draw_points(points, view="front", names=["zero", "one"])
    axes = figure.axes[0]
    drawn = axes.collections[0]
    flat, near = project(points.xyz - points.bounds.mean(axis=0), 0, 0)
    assert np.allclose(drawn.get_offsets(), flat[np.argsort(near, kind="stable")])  # The nearest last.
    assert axes.get_aspect() == 1 and figure.get_suptitle() == "a cloud: 60 points, by label"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one (20)", "128 (20)", "ignored (20)"]
    assert len(draw_points(points, "z").axes) == 2  # A bar.
    few = draw_points(points, max_points=20)
    assert len(few.axes[0].collections[0].get_offsets()) == 20 and "20 of 60 points" in few.get_suptitle()
    odd = Points(points.xyz, {"label": points.fields["label"]}, name="$x_{")
    picture = to_picture(draw_points(odd, names=["", "$\\alpha", "_hidden"]))
    assert picture.size == (1200, 900) and len(picture.getcolors(2**20)) > 10
    assert Points(np.ones((1, 3))).plot("z", inches=(2, 2)).size == (300, 300)
    with pytest.raises(DataError, match="no points to draw"):
        draw_points(Points(np.zeros((0, 3))))


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_page_holds_the_cloud():
    points = labelled()
    text = page(points, names=["zero", "one"])
    data = data_of(text)
    steps = np.frombuffer(base64.b64decode(data["xyz"]), "<i2").reshape(-1, 3)
    found = steps / 32767 * data["half"] + data["middle"]
    assert np.abs(found - points.xyz).max() <= data["half"] / 32767 / 2 * 1.01
    assert [one["name"] for one in data["fields"]] == ["label", "rgb", "intensity", "z", "x", "y"]
    label, rgb = data["fields"][:2]
    assert [one[0] for one in label["classes"]] == ["one", "128", "ignored"]
    assert list(base64.b64decode(label["data"])) == (np.arange(60) % 3).tolist()
    assert base64.b64decode(rgb["data"]) == points.fields["rgb"].tobytes()
    assert data_of(page(points, "z"))["fields"][0]["name"] == "z"
    thin = data_of(page(points, max_points=10, seed=7))
    assert (thin["count"], thin["total"], thin["seed"]) == (10, 60, 7) and len(base64.b64decode(thin["xyz"])) == 60


def test_page_loads_nothing_else():
    text = page(labelled())
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|\bsrc=|href=|<link|@import|url\(|fetch\(|XMLHttpRequest|import\(|WebSocket", text)


class _Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.title = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "title":
            self.title += data


def test_names_cannot_break_out_of_a_page():
    def tags(text: str) -> list[str]:
        parser = _Elements()
        parser.feed(text)
        return parser.tags

    plain = labelled()
    evil = Points(plain.xyz, {"label": plain.fields["label"], EVIL: plain.xyz[:, 0].copy()}, name=EVIL)
    text = page(evil, names=["zero", EVIL], title=EVIL)
    assert tags(text) == tags(page(plain))
    assert "<script>alert" not in text and "<img" not in text and "onerror=alert(2)>" not in text
    data = data_of(text)
    assert data["title"] == EVIL.replace("\u2028", "") or "alert(1)" in data["title"]
    assert data["fields"][0]["classes"][0][0].startswith("</script>") and len(data["fields"]) == 5
    assert ".innerHTML" not in text and "document.write" not in text


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the script of the page")
def test_the_script_of_a_page_runs(tmp_path):
    """With a document and a WebGL that note what they are given: places, colours, legend and a class that is hidden."""
    text = page(labelled(), names=["zero", "one"])
    script = re.search(r"<script>\n(.*?)</script>", text, re.S)[1]
    harness = Path(__file__).with_name("fixtures").joinpath("page_harness.js").read_text()
    harness = harness.replace("/*DATA*/", json.dumps(data_of(text))).replace("/*SCRIPT*/", script)
    (tmp_path / "page.js").write_text(harness)
    done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    data, points = data_of(text), labelled()
    steps = np.frombuffer(base64.b64decode(data["xyz"]), "<i2").reshape(-1, 3)
    assert np.array_equal(np.array(told["places"]).reshape(-1, 4)[:, :3], steps)
    colours = np.array(told["colours"]).reshape(-1, 4)
    assert np.array_equal(colours[:, :3], colouring(points).rgb) and (colours[:, 3] == 255).all()
    shown = np.array(told["hidden"]).reshape(-1, 4)[:, 3]
    assert (shown[1::3] == 0).all() and (shown[0::3] == 255).all()
    assert np.array_equal(np.array(told["height"]).reshape(-1, 4)[:, :3], colouring(points, "z").rgb)
    assert told["rows"][0][2:] == ["one", "20"] and told["about"] == "60 points" and told["ready"] == "60"
    assert told["zoomed"] < told["before"] and told["count"] == 60 and told["draws"] >= 4
    turn, turned = (np.array(told[key]).reshape(3, 3) for key in ("turn", "turned"))
    assert not np.allclose(turn, turned)
    for matrix in (turn, turned):
        assert np.allclose(matrix @ matrix.T, np.eye(3)) and np.linalg.det(matrix) == pytest.approx(1)


def test_command_line(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "a.ply").write_bytes(point_files.ply(cloud()))

    def run(*arguments) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            main(["viz", "points", *map(str, arguments)])
        found = capsys.readouterr()
        return stop.value.code, found.out + found.err

    code, told = run(tmp_path / "a.ply", "-o", tmp_path / "a.html", "--by", "intensity", "--max-points", 20)
    assert code == 0 and data_of((tmp_path / "a.html").read_text())["count"] == 20
    code, told = run(tmp_path / "a.ply", "-o", tmp_path / "a.png", "--view", "30,60", "--title", "mine")
    assert code == 0 and (tmp_path / "a.png").stat().st_size > 1000
    for arguments, message in (
        (("absent.ply",), "absent.ply: no such file"),
        ((tmp_path / "a.ply", "-o", tmp_path / "a.gltf"), "write figures as .png"),
        ((tmp_path / "a.ply", "-o", tmp_path / "no" / "a.html"), "does not exist"),
        ((tmp_path / "a.ply", "--by", "colour", "-o", tmp_path / "b.html"), "cannot be coloured by 'colour'"),
        ((tmp_path / "a.ply", "--view", "below"), "a view is iso"),
    ):
        code, told = run(*arguments)
        assert code == 2 and message in told and told.count("\n") == 1
    with pytest.raises(ConfigError, match="written as .html"):
        save_page(zoo.read(tmp_path / "a.ply"), tmp_path / "a.txt")
    with pytest.raises(DataError, match="no points to show"):
        page(Points(np.zeros((0, 3))))
