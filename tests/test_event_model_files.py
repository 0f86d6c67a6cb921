"""Event models: configuration, saving and loading, and their input as a tree for compilers and export."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from event_models import CLASSIFIER, DETECTOR, MADE, output, random_tokens
from torch.utils._pytree import tree_leaves, tree_map

import zoo
from modalities.events import EventTokens
from zoo import registry

# ---- configuration and files


@pytest.mark.parametrize("config", [CLASSIFIER, DETECTOR], ids=["classifier", "detector"])
@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("model", "patch_size", 8, "model and data must agree"),
        ("model", "in_chans", 8, "model and data must agree"),
        ("model", "dim", 0, "dim"),
        ("model", "encoding", "nothing", "nothing"),
        ("model", "class_token_position", "middle", "class_token_position"),
        ("data", "width", 0, "width must be"),
        ("data", "width", 10**9, "width must be"),
        ("data", "height", True, "height must be"),
        ("data", "threshold", 40_000, "threshold must be"),
        ("data", "buckets", 2.5, "buckets must be"),
        ("data", "refractory_us", -1, "refractory_us must be"),
        ("data", "time_scale_us", 0, "time_scale_us must be"),
        ("data", "time_scale_us", float("nan"), "time_scale_us must be"),
        ("data", "time_scale_us", 10**400, "time_scale_us must be"),
        ("data", "time_reference", "middle", "time_reference must be"),
        ("data", "window_us", 0, "window_us must be"),
        ("data", "max_events", "many", "max_events must be"),
        ("data", "colour", 3, "unknown settings colour"),
    ],
)
def test_unusable_configurations(config, part, key, value, message):
    config = copy.deepcopy(config)
    config[part][key] = value
    with pytest.raises(zoo.ConfigError, match=message):
        registry.architecture(config).build(config)


@pytest.mark.parametrize("kind", ["classifier", "detector"])
@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (None, {"task": "segmentation"}, "not for task 'segmentation'"),
        ("model", {"dim": 1 << 19}, "dim must be"),
        ("model", {"depth": 10**6, "dim": 4096}, "parameters"),
        ("data", {"width": 65_536, "height": 65_536}, "more than the tokenizer takes"),
        ("data", {"threshold": 32_767, "width": 65_536, "height": 64}, "more than the tokenizer takes"),
    ],
)
def test_hostile_folders_are_refused_before_anything_is_allocated(kind, part, changes, message, tmp_path):
    zoo.save(MADE[kind](), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    (config if part is None else config[part]).update(changes)
    path.write_text(json.dumps(config))
    for pretrained in (True, False):
        with pytest.raises(zoo.ConfigError, match=message) as caught:
            zoo.load(f"local-dir:{tmp_path / 'model'}", pretrained=pretrained)
        assert "\n" not in str(caught.value)


def test_a_sensor_too_large_for_the_tokenizer_is_refused():
    config = copy.deepcopy(CLASSIFIER)
    config["data"] |= {"width": 65_536, "height": 65_536}
    with pytest.raises(zoo.ConfigError, match="use larger patches"):
        registry.architecture(config).build(config)


@pytest.mark.parametrize("missing", ["width", "height"])
def test_the_sensor_must_be_stated(missing):
    config = copy.deepcopy(CLASSIFIER)
    del config["data"][missing]
    with pytest.raises(zoo.ConfigError, match=f"missing {missing}"):
        registry.architecture(config).build(config)


@pytest.mark.parametrize("kind", MADE)
def test_saving_and_loading(kind, tmp_path):
    model = MADE[kind]()
    zoo.save(model, tmp_path / "model")
    again = zoo.load(f"local-dir:{tmp_path / 'model'}")
    assert torch.equal(output(again, random_tokens()), output(model, random_tokens()))
    assert again.config == model.config and again.data_config == model.data_config
    adapted = zoo.load(f"local-dir:{tmp_path / 'model'}", num_classes=7, input_size=(32, 40))
    assert adapted.num_classes == 7 and adapted.data_config.grid == (8, 10)
    assert (adapted.data_config.width, adapted.data_config.height) == (40, 32)
    with pytest.raises(zoo.ConfigError, match="3 buckets give 6 channels, not 8"):
        zoo.load(f"local-dir:{tmp_path / 'model'}", in_chans=8)


def test_context_extension_counts_from_the_window(tmp_path):
    assert registry.architecture(CLASSIFIER).trained_extent(CLASSIFIER) == (6.0, 4.0, 10.0)
    config = copy.deepcopy(CLASSIFIER)
    config["data"]["window_us"] = None
    with pytest.raises(zoo.ConfigError, match="no fixed length in time"):
        registry.architecture(config).trained_extent(config)


# ---- trees, compiling and export


def test_tokens_are_a_tree_of_tensors():
    tokens = random_tokens()
    leaves = tree_leaves((tokens, {"targets": torch.zeros(2)}))
    assert len(leaves) == 6 and all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    doubled = tree_map(lambda tensor: torch.cat([tensor, tensor]), tokens)
    assert isinstance(doubled, EventTokens) and len(doubled) == 6
    assert torch.equal(doubled.mask[3:], tokens.mask)
    names = tree_map(lambda tensor: tensor.dtype, tokens)  # Leaves may become anything.
    assert names.t_us == torch.int64 and names.mask == torch.bool


def test_pad_to_and_fixed_lengths():
    tokens = random_tokens()
    longer = tokens.pad_to(12)
    assert longer.patches.shape == (3, 12, 2, 3, 4, 4) and longer.lengths.tolist() == [7, 3, 0]
    assert torch.equal(longer.patches[:, :7], tokens.patches) and not longer.patches[:, 7:].any()
    assert tokens.pad_to(7) is tokens and tokens.pad_to(2) is tokens


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("classifier", 100_000),
        pytest.param("classifier", None, marks=pytest.mark.slow),
        pytest.param("detector", 100_000, marks=pytest.mark.slow),  # Its gradients are among the fast tests, below.
    ],
)
def test_compiled_whole(kind, window):
    model = MADE[kind](window_us=window, depth=1)
    run = model if kind == "classifier" else model.detect
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=False)
    for lengths in ((0, 0), (7, 3)):
        tokens = random_tokens(lengths)
        with torch.no_grad():
            torch.testing.assert_close(compiled(tokens), run(tokens), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", MADE)
def test_compiled_gradients(kind):
    model = MADE[kind](depth=1).train()

    def loss(run):
        model.zero_grad()
        sum(value.square().mean() for value in tree_leaves(run(random_tokens()))).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected, found = loss(model), loss(torch.compile(model, fullgraph=True, backend="aot_eager"))
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


class Exported(torch.nn.Module):
    """What export takes: tensors in, a tensor out."""

    def __init__(self, model, run):
        super().__init__()
        self.model, self.run = model, run

    def forward(self, tokens):
        return getattr(self.model, self.run)(tokens)


@pytest.mark.parametrize("kind", MADE)
def test_exported(kind):
    model = MADE[kind](depth=1)
    wrapped = Exported(model, "forward" if kind == "classifier" else "detect").eval()
    tokens = random_tokens()
    with torch.no_grad():
        program = torch.export.export(wrapped, (tokens,))
        other = random_tokens(seed=5)
        torch.testing.assert_close(program.module()(other), wrapped(other), rtol=0, atol=2e-5)


def test_what_is_for_image_models_says_so():
    from zoo import viz

    with pytest.raises(zoo.ConfigError, match="draws image models, not models of events"):
        viz.model_input(MADE["classifier"]())
