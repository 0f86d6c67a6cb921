"""Decoders: what they are made of, configurations, saving, causality, gradients."""

from __future__ import annotations

import pytest
import torch
from sequence_models import AXES, NAMES, SIZES, VOCABULARY, decoder, ids_of, module_names

import zoo
from modalities.sequence.cache import DecoderCache
from modalities.sequence.config import DecoderConfig
from modalities.sequence.data_config import SequenceDataConfig
from modalities.sequence.presets import DATA, SHAKESPEARE_CHARACTERS, count_parameters
from modalities.sequence.presets import config as preset
from zoo import ConfigError, DataError, coordinates
from zoo.encodings import create
from zoo.registry import architecture, entry


def toy(**changes):
    made = preset("toy", encoding="rope", sizes=SIZES, vocabulary=VOCABULARY, data={"length": 32})
    made["model"] |= changes
    return made


def build(**changes):
    return architecture(toy()).build(toy(**changes)).eval()


@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_change_nothing_before_them(name):
    axes = AXES[name][0]
    model, ids = decoder(name, axes), ids_of(8)
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % VOCABULARY
    with torch.no_grad():
        first, second = model(ids), model(other)
    torch.testing.assert_close(first[:, :5], second[:, :5], rtol=0, atol=1e-5)
    assert (first[:, 5:] - second[:, 5:]).abs().max() > 1e-3


def test_what_it_is_made_of():
    model = build()
    assert {"RMSNorm", "GELU", "CoordinateAttention"} <= module_names(model)
    assert "LayerNorm" not in module_names(model)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert all(block.attn.causal for block in model.encoder.blocks)
    fresh = build(dim=256, num_heads=16, depth=8)
    with torch.no_grad():
        spread = [fresh.encoder.blocks[0].mlp.fc1.weight.std(), fresh.encoder.blocks[0].attn.proj.weight.std()]
        assert 3.5 < float(spread[0] / spread[1]) < 4.5  # sqrt(2 x 8)
        assert fresh(ids_of(8)).std() < 1.0


def test_sizes_of_papers():
    assert entry("rope-decoder-s-index-paper").config["model"] | {"dim": 512, "depth": 8, "num_heads": 8} == dict(
        entry("rope-decoder-s-index-paper").config["model"]
    )
    base = {"dim": 768, "depth": 12, "num_heads": 12, "head_dim": 64, "mlp_dim": 3072}
    tied = preset("x", encoding="rope", sizes=base, vocabulary=50257, data={"length": 1024}, tie_embeddings=True)
    assert round(count_parameters(tied["model"]) / 1e6) == 124
    assert {len(SHAKESPEARE_CHARACTERS), DATA["jsb"][0], DATA["hg38"][0]} == {65, 90, 5}


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_save_and_load(tied, tmp_path):
    model = build(tie_embeddings=tied)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(toy(tie_embeddings=tied)["model"])
    assert ("head.weight" in model.state_dict()) is not tied
    zoo.save(model, tmp_path / "model")
    again, ids = zoo.load(f"local-dir:{tmp_path / 'model'}"), ids_of(5)
    assert torch.equal(again(ids), model(ids)) and again.config == model.config
    assert "model.generate(ids" in (tmp_path / "model" / "README.md").read_text()
    with torch.no_grad():
        features = model.forward_features(ids)
        weight = model.embed.weight if tied else model.head.weight
        torch.testing.assert_close(model(ids), features @ weight.T)
        assert model.forward_head(features, pre_logits=True) is features
    other = zoo.load(f"local-dir:{tmp_path / 'model'}", num_classes=7)
    assert other(ids % 7).shape == (2, 5, 7) and other.data_config.tokenizer is None
    assert other.config["model"]["num_classes"] == 7


@pytest.mark.parametrize("encoding", ["pape", "pope", "alibi", "learned"])
def test_every_parameter_learns(encoding):
    model = decoder(encoding).train()
    model.encoder.grad_checkpointing = encoding == "pape"
    ids = ids_of(9)
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    assert "embed.weight" in model.no_weight_decay()


def test_features_after_blocks():
    model, ids = decoder("rope"), ids_of(6)
    with torch.no_grad():
        final, (first, last) = model.forward_intermediates(ids, output="grid")
        assert first.shape == (2, 32, 1, 6)
        torch.testing.assert_close(model.encoder.norm(last.squeeze(2).mT), model.forward_features(ids))
        torch.testing.assert_close(final, model.forward_features(ids))


@pytest.mark.parametrize("name", ["pape", "rope", "pope", "alibi"])
@torch.no_grad()
def test_sixteen_bit(name):
    model, ids = decoder(name), ids_of(10)
    exact = model(ids)
    narrow, cache = model.bfloat16(), DecoderCache()
    found = torch.cat([narrow(ids[:, i : i + 1], None, cache) for i in range(10)], dim=1)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coord_dim": 4}, "coord_dim must be 1, 2 or 3|coord_dim must be a whole number from 1 to 3"),
        ({"coord_dim": 0}, "coord_dim"),
        ({"num_classes": 0}, "a decoder needs num_classes from 1"),
        ({"in_chans": 3}, "in_chans must be a whole number from 1 to 1"),
        ({"tie_embeddings": 1}, "tie_embeddings must be true or false"),
        ({"encoding": "lookhere", "encoding_options": {}}, "needs 2 coordinate axes"),
        ({"encoding": "nothing"}, "unknown encoding"),
        ({"dim": 10**9}, "dim must be"),
        ({"encoding_options": {"grid": 3}}, "no option 'grid'"),
    ],
)
def test_configurations_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(**changes)
    if "coord_dim" in changes:
        with pytest.raises(ConfigError, match=message):
            count_parameters(toy(**changes)["model"])


def test_data_settings():
    data = SequenceDataConfig.from_dict({"length": 9})
    assert data.input_size == (1, 9) and data.with_size(4).length == 4 and data.with_channels(1) is data
    assert SequenceDataConfig.from_dict(data.to_dict()) == data
    for values in ({"length": 0}, {"length": True}, {"tokenizer": {}}, {"tokenizer": "bytes"}, {"size": 3}, []):
        with pytest.raises(ConfigError, match="data: "):
            SequenceDataConfig.from_dict(values)
    with pytest.raises(ConfigError, match="a token is one number"):
        data.with_channels(3)
    assert DecoderConfig.from_dict(toy()["model"]).coord_dim == 1


def test_context_extension_knows_the_trained_length():
    model = zoo.load(
        "rope-decoder-n-shakespeare", pretrained=False, encoding_options={"extend": "yarn", "factor": 4}, depth=1
    )
    assert model.config["model"]["encoding_options"]["extent"] == [256.0]
    assert model(ids_of(4)).shape == (2, 4, 65)


def test_tables_that_do_not_stretch():
    made, _ = create("learned", dim=8, num_heads=1, head_dim=8, coord_dim=1, options={"grid": 6, "stretch": False})
    assert made is not None
    at = made.encode(coordinates.text(3, start=2.0))
    torch.testing.assert_close(at, made.table.T[None, 2:5])
    for coords in (coordinates.text(7), coordinates.text(3, start=4.0), coordinates.text(2, start=-1.0)):
        with pytest.raises(DataError, match="a learned table of 6 positions has no others"):
            made.encode(coords)
    with pytest.raises(ConfigError, match="'stretch' must be one of True, False"):
        create("learned", dim=8, num_heads=1, head_dim=8, coord_dim=1, options={"stretch": 1})
    model = decoder("learned")
    with pytest.raises(DataError, match="32 positions"):
        model(ids_of(33))


def test_joined_coordinates_keep_what_is_known():
    parts = [coordinates.text(3), coordinates.text(4, start=3.0)]
    joined = coordinates.concatenate(parts)
    assert joined.bounds == ((0.0, 6.0),) and joined.integral
    assert not coordinates.concatenate([parts[0], coordinates.text(4, start=3.5)]).integral
    assert not coordinates.concatenate([parts[0], coordinates.text(4, start=999.0)]).integral
    unknown = coordinates.Coordinates(torch.zeros(1, 2, 1))
    assert coordinates.concatenate([parts[0], unknown]).bounds is None


def test_card():
    text = zoo.card("rope-decoder-t-jsb").text
    assert "causal transformer decoder for four-voice chorales" in text and "with RoPE" in text
    assert "token ids, in training 1,024 at a time" in text and "vision" not in text.split("---")[1]
