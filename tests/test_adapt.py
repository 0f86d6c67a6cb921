"""`zoo.adapt`: what a timm model computes before and after, at any size, with every encoding; and what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import timm
import torch
import torch.nn.functional as F
from adapted_models import EVA, FAMILIES, SMALL, VIT, fill, images, open_gates, small
from torch import nn

import zoo
from zoo import ConfigError, DataError, coordinates
from zoo.attention import CoordinateAttention
from zoo.encodings import ATTENTION

EXACT = ["alibi", "comrope-ld", "cpb", "golden-rope", "kerple", "liere", "none", "pape", "pape-ri", "rope",
         "rope-mixed", "spiral-rope", "string", "table"]  # fmt: skip
OTHER_GRIDS = [(3, 6), (2, 8), (8, 2), (5, 5), (2, 2)]


def at_any_size(name: str, model: nn.Module, **options: object) -> nn.Module:
    """The same network as timm runs it at any size."""
    twin = timm.create_model(name, **(SMALL | FAMILIES[name] | options), dynamic_img_size=True).eval()
    twin.load_state_dict(model.state_dict())
    return twin


# Outputs at the start


@pytest.mark.parametrize("name", FAMILIES)
def test_the_function_is_the_same_at_the_start_at_every_size(name):
    model = small(name)
    adapted = zoo.adapt(model, "pape")
    assert adapted.adapt_report.exact and adapted.adapt_report.difference < 1e-5
    own = model(images(model))
    torch.testing.assert_close(adapted(images(model)), own, atol=1e-5, rtol=0)
    twin = at_any_size(name, model)
    for grid in OTHER_GRIDS:
        x = images(model, *grid)
        torch.testing.assert_close(adapted(x), twin(x), atol=1e-5, rtol=0)
    # And the encoding is there: with its gates open, outputs move.
    open_gates(adapted)
    assert (adapted(images(model)) - own).abs().max() > 1e-3 * own.abs().max()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (VIT, {"qk_norm": True, "scale_attn_norm": True, "scale_mlp_norm": True}),
        (VIT, {"qkv_bias": False, "proj_bias": False, "init_values": None}),
        (VIT, {"class_token": False, "global_pool": "avg", "reg_tokens": 0}),
        (VIT, {"block_fn": timm.models.vision_transformer.ResPostBlock, "init_values": 0.1}),
        (EVA, {"qkv_fused": True, "scale_attn_inner": True}),
        (EVA, {"qkv_fused": True, "qkv_bias": False, "num_reg_tokens": 2}),
        (EVA, {"use_post_norm": True, "scale_mlp": False}),
        (EVA, {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 2}),
    ],
)
def test_kinds_of_attention(name, options):
    try:
        model = small(name, **options)
    except TypeError:
        pytest.skip("this timm does not have it yet")
    adapted = zoo.adapt(model, "pape")
    x = images(model)
    expected = model(x)
    torch.testing.assert_close(adapted(x), expected, atol=1e-5, rtol=0)
    open_gates(adapted)
    assert (adapted(x) - expected).abs().max() > 1e-4


def test_gated_attention():
    model = small()
    for block in model.blocks:
        try:
            block.attn = timm.layers.Attention(32, num_heads=4, qkv_bias=True, gated=True)
        except TypeError:
            pytest.skip("this timm does not have it yet")
    x = images(model)
    torch.testing.assert_close(zoo.adapt(model, "pape")(x), model(x), atol=1e-5, rtol=0)


def test_patches_of_a_convolutional_stem():
    name, size = "vit_tiny_r_s16_p8_224", {"img_size": 128}
    model = small(name, **size)
    twin = timm.create_model(name, **(SMALL | size), dynamic_img_size=True).eval()
    twin.load_state_dict(model.state_dict())
    adapted = zoo.adapt(model)
    for grid in ((4, 4), (5, 3)):
        x = images(model, *grid, batch=1)
        assert x.shape[2] == 32 * grid[0]
        torch.testing.assert_close(adapted(x), twin(x), atol=1e-5, rtol=0)
    with pytest.raises(DataError, match="multiple of 32"):
        adapted(torch.zeros(1, 3, 128, 144))


@pytest.mark.parametrize("name", ["vit_so400m_patch14_siglip_384", EVA])
def test_an_own_size_that_is_no_multiple_of_the_patch(name):
    model = small(name, img_size=(62, 57))  # 384 = 27 x 14 + 6: timm leaves out what no patch covers.
    adapted = zoo.adapt(model)
    x = torch.randn(2, 3, 62, 57)
    torch.testing.assert_close(adapted(x), model(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(adapted(x[..., :56, :56]), model(x), atol=1e-5, rtol=0)
    ours, theirs = (m.forward_intermediates(x, intermediates_only=True) for m in (adapted, model))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    with pytest.raises(DataError, match="multiple of 14 and width of 14 .* got 57 x 62"):
        adapted(torch.zeros(1, 3, 57, 62))
    dynamic = small(name, img_size=(62, 57), dynamic_img_size=True)  # At its own size timm refuses to run it.
    assert zoo.adapt(dynamic).adapt_report.difference < 1e-5


@pytest.mark.parametrize("name", [VIT, EVA])
@pytest.mark.parametrize("encoding", EXACT)
def test_every_encoding_that_can_starts_without_an_effect(name, encoding):
    model = small(name)
    adapted = zoo.adapt(model, encoding)
    for grid in ((4, 4), (3, 5)):
        x = images(model, *grid)
        expected = at_any_size(name, model)(x)
        torch.testing.assert_close(adapted(x), expected, atol=1e-5, rtol=0)
    assert adapted.adapt_report.exact and adapted.adapt_report.encoding == encoding
    if encoding not in ("none", "table"):
        open_gates(adapted, 3.0)
        assert (adapted(x) - expected).abs().max() > 1e-4


@pytest.mark.parametrize("encoding", sorted(set(ATTENTION) - set(EXACT)))
def test_other_encodings_need_leave_to_change_outputs(encoding):
    model = small()
    if encoding.startswith("pape-"):  # Variants of PaPE take its gate.
        assert zoo.adapt(model, encoding).adapt_report.difference < 1e-5
        return
    with pytest.raises(ConfigError, match=r"cannot start without an effect.*exact=False"):
        zoo.adapt(model, encoding)
    report = zoo.adapt(model, encoding, exact=False).adapt_report
    assert not report.exact and report.difference > 1e-4
    assert f"outputs moved by {report.difference:.2g}" in str(report)


@pytest.mark.parametrize("grid", [(4, 4), (4, 1), (1, 5)])
def test_tables_are_resized_from_and_to_any_grid(grid):
    # 2 x 8 patches have as many entries as 4 x 4: the old table is still another one.
    name = "vit_tiny_patch16_224"
    model = small(name, img_size=(16, 64))
    state = dict(model.state_dict())
    prefix, table = state["pos_embed"][:, :1], state["pos_embed"][:, 1:].reshape(1, 2, 8, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(table.double().contiguous(), grid, mode="bicubic", antialias=True).float()
    table = torch.cat([prefix, resized.flatten(2).transpose(1, 2)], dim=1)
    fixed = timm.create_model(name, **(SMALL | {"patch_size": 8, "img_size": (8 * grid[0], 8 * grid[1])})).eval()
    fixed.load_state_dict(state | {"pos_embed": table})
    adapted = zoo.adapt(model, "pape")
    x = images(adapted, *grid)
    torch.testing.assert_close(adapted(x), fixed(x), atol=1e-5, rtol=0)
    if grid == (4, 4):
        fixed.load_state_dict(state)
        assert (adapted(x) - fixed(x)).abs().max() > 1e-2


@pytest.mark.parametrize("name", [VIT, EVA, "vit_small_patch16_dinov3"])
def test_transposed_pictures_have_transposed_features(name):
    # Without positions of its own and with weights that know no direction, only coordinates tell rows from columns.
    model = zoo.adapt(small(name), "alibi", exact=False, keep_positions=False)
    with torch.no_grad():
        weight = model.patch_embed.proj.weight
        weight.copy_((weight + weight.transpose(2, 3)) / 2)
    prefix, x = model.num_prefix_tokens, images(model, 3, 7)
    features = model.forward_features(x)[:, prefix:].unflatten(1, (3, 7))
    turned = model.forward_features(x.transpose(2, 3))[:, prefix:].unflatten(1, (7, 3))
    torch.testing.assert_close(turned.transpose(1, 2), features, atol=1e-4, rtol=0)


# What the encodings get


@pytest.mark.parametrize("encoding", sorted(ATTENTION))
def test_attention_is_ours_with_the_weights_of_theirs(encoding):
    model = zoo.adapt(small(), encoding, exact=False)
    seen: dict[str, torch.Tensor] = {}

    def keep(_, inputs, output):
        seen.update(x=inputs[0], out=output)

    layer = model.blocks[1].attn
    layer.register_forward_hook(keep)
    model(images(model, 3, 5))
    extent = {"extent": [3, 3]} if encoding in ("table", "cpb") else {}
    ours = CoordinateAttention(32, 4, 2, encoding, **extent).eval()
    ours.encoding.place(1, 2)
    ours.load_state_dict({key: value for key, value in layer.state_dict().items() if key in ours.state_dict()})
    expected = ours(seen["x"], coordinates.grid(3, 5).with_prefix(5))
    torch.testing.assert_close(seen["out"], expected, atol=1e-6, rtol=0)
    shifted = ours(seen["x"], coordinates.grid(5, 3).with_prefix(5))
    assert encoding in ("none", "table", "rope-1d") or (shifted - expected).abs().max() > 1e-5


def test_our_rope_in_place_of_that_of_rope_vit_is_the_same_function():
    name = "vit_small_patch16_rope_224"
    model = small(name)
    adapted = zoo.adapt(model, "rope", exact=False, keep_positions=False, base=100.0, layout="interleaved")
    assert adapted.rope is None and adapted.adapt_report.replaced == ("rotary encoding RotaryEmbeddingCat",)
    assert adapted.adapt_report.difference < 1e-5
    x = images(model, 3, 6)
    torch.testing.assert_close(adapted(x), at_any_size(name, model)(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [VIT, EVA, "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_positions_are_taken_out_and_prefix_tokens_keep_their_share(name):
    model = small(name)
    with torch.no_grad():  # A table that is the same for all patches is no position.
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        model.pos_embed[:, prefix:] = 0
    adapted = zoo.adapt(model, "none", exact=False, keep_positions=False)
    assert adapted.pos_embed is None and "pos_embed" not in adapted.state_dict()
    assert getattr(adapted, "rope", None) is None and adapted.adapt_report.kept == ()
    if name != EVA:  # Whose rotary encoding is gone too.
        torch.testing.assert_close(adapted(images(model)), model(images(model)), atol=1e-5, rtol=0)
    x = images(model, 3, 3)
    swapped = x.unflatten(-1, (3, -1))[:, :, :, [1, 0, 2]].flatten(-2)
    features, moved = adapted.forward_features(x), adapted.forward_features(swapped)
    count = adapted.num_prefix_tokens
    torch.testing.assert_close(features[:, :count], moved[:, :count], atol=1e-5, rtol=0)


def test_tables_have_the_extent_of_the_model():
    model = small("vit_tiny_patch16_224", img_size=(24, 56))
    assert zoo.adapt(model, "table").encodings["blocks.0.attn"].extents == (6, 2)
    assert zoo.adapt(model, "table", extent=4).encodings["blocks.0.attn"].extents == (4, 4)


def test_options_reach_the_encoding_and_layers_are_placed():
    assert zoo.adapt(small(), "pape", parabolas=3).encodings["blocks.0.attn"].inner.parabolas == 3
    slopes = [e.layer_slope for e in zoo.adapt(small(), "lookhere", exact=False).encodings.values()]
    assert slopes == [1.5, 0.5]


def test_report():
    model = small()
    adapted = zoo.adapt(model, "pape", parabolas=4)
    report = adapted.adapt_report
    assert (report.model, report.encoding, report.layers, report.replaced) == ("VisionTransformer", "pape", 2, ())
    assert report.kept == ("table pos_embed of 4 x 4 patches",)
    count = sum(p.numel() for p in adapted.parameters()) - sum(p.numel() for p in model.parameters())
    assert report.parameters == count == 2 * (4 + 4 * 4 * 2 + 2 * 4 * 4 * 32)
    assert "unchanged at the start" in str(report) and f"{count:,} parameters" in str(report)
    with pytest.raises(FrozenInstanceError):
        report.exact = False
    assert zoo.adapt(model, "none").adapt_report.parameters == 0


@pytest.mark.parametrize("encoding", ["pape", "rope-mixed", "cpb"])
def test_the_default_device_does_not_matter(encoding):
    model = small(EVA)
    with torch.device("meta"):
        adapted = zoo.adapt(model, encoding)
    assert not any(p.is_meta for p in adapted.parameters()) and adapted.adapt_report.difference < 1e-5
    open_gates(adapted)
    assert (adapted(images(model)) - model(images(model))).abs().max() > 1e-4


@pytest.mark.parametrize("name", [VIT, EVA])
def test_models_without_data(name):
    model = small(name).to("meta")
    adapted = zoo.adapt(model, "pape")
    assert adapted.adapt_report.difference is None and "unchanged" in adapted.adapt_report.changes
    assert all(p.is_meta for p in adapted.parameters())
    report = zoo.adapt(model, "pope", exact=False).adapt_report
    assert "not measured" in str(report)


def test_the_given_model_stays_as_it_is():
    model = small().train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    adapted = zoo.adapt(model, "pape", exact=False, keep_positions=False)
    assert type(model) is timm.models.vision_transformer.VisionTransformer and not hasattr(model, "adapt_report")
    assert adapted.training and all(module.training for module in adapted.modules()) and model.training
    fill(adapted, seed=9)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert model(images(model)).shape == (2, 5)


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_tiny_patch16_224", {"attn_drop_rate": 0.1}, "attn_drop_rate=0"),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.1}, "patch_drop_rate=0"),
        (EVA, {"patch_drop_rate": 0.1}, "patch_drop_rate=0"),
        ("vit_relpos_small_patch16_224", {"img_size": 64}, "got VisionTransformerRelPos"),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 32, "depths": (1, 1, 1, 1), "depth": None}, "SwinTransformer"),
        ("resnet10t", {}, "got ResNet"),
    ],
)
def test_models_that_do_not_fit_are_named(name, options, message):
    keep = SMALL if "patch" in name else {}
    settings = {key: value for key, value in (keep | FAMILIES.get(name, {}) | options).items() if value is not None}
    if "swin" in name:
        settings.pop("num_heads")
    with pytest.raises(ConfigError, match=message):
        zoo.adapt(timm.create_model(name, **settings))


def test_blocks_and_attention_that_do_not_fit_are_named():
    parallel = timm.create_model(
        "vit_tiny_patch16_224",
        **(SMALL | FAMILIES["vit_tiny_patch16_224"]),
        block_fn=timm.models.vision_transformer.ParallelScalingBlock,
    )
    with pytest.raises(ConfigError, match="ParallelScalingBlock"):
        zoo.adapt(parallel)

    class Other(timm.layers.Attention):
        pass

    model = small()
    model.blocks[1].attn = Other(32, num_heads=4)
    with pytest.raises(ConfigError, match="attention of class Other"):
        zoo.adapt(model)


def test_misuse_is_explained(tiny_config):
    model = small()
    with pytest.raises(ConfigError, match=r"VisionTransformer.*got str"):
        zoo.adapt("vit_tiny_patch16_224")
    ours = zoo.load("pape-vit-t-imagenette", pretrained=False, dim=32, depth=1, num_heads=2, head_dim=16, mlp_dim=64)
    with pytest.raises(ConfigError, match=r"zoo.load\(name, encoding="):
        zoo.adapt(ours)
    with pytest.raises(ConfigError, match="has been adapted to 'pape'"):
        zoo.adapt(zoo.adapt(model))
    with pytest.raises(ConfigError, match="'sincos' is added to features"):
        zoo.adapt(model, "sincos+pape")
    with pytest.raises(ConfigError, match="did you mean 'pape'"):
        zoo.adapt(model, "papee")
    with pytest.raises(ConfigError, match="no option 'parabola'"):
        zoo.adapt(model, parabola=3)
    with pytest.raises(ConfigError, match=r"pos_embed of 4 x 4 patches the model computes something else.*exact=False"):
        zoo.adapt(model, keep_positions=False)
    assert zoo.adapt(small("vit_tiny_patch16_224", pos_embed="none"), keep_positions=False).adapt_report.exact
    with pytest.raises(ConfigError, match="head width"):
        zoo.adapt(small(num_heads=16), "rope")
    for option in ("exact", "keep_positions"):
        with pytest.raises(ConfigError, match=f"{option} must be True or False, got None"):
            zoo.adapt(model, **{option: None})


class Wrapper(nn.Module):
    """A layer or a model behind another one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_altered_models_are_explained():
    for wrapped, inside in ((Wrapper(small()), "module"), (torch.compile(small()), "_orig_mod")):
        with pytest.raises(
            ConfigError, match=rf"got (Wrapper|OptimizedModule): adapt the model inside, its '{inside}'"
        ):
            zoo.adapt(wrapped)
    with pytest.raises(ConfigError, match="without blocks"):
        zoo.adapt(small(depth=0))
    replaced, shared, sizeless = small(), small(), small(pos_embed="none")
    replaced.blocks[1].attn.qkv = Wrapper(replaced.blocks[1].attn.qkv)
    with pytest.raises(ConfigError, match=r"attention has .*Wrapper for a linear layer: adapt first"):
        zoo.adapt(replaced)
    shared.blocks[1] = shared.blocks[0]
    with pytest.raises(ConfigError, match="share an attention layer"):
        zoo.adapt(shared)
    sizeless.patch_embed.img_size = sizeless.patch_embed.grid_size = None
    with pytest.raises(ConfigError, match="no size of its own"):
        zoo.adapt(sizeless)


@pytest.mark.parametrize("name", [VIT, EVA])
def test_inputs_that_do_not_fit_are_explained(name):
    adapted = zoo.adapt(small(name))
    for method in (adapted, adapted.forward_features, adapted.forward_intermediates):
        with pytest.raises(DataError, match="multiple of 14 and width of 14 .* got 57 x 56"):
            method(torch.zeros(1, 3, 57, 56))
        with pytest.raises(DataError, match=r"\(batch, channels, height, width\), got \(3, 56, 56\)"):
            method(torch.zeros(3, 56, 56))
        with pytest.raises(DataError, match="must be a tensor .* got list"):
            method([[0.0]])
    with pytest.raises(DataError, match="call the model"):
        adapted.blocks[0](torch.zeros(1, 21, 32))


def test_padding_to_whole_patches_where_the_model_does_it():
    model = small("vit_tiny_patch16_224", dynamic_img_size=True, dynamic_img_pad=True)
    x = torch.randn(2, 3, 27, 35)
    torch.testing.assert_close(zoo.adapt(model)(x), model(x), atol=1e-5, rtol=0)
