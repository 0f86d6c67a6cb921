"""Figures: what is read, what is drawn, what the bias maps hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("matplotlib")

from zoo import curves, viz
from zoo.errors import ConfigError, DataError, UnknownModelError

SIZES = (112, 224, 512)


def write_results(path: Path, name: str, top1: tuple[float, ...]) -> Path:
    rows = [{"size": size, "top1": value, "top5": 99.0} for size, value in zip(SIZES, top1, strict=True)]
    path.write_text(json.dumps({"name": name, "dataset": "imagenette", "results": rows}))
    return path


def lines(figure: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in figure.axes[0].get_lines() if not line.get_label().startswith("_")}


def test_curves_of_result_files(tmp_path: Path) -> None:
    first = write_results(tmp_path / "a.json", "pape-vit-t-imagenette", (90.0, 92.0, 85.0))
    second = write_results(tmp_path / "b.json", "rope-vit-t-imagenette", (89.0, 70.0, 35.0))
    found = curves.read_curves([first, str(second)])
    assert [curve.name for curve in found] == ["pape-vit-t-imagenette", "rope-vit-t-imagenette"]
    assert found[1].points == {112: 89.0, 224: 70.0, 512: 35.0}


def test_curves_of_one_model_from_two_files_are_joined_and_sorted(tmp_path: Path) -> None:
    late, early = tmp_path / "late.json", tmp_path / "early.json"
    late.write_text(json.dumps({"name": "m", "results": [{"size": 512, "top1": 80}]}))
    early.write_text(json.dumps({"name": "m", "results": [{"size": 112, "top1": 90}]}))
    (curve,) = curves.read_curves([late, early])
    assert list(curve.points.items()) == [(112, 90.0), (512, 80.0)]


def test_curves_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hub_cards

    (tmp_path / "measured").mkdir()
    record = {
        "name": "measured",
        "evaluation": [
            {"size": 224, "metric": "top1", "value": 91.0},
            {"size": 112, "metric": "top1", "value": 90.0},
            {"size": 112, "metric": "top5", "value": 99.0},
        ],
        "comparison": [{"name": "other", "sizes": {112: 80.0, 224: 60.0}}],
    }
    (tmp_path / "measured" / "record.yaml").write_text(yaml.safe_dump(record))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "record.yaml").write_text("name: empty\n")
    monkeypatch.setattr(hub_cards, "__path__", [str(tmp_path)])
    measured, other = curves.read_curves(["measured"])
    assert measured == curves.Curve("measured", {112: 90.0, 224: 91.0})
    assert other == curves.Curve("other", {112: 80.0, 224: 60.0})
    with pytest.raises(DataError, match="no measured"):
        curves.read_curves(["empty"])


@pytest.mark.parametrize("name", ["no-such-model", "../secrets", ""])
def test_unknown_source_is_named(name: str) -> None:
    with pytest.raises(UnknownModelError, match="neither a result file nor a model"):
        curves.read_curves([name])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "not a readable JSON file"),
        ("[1, 2]", "not a result file"),
        ('{"results": []}', "not a result file"),
        ('{"results": [{"size": 0, "top1": 50}]}', "positive number of pixels"),
        ('{"results": [{"size": 1e300, "top1": 50}]}', "positive number of pixels"),
        ('{"results": [{"size": Infinity, "top1": 50}]}', "not a readable JSON file"),
        ("[" * 100_000, "not a readable JSON file"),
        ('{"results": [{"size": 112, "top1": 250}]}', "from 0 to 100"),
        ('{"results": [{"size": 112}]}', "from 0 to 100"),
    ],
)
def test_bad_result_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        curves.read_curves([path])
    assert "bad.json" in str(caught.value)


def test_extrapolation_figure_holds_the_data_and_says_what_it_is(tmp_path: Path) -> None:
    models = [
        curves.Curve("pape-vit-t-imagenette", dict(zip(SIZES, (90.0, 92.0, 85.0), strict=True))),
        curves.Curve("rope-vit-t-imagenette", dict(zip(SIZES, (89.0, 70.0, 35.0), strict=True))),
    ]
    figure = viz.extrapolation(models, trained_size=112)
    axes = figure.axes[0]
    drawn = lines(figure)
    assert list(drawn) == ["PaPE", "RoPE"]
    assert list(drawn["RoPE"].get_xdata()) == list(SIZES)
    assert list(drawn["RoPE"].get_ydata()) == [89.0, 70.0, 35.0]
    assert drawn["PaPE"].get_color() != drawn["RoPE"].get_color()
    assert drawn["PaPE"].get_marker() != drawn["RoPE"].get_marker()
    assert "pixels" in axes.get_xlabel() and "%" in axes.get_ylabel()
    assert axes.get_ylim()[0] <= 35.0 and axes.get_ylim()[1] == 100
    assert "trained at 112 px" in [text.get_text() for text in axes.texts]
    assert figure.legends[0].get_title().get_text() == "vit-t-imagenette"
    path = viz.save(figure, tmp_path / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]


def test_names_that_share_no_end_are_shown_whole() -> None:
    models = [curves.Curve("a-in1k", {224: 1.0}), curves.Curve("b-coco", {224: 2.0})]
    assert list(lines(viz.extrapolation(models))) == ["a-in1k", "b-coco"]


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(DataError, match="no curve"):
        viz.extrapolation([])


def test_trained_size_of_registered_models() -> None:
    def named(*names: str) -> list[curves.Curve]:
        return [curves.Curve(name, {112: 1.0}) for name in names]

    assert curves.common_trained_size(named("pape-vit-t-imagenette", "rope-vit-t-imagenette")) == 112
    assert curves.common_trained_size(named("pape-vit-t-imagenette", "pape-vit-t-in1k")) is None
    assert curves.common_trained_size(named("pape-vit-t-imagenette", "my-own")) is None


def test_save_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    figure = viz.extrapolation([curves.Curve("a", {224: 1.0})])
    with pytest.raises(ConfigError, match="does not exist"):
        viz.save(figure, tmp_path / "absent" / "a.png")
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
        viz.save(figure, tmp_path / "a.exe")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        viz.save(figure, tmp_path / "taken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]


def test_dollars_in_names_are_no_formulas(tmp_path: Path) -> None:
    name = r"run$\frac$1"
    figure = viz.extrapolation([curves.Curve(name, {224: 1.0}), curves.Curve("other", {224: 2.0})], title=name)
    assert viz.save(figure, tmp_path / "a.png").is_file()


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from zoo.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[viz\]'"):
        viz.extrapolation([curves.Curve("a", {224: 1.0})])


def build_tiny(config: dict[str, Any], encoding: str, options: dict[str, Any]) -> Any:
    from modalities.image.model import build

    torch.manual_seed(0)
    config["model"] |= {"encoding": encoding, "encoding_options": options}
    return build(config).eval()


def test_bias_of_alibi_is_a_cone_around_the_query(tiny_config: dict[str, Any]) -> None:
    model = build_tiny(tiny_config, "alibi", {})
    values = viz.position_bias(model, torch.zeros(1, 3, 32, 48), query=(1, 4))
    assert values.shape == (2, 2, 4, 6)
    rows, columns = np.mgrid[:4, :6]
    distance = np.hypot(rows - 1, columns - 4)
    slopes = -values[:, :, 1, 3]  # One patch from the query.
    assert (slopes > 0).all()
    np.testing.assert_allclose(values, -slopes[..., None, None] * distance, atol=1e-5)


def test_bias_of_pape_follows_the_picture_and_peaks_at_the_middle_by_default(tiny_config: dict[str, Any]) -> None:
    model = build_tiny(tiny_config, "pape", {"parabolas": 4})
    one, other = torch.randn(2, 1, 3, 64, 64)
    first, second = viz.position_bias(model, one), viz.position_bias(model, other)
    assert first.shape == (2, 2, 8, 8)
    np.testing.assert_allclose(first, viz.position_bias(model, one, query=(4, 4)))
    assert np.abs(first - second).max() > 1e-6
    # By hand, first layer and head: s (t.D - D^T M D) from the features that enter attention.
    attention = model.encoder.blocks[0].attn
    caught: list[torch.Tensor] = []
    hook = attention.register_forward_pre_hook(lambda module, arguments: caught.append(arguments[0]))
    with torch.no_grad():
        model(one)
    hook.remove()
    encoding, query = attention.encoding, caught[0][0, 1 + 4 * 8 + 4]
    a = torch.nn.functional.softplus(encoding.a.weight @ query).view(2, -1)[0]
    b = (encoding.b.weight @ query).view(2, -1)[0]
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    projected = torch.stack([4 - columns, 4 - rows], dim=-1) @ encoding.position[0].T
    expected = (projected @ b - projected.square() @ a) * attention.scale
    np.testing.assert_allclose(first[0, 0], expected.detach().numpy(), atol=1e-4)


def test_bias_needs_an_encoding_with_a_bias_and_a_query_inside(tiny_config: dict[str, Any]) -> None:
    model = build_tiny(tiny_config, "rope", {})
    images = torch.zeros(1, 3, 32, 32)
    with pytest.raises(ConfigError, match="'rope' adds no position bias"):
        viz.position_bias(model, images)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ConfigError, match="4 rows and 4 columns"):
        viz.position_bias(model, images, query=(0, 4))


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "-1,2", "a,b"])
def test_bad_queries_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ROW,COLUMN"):
        viz.parse_query(text)
    assert viz.parse_query("3, 4") == (3, 4)


def test_bias_figure_has_a_panel_per_layer_and_head() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 4, 5)) - 5
    figure = viz.bias(values, query=(1, 2), title="m")
    *panels, bar = figure.axes
    assert len(panels) == 6
    shown = panels[3].get_images()[0].get_array()  # Second layer, second head.
    np.testing.assert_allclose(shown, values[1, 1] - values[1, 1].max())
    assert [list(line) for line in panels[0].get_lines()[0].get_data()] == [[2], [1]]
    assert "logits" in bar.get_ylabel()
    assert figure.get_supxlabel() and figure.get_supylabel()


def test_commands_write_figures_and_print_their_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zoo.cli.main import main

    results = write_results(tmp_path / "a.json", "pape-vit-t-imagenette", (90.0, 92.0, 85.0))
    picture = Path(__file__).parent.parent / "samples" / "church.jpg"
    bias = ["viz", "bias", "pape-vit-n-in1k", "--untrained", "--size", "64", "--image", str(picture), "--query", "0,3"]
    for name, arguments in {"curve.svg": ["viz", "extrapolation", str(results)], "bias.png": bias}.items():
        out = tmp_path / name
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--out", str(out)])
        assert not stop.value.code
        assert capsys.readouterr().out.strip() == str(out)
        assert out.stat().st_size > 1000
    with pytest.raises(SystemExit) as stop:
        main(["viz", "bias", "none-vit-n-in1k", "--untrained", "--out", str(tmp_path / "none.png")])
    assert stop.value.code == 2 and "adds no position bias" in capsys.readouterr().err
    assert not (tmp_path / "none.png").exists()
