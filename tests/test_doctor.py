"""`zoo doctor`: no false alarm on any registered name, and every kind of mistake is found."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch

import zoo
from zoo import registry
from zoo.cli.main import main
from zoo.diagnosis import CATALOGUE, examination, rotary
from zoo.errors import ConfigError, UnknownModelError, WeightsError

# What is true of a registered name as it was trained, and no alarm.
NOTES = {"class-token-corner", "anisotropic", "slow-extent", "flat-order"}


def codes(report):
    return {(finding["code"], finding["severity"]) for finding in report["findings"]}


def examine(tmp_path, name, change=lambda config: None, **options):
    """The report on a registered configuration after a change to it."""
    config = registry.entry(name).new_config()
    change(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return zoo.doctor(str(path), **options)


def encoded(name, **options):
    def change(config):
        config["model"] |= {"encoding": name, "encoding_options": options}

    return change


@pytest.fixture(scope="module")
def registered():
    """Reports on all registered names; building each is the matter of other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "build_check", lambda config: None)
        return {name: zoo.doctor(name) for name in registry.list_models()}


def test_no_false_alarm_on_any_registered_name(registered):
    alarms = {
        name: report["findings"]
        for name, report in registered.items()
        if any(finding["severity"] != "note" for finding in report["findings"])
    }
    assert not alarms


def test_notes_on_registered_names_are_true(registered):
    noted = {(name, one["code"]) for name, report in registered.items() for one in report["findings"]}
    assert {code for _, code in noted} <= NOTES
    for name, code in noted:
        config = registry.entry(name).config
        if code == "class-token-corner":
            assert config["model"]["class_token_position"] == "origin"
        if code == "anisotropic":
            assert config["data"]["resize"] == "squash" and config["model"]["encoding"] in ("alibi", "pape-ri")
        if code == "flat-order":
            assert config["model"]["encoding"] == "rope-1d"
    released = {name for name in registered if registry.entry(name).config["model"].get("class_token_position")}
    assert released == {name for name, code in noted if code == "class-token-corner"}


def test_every_registered_name_has_axes_and_json(registered):
    for name, report in registered.items():
        assert report["name"] == name and report["trained"] == report["target"] and report["trained"]
        assert report["errors"] == 0
    json.dumps(registered, allow_nan=False)


@pytest.mark.parametrize("key", registry.ARCHITECTURES, ids=str)
def test_what_is_saved_has_no_unknown_keys(key, tmp_path):
    """A configuration with all that building fills in, of every architecture."""
    name = next(n for n in registry.list_models("*-n-*", modality=key[0]) if _architecture(n) == key[1])
    with torch.device("meta"):
        config = registry.architecture(registry.entry(name).config).build(registry.entry(name).new_config()).config
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert codes(zoo.doctor(f"local-dir:{tmp_path}")) <= {(note, "note") for note in NOTES}


def _architecture(name):
    return registry.entry(name).config["architecture"]


def test_findings_say_everything():
    report = zoo.doctor("rope-vit-t-imagenette", size=512)
    (finding,) = report["findings"]
    assert set(finding) == {"code", "severity", "title", "what", "why", "mend", "source"} and all(finding.values())
    assert (finding["code"], finding["severity"], report["errors"]) == ("unseen-angles", "error", 1)
    row = next(r for r in zoo.advice.measurements.comparison() if r["name"] == "rope" and r["extend"] == "none")
    assert f"{row['top1']['512']['mean']:.1f} at 4.6 times" in finding["what"]
    assert "--extend yarn" in finding["mend"]
    assert [axis["extent"] for axis in report["target"]] == [64, 64]


@pytest.mark.parametrize(
    "name, size, expected",
    [
        ("rope-vit-t-imagenette", 128, set()),
        ("rope-vit-t-imagenette", 224, {("unseen-angles", "warning")}),
        ("pope-vit-t-imagenette", 224, {("unseen-angles", "note")}),  # Three points were not lost.
        ("rope-mixed-vit-t-imagenette", 320, {("unseen-angles", "error")}),
        ("sincos-vit-t-imagenette", 224, {("unseen-angles", "warning")}),
        ("rope-normalised-vit-t-imagenette", 448, set()),
        ("rope-normalised-vit-t-imagenette", (112, 224), {("anisotropic", "warning")}),
        ("rope-1d-vit-t-imagenette", 160, {("flat-order", "warning")}),
        ("learned-vit-t-imagenette", 512, {("stretched-table", "warning")}),
        ("learned-vit-t-imagenette", 224, set()),
        ("table-vit-t-imagenette", 512, {("short-table", "warning")}),
        ("pape-vit-t-imagenette", 448, set()),
        ("pape-vit-t-imagenette", 1024, {("slow-extent", "note")}),
        ("pape-vit-t-imagenette", 113, {("size-refused", "error")}),
        ("pape-vit-b-in1k", 384, {("class-token-corner", "warning")}),
        ("pape-vit-det-b-coco", (480, 640), {("anisotropic", "warning")}),
        ("alibi-decoder-t-jsb", 16384, {("faded-slopes", "warning")}),
        ("learned-decoder-n-index", 65, {("short-table", "error")}),
        ("rope-decoder-t-jsb", 8192, {("unseen-angles", "warning")}),
        ("rope-fusion-n-simdrive", (130, 352), {("size-refused", "error")}),
    ],
)
def test_sizes(name, size, expected):
    assert codes(zoo.doctor(name, size=size)) == expected


@pytest.mark.parametrize(
    "name, data, expected",
    [
        ("pape-event-vit-n-nmnist1100", {"time_scale_us": 25_000.0}, {("unit-differs", "error")}),
        ("pape-event-vit-n-nmnist1100", {"time_reference": "end"},
         {("unit-differs", "error"), ("origin-differs", "note")}),
        ("none-event-vit-n-nmnist1100", {"time_scale_us": 25_000.0}, set()),
        ("pape-ptv3-n-als3", {"grid_size": 0.5}, {("unit-differs", "error")}),
        ("pape-ptv3-n-als3", {"normalise": "none"}, {("origin-differs", "warning")}),
        ("pape-point-vit-n-modelnet10", {"normalise": "none"}, {("unit-differs", "error")}),
        ("rope-fusion-n-simdrive", {"pillar_size": 0.9}, {("unit-differs", "error")}),
        ("pape-video-vit-n-imagenette-motion", {"frame_rate": 32.0}, set()),  # Its time is in seconds.
        ("pape-video-vit-n-imagenette-motion", {"frame_rate": None}, {("time-in-frames", "note")}),
        (
            "pape-video-vit-t-ucf101",
            {"sampling": "dense", "frame_step": 1, "frame_rate": 25.0},
            {("time-in-frames", "warning")},
        ),
        ("pape-video-vit-t-ucf101", {"sampling": "uniform"}, {("time-in-frames", "note")}),
        ("pape-vit-t-imagenette", {"resize": "squash"}, {("anisotropic", "warning")}),
        ("pape-vit-det-n-coco", {"resize": "letterbox"}, {("anisotropic", "warning")}),
    ],
)  # fmt: skip
def test_data(name, data, expected):
    assert codes(zoo.doctor(name, data=data)) == expected


@pytest.mark.parametrize(
    "name, change, expected",
    [
        ("rope-vit-t-imagenette", encoded("rope", base=10_000), ("still-channels", "warning")),
        ("rope-vit-t-imagenette", encoded("mrope"), ("still-channels", "warning")),
        ("rope-vit-t-imagenette", encoded("rope", extend="pi", factor=0.5), ("extension-refused", "error")),
        ("rope-vit-t-imagenette", encoded("none", extend="pi", factor=2), ("extension-refused", "error")),
        ("rope-vit-t-imagenette", encoded("rope", extend="yarn", factor=2, extent=7), ("extension-extent", "warning")),
        ("rope-vit-t-imagenette", encoded("rope", extend="pi", factor=3), ("extension-strong", "note")),
        ("rope-vit-t-imagenette", encoded("rope", bass=3), ("bad-config", "error")),
        ("rope-vit-t-imagenette", encoded("alibi", metric="index"), ("flat-order", "warning")),
        ("rope-vit-t-imagenette", lambda c: c["model"].update(head_dim=2), ("bad-config", "error")),
        ("rope-vit-t-imagenette", lambda c: c["model"].update(head_dim=6), ("idle-channels", "warning")),
        ("rope-vit-t-imagenette", lambda c: c.update(schema_version=9), ("bad-config", "error")),
        ("rope-vit-t-imagenette", lambda c: c["model"].update(encoding="rape"), ("bad-config", "error")),
        ("rope-video-vit-t-imagenette-motion", lambda c: c["model"].update(time_unit_s=0.001),
         ("aliased-frequencies", "warning")),
        ("rope-video-vit-t-imagenette-motion", lambda c: c["model"].update(time_unit_s="x"), ("bad-config", "error")),
        ("pape-video-vit-t-ucf101", lambda c: c["data"].update(sampling="dense"), ("time-in-frames", "warning")),
        ("pape-point-vit-n-modelnet10", lambda c: c["model"].update(spacing=20.0), ("flat-bias", "warning")),
        ("pape-point-vit-n-modelnet10", lambda c: (encoded("alibi")(c), c["model"].update(spacing=20.0)),
         ("flat-bias", "warning")),
        ("pape-point-vit-n-modelnet10", encoded("learned", grid=4), ("table-off-grid", "error")),
        ("rope-decoder-t-jsb", encoded("rope-normalised"), ("depends-on-length", "warning")),
        ("rope-decoder-t-jsb", encoded("learned"), ("depends-on-length", "warning")),
        ("rope-decoder-t-jsb", encoded("rope", extend="dynamic-ntk", extent=1024), ("depends-on-length", "warning")),
        ("table-vit-t-imagenette", encoded("table", extent=6), ("short-table", "warning")),
        ("pape-event-vit-n-nmnist1100", lambda c: c["data"].update(width="x"), ("bad-config", "error")),
    ],
)  # fmt: skip
def test_configurations(name, change, expected, tmp_path):
    assert expected in codes(examine(tmp_path, name, change))


def test_a_padded_size_is_a_note(tmp_path):
    padded = examine(tmp_path, "pape-vit-t-imagenette", lambda c: c["model"].update(size_policy="pad"), size=113)
    assert codes(padded) == {("padded-size", "note")}


def test_extensions_at_larger_sizes(tmp_path):
    name = "rope-vit-t-imagenette"
    fits = examine(tmp_path, name, encoded("rope", extend="yarn", factor=2, extent=14), size=224)
    short = examine(tmp_path, name, encoded("rope", extend="pi", factor=2), size=448)
    assert codes(fits) == set()
    assert ("extension-short", "warning") in codes(short)
    hurts = examine(tmp_path, "alibi-vit-t-imagenette", encoded("alibi", extend="rescale", factor=2), size=224)
    assert codes(hurts) == {("extension-hurts", "note")}


def test_unknown_keys_are_named_with_the_nearest(tmp_path):
    def change(config):
        config["model"]["encodng"] = config["data"]["resise"] = config["foo"] = "x"

    report = examine(tmp_path, "pape-vit-t-imagenette", change)
    assert codes(report) == {("unknown-key", "warning")} and report["target"]
    said = {finding["what"].split("'")[1]: finding["mend"] for finding in report["findings"]}
    assert "'encoding'" in said["encodng"] and "'resize'" in said["resise"] and "schema_version" in said["foo"]


def test_keys_that_the_data_refuse(tmp_path):
    report = examine(tmp_path, "pape-event-vit-n-nmnist1100", lambda c: c["data"].update(windows=3))
    assert codes(report) == {("unknown-key", "warning"), ("bad-config", "error")} and report["target"] is None


def test_a_config_of_another_model_as_data(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(registry.entry("pape-event-vit-n-dvsgesture").new_config()))
    with pytest.raises(WeightsError, match="cannot read"):
        zoo.doctor("pape-event-vit-n-nmnist1100", data=str(tmp_path / "no.json"))
    report = zoo.doctor("pape-event-vit-n-nmnist1100", data=str(path))
    assert report["errors"]  # Other patches and buckets than the network takes.


def test_what_does_not_exist_is_an_error():
    with pytest.raises(UnknownModelError, match="did you mean"):
        zoo.doctor("pape-vit-t-imagenete")
    with pytest.raises(ConfigError, match="no recipe"):
        zoo.doctor("nothing.yaml")
    with pytest.raises(ConfigError, match="data has no key 'colour'"):
        zoo.doctor("pape-vit-t-imagenette", data={"colour": 1})
    with pytest.raises(ConfigError, match="out of range"):
        zoo.doctor("pape-vit-t-imagenette", size=0)


def test_frequencies_are_those_of_the_formula():
    shape, extents = (256, 4, 64), (14.0, 14.0)
    found = rotary.frequencies("rope", {"base": 100.0}, shape, extents)
    ladder = [100 ** (-k / 16) for k in range(16)]
    assert found == [pytest.approx(ladder, rel=1e-6)] * 2
    halved = rotary.frequencies("rope", {"base": 100.0, "extend": "pi", "factor": 2}, shape, extents)
    assert halved[0] == pytest.approx([speed / 2 for speed in ladder], rel=1e-6)
    (line,) = rotary.frequencies("rope-1d", {}, shape, extents)
    assert line == pytest.approx([10_000 ** (-k / 32) for k in range(32)], rel=1e-6)
    assert len(rotary.frequencies("pope", {}, shape, extents)[0]) == 32
    normalised = rotary.frequencies("rope-normalised", {}, shape, extents)[1]
    assert normalised[0] == pytest.approx(2 * math.pi * 2 / 14, rel=1e-4)
    assert rotary.frequencies("alibi", {}, shape, extents) is None


def test_every_encoding_is_known_to_the_checks(tmp_path):
    """An encoding that is new must say whether it has frequencies."""
    for name in zoo.encodings():
        kind = zoo.encodings.facts.FACTS[name].kind
        rotating = kind in ("fold", "group") and not name.startswith("pape")
        assert rotating == (name in rotary.ROTARY or name in rotary.LEARNED)
        if name == "prope" or kind == "token":
            continue
        report = examine(tmp_path, "rope-vit-t-imagenette", encoded(name), size=224)
        assert report["encoding"] == name


def test_catalogue_has_what_is_found():
    for title, why, source in CATALOGUE.values():
        assert title and why.endswith(".") and source


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_command(capsys, tmp_path):
    code, out, err = run(capsys, "pape-vit-t-imagenette")
    assert (code, err) == (0, "") and out.endswith("nothing looks wrong\n")
    code, out, _ = run(capsys, "rope-vit-t-imagenette", "--size", "512")
    assert code == 1 and "\nerror: frequencies that reach angles" in out and out.endswith("\n1 error\n")
    code, out, _ = run(capsys, "rope-vit-t-imagenette", "--size", "224", "--json")
    assert code == 0 and json.loads(out) == zoo.doctor("rope-vit-t-imagenette", size=224)
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"frame_rate": 16.0, "frames": 32}))
    name = "pape-video-vit-n-imagenette-motion"
    code, out, _ = run(capsys, name, "--data-config", str(path), "--set", "frame_rate=8", "--json")
    assert json.loads(out)["target"][0]["extent"] == 32 and code == 0
    for arguments, words in (
        (["nosuch"], "no model is called 'nosuch'"),
        (["pape-vit-t-imagenette", "--size", "112,224"], "--size takes one size"),
        (["pape-vit-t-imagenette", "--size", "1x"], "--size takes whole numbers"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "") and words in err


def test_command_looks_at_coordinates(capsys, tmp_path):
    path = tmp_path / "two.npy"
    picture = zoo.coordinates.grid(2, 2).values[0].numpy()
    np.save(path, np.concatenate([picture, picture]))
    code, out, _ = run(capsys, "pape-vit-t-imagenette", "--coordinates", str(path), "--json")
    assert code == 1 and [one["code"] for one in json.loads(out)["findings"]] == ["collision"]
    np.save(path, picture.astype(int))
    code, _, err = run(capsys, "pape-vit-t-imagenette", "--coordinates", str(path))
    assert code == 2 and "expected finite floating-point numbers" in err


def test_reports_do_not_change_what_is_registered():
    before = copy.deepcopy(registry.entry("rope-vit-t-imagenette").config)
    zoo.doctor("rope-vit-t-imagenette", size=224)
    assert registry.entry("rope-vit-t-imagenette").config == before
