"""Context extension as an option of encodings, in whole models, in evaluation and at the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from extension_toys import DIM, HEADS, block
from training_toys import TINY, toy_picture, write_parquet

import zoo
from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.cli.main import main
from zoo.encodings.extendable import Extendable, extend, extended
from zoo.encodings.extension import NTK, DynamicNTK, PositionInterpolation, Rescale, YaRN, parse_extension
from zoo.encodings.gated import gated
from zoo.evaluate import evaluate, extension_at
from zoo.transformer import Encoder


def test_encoder_extends_blocks_and_token_encoding():
    encoder = Encoder(DIM, 3, HEADS, 2, encoding="sincos+pape")
    pi = PositionInterpolation(2)
    encoder.extend(pi)
    assert [block.attn.encoding.extension for block in encoder.blocks] == [pi] * 3
    assert encoder.token_encoding.extension == pi
    with pytest.raises(ConfigError, match="'rescale' does not apply to encoding 'sincos'"):
        encoder.extend(Rescale(2))
    assert encoder.token_encoding.extension == pi and encoder.blocks[0].attn.encoding.extension == pi
    encoder.extend(None)
    assert all(module.extension is None for module in encoder.modules() if isinstance(module, Extendable))
    learned = Encoder(DIM, 1, HEADS, 2, encoding="learned+rope")
    learned.extend(pi)  # The table needs nothing.
    assert learned.blocks[0].attn.encoding.extension == pi
    with pytest.raises(ConfigError, match="'pi' does not apply to encoding 'none'"):
        Encoder(DIM, 1, HEADS, 2, encoding="none").extend(pi)
    with pytest.raises(ConfigError, match="Extension or None|extension or None"):
        encoder.extend("pi")
    with pytest.raises(ConfigError, match="no position encoding"):
        extend(torch.nn.Linear(2, 2), pi)


@pytest.mark.parametrize("name", ["pape", "alibi", "rope"])
def test_a_gate_passes_the_extension_on(name):
    wrapped = gated(block(name, extend="pi", factor=2).encoding, HEADS)
    assert wrapped.extension == PositionInterpolation(2)
    with extended(torch.nn.ModuleList([wrapped]), PositionInterpolation(3)):
        assert wrapped.inner.extension == PositionInterpolation(3)
    assert wrapped.inner.extension == PositionInterpolation(2)
    with pytest.raises(ConfigError, match="does not apply"):
        wrapped.extend(DynamicNTK(2, 14))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extend": "yran", "factor": 2}, "unknown extension 'yran', did you mean 'yarn'"),
        ({"extend": 3, "factor": 2}, "unknown extension 3"),
        ({"extend": "pi"}, "needs 'factor'"),
        ({"extend": "yarn", "factor": 2}, "needs 'extent'"),
        ({"extend": "pi", "factor": 0.99}, "'factor' must be a number from 1"),
        ({"extend": "pi", "factor": float("nan")}, "'factor' must be"),
        ({"extend": "pi", "factor": float("inf")}, "'factor' must be"),
        ({"extend": "pi", "factor": True}, "'factor' must be"),
        ({"extend": "pi", "factor": "2"}, "'factor' must be"),
        ({"extend": "pi", "factor": [2, None]}, "'factor' must be"),
        ({"extend": "pi", "factor": [2, 2, 2]}, "'factor' must be one number or 2"),
        ({"extend": "dynamic-ntk", "factor": 2, "extent": [4]}, "'extent' must be one number or 2"),
        ({"extend": "pi", "factor": 2, "extent": 0}, "'extent' must be"),
        ({"extend": "pi", "factor": 2, "beta_fast": 3}, "'pi' has no option 'beta_fast'"),
        ({"extend": "yarn", "factor": 2, "extent": 14, "beta_fast": 1, "beta_slow": 1}, "must exceed"),
        ({"extend": "yarn", "factor": 2, "extent": 14, "beta_slow": -1}, "'beta_slow' must be a positive"),
        ({"factor": 2}, "'factor' without 'extend'"),
        ({"extend": "pi", "factor": 10**400}, "'factor' must be"),
        ({"extend": ["pi"], "factor": 2}, "unknown extension"),
        ({"extend": "rescale", "factor": 2}, "'rescale' does not apply to encoding 'rope'; possible: pi, ntk"),
        ({"extent": 3, "extend": "pi", "factor": 2, "bass": 3}, "no option 'bass'"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        block("rope", **options)


def test_options_of_an_encoding_come_first():
    attention = block("table", extent=5, extend="pi", factor=2)  # `extent` is its own.
    assert attention.encoding.extents == (5, 5) and attention.encoding.extension == PositionInterpolation(2)
    both = block("sincos+rope", sincos={"extend": "pi", "factor": 2}, rope={"extend": "ntk", "factor": 2, "base": 50.0})
    assert both.token_encoding.extension == PositionInterpolation(2) and both.encoding.extension == NTK(2)
    assert block("rope", extend=None).encoding.extension is None
    assert parse_extension({"extend": "dynamic-ntk", "extent": 14}) == DynamicNTK(1.0, 14.0)
    for name in ("table", "cpb", "liere"):  # An extent would not help.
        with pytest.raises(ConfigError, match=f"'yarn' does not apply to encoding '{name}'; possible: pi"):
            block(name, extend="yarn", factor=2)
        with pytest.raises(ConfigError, match=f"'yarn' does not apply to encoding '{name}'; possible: pi"):
            tiny(name, encoding_options={"extend": "yarn", "factor": 2})


@pytest.mark.parametrize(
    ("encoding", "options", "message"),
    [
        ("sincos+rope", {"extend": "pi", "factor": 2}, "go under the name of each part, not 'extend'"),
        ("sincos+rope", {"pape": {}}, "go under the name of each part, not 'pape'"),
        ("sincos+rope", {"rope": 3}, "encoding_options of 'rope' must map names to values, got 3"),
        ("sincos+rope", {"sincos": [["extend", "pi"]]}, "encoding_options of 'sincos' must map names to values"),
        ("sincos+rope", {"rope": {"dim": 5}}, "'rope' has no option 'dim'"),
        ("rope", {"causal": True}, "'rope' has no option 'causal'"),
        ("rope", {"qkv_bias": False}, "'rope' has no option 'qkv_bias'"),
        ("rope", {"self": 1}, "'rope' has no option 'self'"),
        ("rope", {"extend": "yarn", "factor": 2, "beta_slow": 1e400}, "JSON|beta_slow"),
    ],
)
def test_a_configuration_from_a_stranger_fails_with_one_line(tmp_path: Path, encoding, options, message):
    config = tiny(encoding).config
    config = {**config, "model": {**config["model"], "encoding_options": options}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message) as caught:
        zoo.load(f"local-dir:{tmp_path}", pretrained=False)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_options_of_combined_encodings_replace_each_other_part_by_part(tmp_path: Path):
    options = {"sincos": {"base": 77.0}, "rope": {"base": 50.0}}
    zoo.save(tiny("sincos+rope", encoding_options=options), tmp_path / "saved")
    again = zoo.load(f"local-dir:{tmp_path / 'saved'}", encoding_options={"rope": {"extend": "pi", "factor": 2}})
    assert again.encoder.token_encoding.base == 77 and again.encoder.token_encoding.extension is None
    encoding = again.encoder.blocks[0].attn.encoding
    assert encoding.base == 50 and encoding.extension == PositionInterpolation(2)
    alone = tiny("sincos+none", encoding_options={"sincos": {"extend": "pi", "factor": 2}})
    assert alone.encoder.token_encoding.extension == PositionInterpolation(2)
    for value in (torch.tensor([2.0, 2.0]), np.array([2.0, 2.0])):
        with pytest.raises(ConfigError, match="encoding_options must be a plain value"):
            zoo.load(f"local-dir:{tmp_path / 'saved'}", encoding_options={"rope": {"base": value}})


def test_one_pair_is_no_ladder():
    attention = CoordinateAttention(8, 2, 2, "rope", extend="ntk", factor=2)
    with pytest.raises(ConfigError, match="two pairs or more"):
        attention(torch.randn(1, 35, 8), coordinates.grid(5, 7))


def tiny(encoding="rope", **options):
    torch.manual_seed(0)
    return zoo.load(
        "pape-vit-t-imagenette", pretrained=False, encoding=encoding, input_size=(16, 32), **TINY, **options
    )


def test_load_fills_in_the_trained_extent_and_saves_it(tmp_path: Path):
    torch.manual_seed(0)
    plain = tiny()
    torch.nn.init.normal_(plain.head.weight)
    zoo.save(plain, tmp_path / "plain")
    options = {"extend": "yarn", "factor": 2}
    model = zoo.load(f"local-dir:{tmp_path / 'plain'}", encoding_options=options, input_size=64)
    expected = YaRN(2.0, (4.0, 2.0))  # Of 16 x 32 pixels, not of the new size; columns first.
    assert model.encoder.blocks[0].attn.encoding.extension == expected
    assert any("yarn" in line for line in model.load_report.adapted)
    images = torch.randn(2, 3, 64, 64)
    assert not torch.allclose(model(images), plain(images))
    plain.encoder.extend(expected)
    assert torch.equal(model(images), plain(images))
    zoo.save(model, tmp_path / "extended")
    saved = json.loads((tmp_path / "extended" / "config.json").read_text())["model"]["encoding_options"]
    assert saved == {"extend": "yarn", "factor": 2, "extent": [4.0, 2.0]}
    again = zoo.load(f"local-dir:{tmp_path / 'extended'}")
    assert torch.equal(again(images), model(images))
    for options, expected in (({"extend": None}, None), ({"extend": "dynamic-ntk"}, DynamicNTK(1.0, (4.0, 2.0)))):
        other = zoo.load(f"local-dir:{tmp_path / 'extended'}", encoding_options=options)
        assert other.encoder.blocks[0].attn.encoding.extension == expected
    both = {"sincos": {"extend": "pi", "factor": 2}, "rope": {"extend": "dynamic-ntk"}}
    combined = zoo.load(
        "pape-vit-t-imagenette", pretrained=False, encoding="sincos+rope", encoding_options=both, **TINY
    )
    assert combined.encoder.blocks[0].attn.encoding.extension == DynamicNTK(1.0, (14.0, 14.0))
    released = zoo.load("pape-vit-b-in1k", pretrained=False, device="meta", depth=1)
    assert zoo.registry.architecture(released.config).trained_extent(released.config) == (15.0, 15.0)


def test_evaluation_extends_above_the_training_size():
    model = tiny()
    torch.nn.init.normal_(model.head.weight)
    pictures = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 64), dtype=np.uint8)
    labels = np.arange(40) % 10
    sizes = [(8, 16), (16, 32), (32, 32), (48, 64)]
    results = evaluate(model, pictures, labels, sizes, extend="pi")
    assert [result.factor for result in results] == [(1, 1), (1, 1), (1, 2), (2, 3)]
    assert model.encoder.blocks[0].attn.encoding.extension is None
    fixed = evaluate(model, pictures, labels, sizes, extend="yarn", factor=4.0)
    assert [result.factor for result in fixed] == [(1, 1), (1, 1), (1, 4), (4, 4)]
    assert extension_at(model, (32, 32), "yarn") == YaRN((1.0, 2.0), (4.0, 2.0))
    model.encoder.extend(extension_at(model, (48, 64), "pi"))
    (by_hand,) = evaluate(model, pictures, labels, sizes[3:])
    assert (by_hand.top1, by_hand.top5) == (results[3].top1, results[3].top5) and by_hand.extend is None
    assert set(by_hand.to_dict()) == {"size", "top1", "top5", "images_per_s"}
    with pytest.raises(ConfigError, match="give extend too"):
        evaluate(model, pictures, labels, sizes, factor=2.0)
    with pytest.raises(ConfigError, match="'factor' must be"):
        evaluate(model, pictures, labels, [(16, 32)], extend="pi", factor=0.5)  # Also where it would not be used.
    for size in (0, (32,), (16, 32, 64), "64", 1.5, True, None):
        for method in (None, "pi"):
            with pytest.raises(ConfigError, match="a size is a side in pixels"):
                evaluate(model, pictures, labels, [size], extend=method)
    with pytest.raises(ConfigError, match="a list of at least one size"):
        evaluate(model, pictures, labels, 64)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    for encoding in ("rope", "learned"):
        zoo.save(tiny(encoding), tmp_path / encoding)
    write_parquet(tmp_path / "ten" / "validation.parquet", [(toy_picture(i % 2, i), i) for i in range(10)])

    def run(name, *arguments):
        with pytest.raises(SystemExit) as stop:
            main(
                ["eval", f"local-dir:{tmp_path / name}", "--data", str(tmp_path / "ten"), "--device", "cpu", *arguments]
            )
        return stop.value.code, capsys.readouterr()

    code, printed = run("rope", "--sizes", "8,64", "--extend", "ntk", "--json", "--out", str(tmp_path / "out.json"))
    assert not code
    found = json.loads(printed.out)["results"]
    assert [(row["size"], row["extend"], row["factor"]) for row in found] == [(8, "ntk", [1, 1]), (64, "ntk", [2, 4])]
    assert json.loads((tmp_path / "out.json").read_text())["results"] == found
    code, printed = run("rope", "--sizes", "8,64", "--extend", "yarn", "--factor", "3")
    assert not code and "yarn 1" in printed.out and "yarn 3" in printed.out
    code, printed = run("rope", "--sizes", "8,64")
    assert not code and "extension" not in printed.out
    for arguments, message in (
        (["rope", "--factor", "2"], "give --extend too"),
        (["rope", "--extend", "pi", "--factor", "much"], "auto or a number"),
        (["rope", "--extend", "alibi"], "unknown extension"),
        (["rope", "--extend", "pi", "--factor", "nan"], "'factor' must be a number from 1"),
        (["learned", "--extend", "pi"], "does not apply to encoding 'learned'"),
    ):
        code, printed = run(*arguments)
        assert code and message in printed.err


def test_the_automatic_factor_of_dynamic_ntk_is_one():
    model = zoo.load("rope-vit-n-in1k", pretrained=False)
    assert extension_at(model, 448, "dynamic-ntk") == DynamicNTK(1.0, (14.0, 14.0))
    assert extension_at(model, 448, "ntk").factor == (2.0, 2.0)
    assert extension_at(model, 448, "dynamic-ntk", 3.0).factor == (3.0, 3.0)
