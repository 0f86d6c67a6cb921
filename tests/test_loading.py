"""Loading and saving: reports, adaptation, names without weights, embedded weights, writing folders."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file
from saved_models import load, logits, make_model, randomise

import zoo
from zoo import card_facts, cards, checkpoints, registry
from zoo.loading import adapt_channels


@pytest.fixture
def model(tiny_config):
    return make_model(tiny_config)


@pytest.fixture
def folder(model, tmp_path):
    return zoo.save(model, tmp_path / "saved")


# ---- reports and adaptation


def test_reload_is_bitwise_equal_and_reported(model, folder):
    again = load(folder)
    assert torch.equal(logits(again), logits(model))
    report = again.load_report
    assert (report.adapted, report.missing, report.unexpected) == ((), (), ())
    assert (report.dtype, report.device, report.kernel, report.source) == ("float32", "cpu", "auto", str(folder))
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_loading_leaves_the_random_state_alone(folder):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load(folder)
    assert torch.equal(torch.rand(3), expected)


def test_other_number_of_classes(model, folder):
    adapted = load(folder, num_classes=7)
    assert adapted.load_report.adapted == (
        "head: 3 -> 7 classes, re-initialised",
        "labels: dropped, since they name other classes",
    )
    assert adapted.config["model"]["num_classes"] == 7
    assert adapted.config["labels"] is None
    assert torch.equal(adapted.head.bias, torch.full((7,), 1 / 7).log())
    assert not adapted.head.weight.any()
    body = {k: v for k, v in model.state_dict().items() if not k.startswith("head")}
    assert all(torch.equal(adapted.state_dict()[key], value) for key, value in body.items())
    same = load(folder, num_classes=3)
    assert same.load_report.adapted == ()
    assert same.config["labels"] == ["circle", "square", "triangle"]


def test_no_classes_leave_features(folder):
    assert logits(load(folder, num_classes=0)).shape == (2, 32)


@pytest.mark.parametrize("bad", [-1, 2.5, True, "7", 10**12])
def test_bad_number_of_classes(folder, bad):
    with pytest.raises(zoo.ConfigError, match="num_classes"):
        load(folder, num_classes=bad)


@pytest.mark.parametrize(("old", "new"), [(3, 1), (3, 4), (3, 2), (3, 6), (20, 2), (1, 3), (5, 3)])
@pytest.mark.parametrize("kernel", [(4, 4), (2, 4, 4)])
def test_channels_keep_the_response_to_constant_inputs(old, new, kernel):
    weight = torch.randn(6, old, *kernel, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    adapted = adapt_channels(weight, new)
    assert adapted.shape == (6, new, *kernel)
    assert adapted.dtype == weight.dtype
    torch.testing.assert_close(adapted.sum(1), weight.sum(1), rtol=1e-12, atol=1e-12)
    if new % old == 0:
        torch.testing.assert_close(adapted[:, :old], weight * old / new)
    if new == 1:
        torch.testing.assert_close(adapted[:, 0], weight.sum(1))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_number_of_channels(model, folder, channels):
    adapted = load(folder, in_chans=channels)
    assert adapted.load_report.adapted == (f"input channels: 3 -> {channels}, stem, mean and std adapted",)
    assert adapted.data_config.input_size == (channels, 32, 32)
    assert len(adapted.data_config.mean) == len(adapted.config["data"]["std"]) == channels
    constant = torch.full((1, 1, 32, 32), 0.3)
    with torch.no_grad():
        found, expected = (m(constant.expand(-1, c, -1, -1)) for m, c in ((adapted, channels), (model, 3)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    again = load(zoo.save(adapted, folder.parent / "again"))
    assert torch.equal(logits(again, channels), logits(adapted, channels))


def test_the_rule_is_the_same_for_a_registered_name():
    made = zoo.load("rope-vit-n-in1k", pretrained=False, num_classes=5, in_chans=1, input_size=(64, 32))
    assert made.load_report.adapted == (
        "input channels: 3 -> 1, stem, mean and std adapted",
        "input size: 224 x 224 -> 64 x 32",
        "head: 1000 -> 5 classes, re-initialised",
    )
    assert made.data_config.input_size == (1, 64, 32)
    assert made.data_config.mean == pytest.approx((0.449,))
    assert made(torch.rand(1, 1, 64, 32)).shape == (1, 5)


def test_options_are_applied_and_reported(folder):
    made = load(folder, drop_path=0.25, input_size=64)
    assert made.load_report.adapted == ("drop_path: 0.0 -> 0.25", "input size: 32 x 32 -> 64 x 64")
    assert made.config["model"]["drop_path"] == 0.25
    assert made.config["data"]["input_size"] == [3, 64, 64]


@pytest.mark.parametrize("options", [{"encoding_options": {"parabolas": 5}}, {"dim": 48}, {"encoding": "rope"}])
def test_options_that_change_shapes_need_no_weights(folder, options):
    with pytest.raises(zoo.WeightsError, match="pretrained=False"):
        load(folder, **options)
    assert load(folder, pretrained=False, **options).load_report.adapted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, "unknown option 'dropout'; known: input_size"),
        ({"drop_path": 2.0}, "drop_path"),
        ({"drop_path": "x"}, "drop_path"),
        ({"dim": -1}, "model.dim"),
        ({"depth": 10**9}, "model.depth"),
        ({"input_size": -5}, "input_size"),
        ({"in_chans": 0}, "in_chans"),
        ({"in_chans": "3"}, "in_chans"),
        ({"encoding_options": {"parabolas": -4}}, "parabolas"),
        ({"encoding_options": {"unheard": 4}}, "unheard"),
        ({"encoding_options": 5}, "encoding_options must map names to values"),
        ({"encoding_options": {1: 2}}, "encoding_options must map names to values"),
        ({"patch_size": torch.ones(2)}, "patch_size must be a plain value, got a Tensor"),
        ({"input_size": "112"}, r"\(height, width\), not '112'"),
        ({"encoding": "papier"}, "papier"),
        ({"device": "toaster"}, "toaster"),
        ({"device": "cuda:77"}, "cuda:77"),
        ({"dtype": "int8"}, "int8"),
        ({"dtype": torch.int32}, "int32"),
    ],
)
@pytest.mark.parametrize("pretrained", [True, False])
def test_bad_options(folder, options, message, pretrained):
    with pytest.raises(zoo.ConfigError, match=message):
        load(folder, pretrained=pretrained, **options)


def test_dtype_of_file_and_model(model, tmp_path):
    half = zoo.save(model, tmp_path / "half", dtype="float16")
    assert {value.dtype for value in load_file(half / "model.safetensors").values()} == {torch.float16}
    made = load(half)
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}
    torch.testing.assert_close(logits(made), logits(model), rtol=2e-2, atol=2e-3)
    brain = load(half, dtype=torch.bfloat16, num_classes=4)
    assert {parameter.dtype for parameter in brain.parameters()} == {torch.bfloat16}
    assert brain.load_report.dtype == "bfloat16"
    assert torch.equal(logits(load(zoo.save(brain, tmp_path / "brain"), dtype="bfloat16")), logits(brain))


# ---- names without weights


def test_release_says_where_and_how(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load("pape-vit-b-in1k")
    for part in (
        "data.dtu.dk",
        "32076279",
        "zoo convert FOLDER OUT --install",
        "pretrained=False",
        str(tmp_path),
        "ZOO_CACHE",
    ):
        assert part in str(caught.value)


def test_untrained_names_say_how_to_train(monkeypatch):
    with pytest.raises(
        zoo.WeightsError, match="zoo train imagenette-100 --model rope-vit-t-imagenette.*pretrained=False"
    ):
        zoo.load("rope-vit-t-imagenette")
    with pytest.raises(zoo.WeightsError, match="pretrained=False"):
        zoo.load("rope-vit-b-in1k")
    with pytest.raises(zoo.ConfigError, match="hf-hub"):
        zoo.load("rope-vit-b-in1k", revision="v1", pretrained=False)


def test_missing_folder_and_hint():
    for path in ("does/not/exist", "", "a\0b", __file__, "x" * 5000):
        with pytest.raises(zoo.WeightsError, match="no folder"):
            zoo.load(f"local-dir:{path}")


# ---- embedded weights are verified


@pytest.fixture
def embedded(tmp_path, monkeypatch):
    """A package folder with a (random) embedded model, a record that states its sha256, and the fixed name."""
    name = "pape-vit-t-imagenette"
    record = cards.read_record(name)
    monkeypatch.setattr(cards, "card_folder", lambda asked: tmp_path / asked)
    made = zoo.load(name, pretrained=False)
    randomise(made)
    place = zoo.save(made, tmp_path / name, dtype="float16")
    record = card_facts.add_weights(record, place / "model.safetensors")
    cards.write_record(name, record)
    return name, place


def test_embedded_weights_load_and_state_their_sha256(embedded):
    name, place = embedded
    made = zoo.load(name)
    assert made.load_report.sha256 == checkpoints.file_sha256(place / "model.safetensors")
    assert made.config == registry.entry(name).config


def test_changed_embedded_weights_are_refused(embedded):
    name, place = embedded
    path = place / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(zoo.WeightsError, match="sha256"):
        zoo.load(name)


def test_embedded_weights_without_a_stated_sha256_are_refused(embedded):
    name, _ = embedded
    record = cards.read_record(name)
    record["weights"]["sha256"] = None
    cards.write_record(name, record)
    with pytest.raises(zoo.WeightsError, match="states no sha256"):
        zoo.load(name)


def test_absent_embedded_weights_say_so(embedded):
    name, place = embedded
    (place / "model.safetensors").unlink()
    with pytest.raises(zoo.WeightsError, match="not in this installation.*pretrained=False"):
        zoo.load(name)


def test_the_embedded_checkpoint_of_this_package():
    name = "pape-vit-t-imagenette"
    if not (cards.card_folder(name) / "model.safetensors").exists():
        pytest.skip("the embedded weights are not in this checkout")
    made = zoo.load(name)
    assert made.config == registry.entry(name).config
    assert made.load_report.sha256 == cards.card(name).record["weights"]["sha256"]


# ---- saving


def test_edited_card_is_kept_and_an_unedited_one_renewed(model, folder):
    model.reset_classifier(5)
    zoo.save(model, folder)
    assert "5 classes" in (folder / "README.md").read_text()
    (folder / "README.md").write_text("my own words")
    model.reset_classifier(6)
    zoo.save(model, folder)
    assert (folder / "README.md").read_text() == "my own words"
    assert load(folder).num_classes == 6


@pytest.mark.parametrize("foreign", [{"config.json": "{}"}, {"model.safetensors": "x"}, {"config.json": "not json"}])
def test_foreign_folders_are_not_overwritten(model, tmp_path, foreign):
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(zoo.ConfigError, match="did not write"):
        zoo.save(model, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == foreign


def test_unrelated_files_stay(model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    zoo.save(model, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    load(tmp_path)


def test_saving_into_the_current_folder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zoo.save(model, ".")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    assert torch.equal(logits(load(".")), logits(model))


def test_a_file_is_no_folder(model, tmp_path):
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(zoo.ConfigError):
            zoo.save(model, target)
    assert (tmp_path / "file").read_text() == "x"


def test_failing_to_write_leaves_nothing_behind(model, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(zoo.ConfigError, match="No space left"):
        zoo.save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_refuses_is_not_called_damaged_weights(folder, monkeypatch):
    with pytest.raises(zoo.ConfigError, match="pretrained=False"):
        load(folder, device="meta")
    monkeypatch.setattr(torch.Tensor, "to", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(zoo.WeightsError, match="cannot be put on cpu: out of memory"):
        load(folder)


def test_unusable_names_of_folders(model, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for name in ("a\0b", "x" * 300, "loop/below"):
        with pytest.raises(zoo.ConfigError, match="cannot write"):
            zoo.save(model, tmp_path / name)


def test_a_disk_that_fills_up_leaves_nothing_behind(model, tmp_path, file_size_limit):
    with file_size_limit(10_000), pytest.raises(zoo.ConfigError, match="cannot write"):
        zoo.save(model, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_unusable_models_are_not_saved(model, tmp_path):
    with pytest.raises(zoo.ConfigError, match="not a model of pape-zoo"):
        zoo.save(torch.nn.Linear(2, 2), tmp_path / "x")
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(zoo.WeightsError, match=r"head\.bias"):
        zoo.save(model, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_config_of_the_model_is_not_shared_with_the_caller(folder):
    options = {"parabolas": 4}
    before = copy.deepcopy(options)
    made = load(folder, encoding_options=options)
    made.config["model"]["encoding_options"]["parabolas"] = 99
    assert options == before
