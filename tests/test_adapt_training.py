"""Adapted timm models in use: gradients, fine-tuning, 16 bit, state dicts, features, threads, compilers."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import timm
import torch
import torch.nn.functional as F
from adapted_models import EVA, FAMILIES, SMALL, VIT, images, open_gates, small

import zoo
from zoo import DataError
from zoo.encodings.gated import GatedRotation
from zoo.training.optim import parameter_groups

MIXED, DINO3 = "vit_small_patch16_rope_mixed_ape_224", "vit_small_patch16_dinov3"
GATED = ["alibi", "comrope-ld", "cpb", "golden-rope", "kerple", "liere", "pape", "pape-ri", "rope", "rope-mixed",
         "spiral-rope", "string"]  # fmt: skip


def backward(model, x):
    model.zero_grad()
    F.cross_entropy(model(x), torch.tensor([0, 3])).backward()


def moved(model, x, before):
    return float((model(x) - before).detach().abs().max())


# Gradients and training


@pytest.mark.parametrize("encoding", GATED)
def test_gates_learn_first_and_then_what_is_behind_them(encoding):
    adapted = zoo.adapt(small(global_pool="avg"), encoding).train()
    x = images(adapted, 3, 5)
    own = {name: p for name, p in adapted.named_parameters() if ".encoding." in name}
    gates = {name: p for name, p in own.items() if name.endswith(".gate")}
    assert len(gates) == 2 and all(name.startswith("blocks.") for name in own)
    backward(adapted, x)
    assert all((p.grad != 0).all() for p in gates.values())
    # Nothing but rounding (the basis of STRING cancels between q and k).
    assert all(p.grad is not None and p.grad.abs().max() < 1e-7 for name, p in own.items() if name not in gates)
    before = adapted(x).detach()
    torch.optim.SGD(gates.values(), lr=0.5).step()
    assert moved(adapted, x, before) > 0
    open_gates(adapted)  # Wide, so that no gradient is lost to rounding.
    backward(adapted, x)
    for name, p in own.items():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name
    rest = [p for name, p in adapted.named_parameters() if name not in own]
    assert all(p.grad is not None for p in rest)


@pytest.mark.parametrize("encoding", GATED)
def test_with_a_class_token_head_all_learn_but_additive_ones_of_the_last_block(encoding):
    adapted = zoo.adapt(small(), encoding).train()
    x, steps = images(adapted, 3, 5), []
    own = {name: p for name, p in adapted.named_parameters() if ".encoding." in name}
    for _ in range(2):
        backward(adapted, x)
        assert all(p.grad is not None for p in adapted.parameters())  # As data-parallel training wants it.
        steps.append({name for name, p in own.items() if p.grad.any()})
        torch.optim.SGD(adapted.parameters(), lr=0.5).step()
    last = {name for name in own if name.startswith("blocks.1.")}
    turning = isinstance(adapted.encodings["blocks.1.attn"], GatedRotation)
    assert {name for name in steps[0] if name.endswith(".gate")} == {
        name for name in own if name.endswith(".gate") and (turning or name not in last)
    }
    assert steps[1] == (set(own) if turning else set(own) - last)


def test_a_table_learns_from_the_first_step():
    adapted = zoo.adapt(small(global_pool="avg"), "table").train()
    backward(adapted, images(adapted))
    assert all(encoding.table.grad.any() for encoding in adapted.encodings.values())


@pytest.mark.parametrize("name", [VIT, DINO3])
def test_fine_tuning_at_another_size(name):
    adapted = zoo.adapt(small(name, global_pool="avg"), "pape", parabolas=8).train()
    x, target = images(adapted, 5, 6, batch=8), torch.arange(8) % 5
    optimiser = torch.optim.AdamW(parameter_groups(adapted, weight_decay=0.05), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(adapted(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    gates = torch.cat([encoding.gate.detach() for encoding in adapted.encodings.values()])
    assert gates.abs().min() > 1e-4
    # What was learned depends on positions: without the encoding outputs are others.
    learned = adapted.eval()(x)
    open_gates(adapted, 0.0)
    assert moved(adapted, x, learned) > 1e-4


def test_no_weight_decay_names_gates_and_what_encodings_name():
    adapted = zoo.adapt(small(), "pape")
    names = adapted.no_weight_decay()
    assert names - {"dist_token"} <= {name for name, _ in adapted.named_parameters()}
    assert {"pos_embed", "blocks.0.attn.encoding.gate", "blocks.1.attn.encoding.inner.position"} <= names
    parallel = zoo.adapt(small("vit_small_patch16_18x2_224"), "rope-mixed")
    assert "blocks.1.attns.0.attn.encoding.inner.frequencies" in parallel.no_weight_decay()
    mixed = zoo.adapt(small(MIXED), "rope-mixed").no_weight_decay()
    assert {"rope.freqs", "blocks.0.attn.encoding.gate"} <= mixed
    groups = parameter_groups(adapted, weight_decay=0.1, layer_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == len(list(adapted.parameters()))
    undecayed = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
    assert id(adapted.blocks[0].attn.encoding.gate) in undecayed


@pytest.mark.parametrize("name", [VIT, EVA])
def test_other_dropout_draws_what_timm_draws(name):
    rates = {"proj_drop_rate": 0.2, "drop_path_rate": 0.3, "pos_drop_rate": 0.1, "drop_rate": 0.2}
    model = small(name, **rates).train()
    adapted, x = zoo.adapt(model, "pape"), images(model, batch=4)
    torch.manual_seed(0)
    expected = model(x)
    assert (expected - model(x)).abs().max() > 1e-2
    torch.manual_seed(0)
    torch.testing.assert_close(adapted(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [VIT, EVA, MIXED, "vit_small_patch16_18x2_224", "deit_tiny_distilled_patch16_224"])
def test_gradient_checkpointing_gives_the_same_gradients(name, monkeypatch):
    adapted = zoo.adapt(small(name), "pape").train()
    open_gates(adapted)
    x = images(adapted, 3, 5)
    backward(adapted, x)
    plain = {key: p.grad.clone() for key, p in adapted.named_parameters() if p.grad is not None}
    layer, calls = type(adapted.encodings[next(iter(adapted.encodings))]), []
    score = layer.score
    monkeypatch.setattr(layer, "score", lambda self, *args: calls.append(1) or score(self, *args))
    adapted.set_grad_checkpointing()
    backward(adapted, x)
    assert len(calls) == 2 * adapted.adapt_report.layers  # Once more, in the backward pass.
    for key, p in adapted.named_parameters():
        if key in plain:
            torch.testing.assert_close(p.grad, plain[key], atol=1e-6, rtol=1e-5)
    features = adapted.forward_intermediates(x, intermediates_only=True)
    adapted.set_grad_checkpointing(False)
    torch.testing.assert_close(features, adapted.forward_intermediates(x, intermediates_only=True))


# 16 bit


@pytest.mark.parametrize("encoding", ["pape", "rope", "alibi", "table"])
@pytest.mark.parametrize("name", [VIT, EVA, DINO3, "vit_intern300m_patch14_448"])
def test_sixteen_bit(name, encoding):
    model = small(name, **({"qk_norm": True} if name == VIT else {}))
    adapted = zoo.adapt(model, encoding)
    open_gates(adapted)
    x = images(model, 3, 5)
    exact = adapted(x)
    size = exact.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        out = adapted(x)
        assert out.dtype == torch.bfloat16
    assert (out.float() - exact).abs().max() < 0.05 * size
    half = copy.deepcopy(adapted).to(torch.bfloat16)
    assert (half(x.bfloat16()).float() - exact).abs().max() < 0.05 * size
    # Converted first, adapted then: in the dtype of the model.
    late = zoo.adapt(copy.deepcopy(model).to(torch.bfloat16), encoding)
    assert {p.dtype for p in late.parameters()} == {torch.bfloat16}
    assert late(x.bfloat16()).dtype == torch.bfloat16


def test_positions_keep_their_precision_in_bfloat16():
    # On 48 x 48 patches a 16-bit position term would be off by more than the term itself.
    model = small("vit_tiny_patch16_224", global_pool="avg", pos_embed="none")
    adapted = zoo.adapt(model, "pape")
    open_gates(adapted, 1.0)
    encoding = adapted.encodings["blocks.0.attn"]
    coords = zoo.coordinates.grid(48, 48)
    x = torch.randn(1, 2304, 32)
    rows, errors = slice(1000, 1064), {}
    exact = encoding.double().score(x.double(), encoding.frame(coords.to(dtype=torch.float64), torch.float64), 8**-0.5)
    expected = exact.bias(rows).softmax(dim=-1)
    encoding.float()
    for dtype in (torch.float32, torch.bfloat16):
        zero = torch.zeros(1, 4, 2304, 8, dtype=dtype)
        q, k = encoding.fold(x, zero, zero, encoding.frame(coords, dtype))
        weights = (8**-0.5 * q[:, :, rows].double() @ k.double().mT).softmax(dim=-1)
        errors[dtype] = ((weights - expected).abs().sum(dim=-1).mean() / 2).item()
    assert errors[torch.float32] < 1e-4 and errors[torch.bfloat16] < 1e-3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("encoding", ["pape", "rope", "alibi", "kerple", "table"])
def test_gradients_under_autocast(encoding, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    # Heads of 16 or more, so that on CUDA the kernels that add a score themselves take part.
    adapted = zoo.adapt(small(DINO3, embed_dim=64, global_pool="avg"), encoding).to(device).train()
    open_gates(adapted)
    x, target = images(adapted, 5, 6, batch=4), torch.arange(4, device=device)
    with torch.autocast(device, torch.bfloat16):
        loss = F.cross_entropy(adapted(x).float(), target)
    loss.backward()
    grads = {key: p.grad.double().clone() for key, p in adapted.named_parameters() if ".encoding." in key}
    adapted.zero_grad()
    adapted.double()
    F.cross_entropy(adapted(x.double()), target).backward()
    for key, p in adapted.named_parameters():
        if key in grads:
            assert (grads[key] - p.grad).norm() < 0.2 * p.grad.norm(), key


def test_float64():
    model = small(EVA).double()
    adapted = zoo.adapt(model, "pape")
    x = images(model, 4, 4)
    assert x.dtype == torch.float64 and adapted.adapt_report.difference < 1e-12
    assert {p.dtype for p in adapted.parameters()} == {torch.float64}
    torch.testing.assert_close(adapted(x), model(x), atol=1e-12, rtol=0)


# State


@pytest.mark.parametrize("name", FAMILIES)
def test_state_dicts_load_into_a_fresh_model_and_old_ones_before(name):
    model = small(name)
    adapted = zoo.adapt(model, "pape", parabolas=4)
    open_gates(adapted)
    state, old = adapted.state_dict(), model.state_dict()
    new = set(state) - set(old)
    assert set(old) <= set(state) and all(".attn.encoding." in key and key.startswith("blocks.") for key in new)
    assert all(torch.equal(state[key], old[key]) for key in old)
    fresh = zoo.adapt(timm.create_model(name, **(SMALL | FAMILIES[name])).eval(), "pape", parabolas=4)
    x = images(model, 3, 5)
    expected = adapted(x)
    assert moved(fresh, x, expected) > 1e-3
    fresh.load_state_dict(state)
    assert torch.equal(fresh(x), expected)


@pytest.mark.parametrize("name", [VIT, EVA])
def test_copies_threads_and_sizes_do_not_disturb_each_other(name):
    adapted = zoo.adapt(small(name), "pape")
    open_gates(adapted)
    grids = [(2, 3), (5, 4), (3, 3), (4, 4)]
    inputs = [images(adapted, *grid) for grid in grids]
    with torch.no_grad():
        expected = [adapted(x) for x in inputs]
        assert torch.equal(pickle.loads(pickle.dumps(adapted))(inputs[0]), expected[0])
        twin = copy.deepcopy(adapted)
        open_gates(twin, 0.1)
        assert moved(twin, inputs[0], expected[0]) > 1e-4 and twin.adapt_report == adapted.adapt_report
    failures = []

    def run(index: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                if not torch.equal(adapted(inputs[index]), expected[index]):
                    failures.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(grids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # A forward leaves nothing behind on any module.
    assert not [key for module in adapted.modules() for key, value in vars(module).items() if torch.is_tensor(value)]


def test_weights_that_come_later_count():
    adapted = zoo.adapt(small(), "pape").eval()
    x = images(adapted)
    before = adapted(x).detach()
    open_gates(adapted)
    assert moved(adapted, x, before) > 1e-3


# timm's own interface


@pytest.mark.parametrize("name", [VIT, EVA, MIXED])
def test_features_of_all_kinds_are_those_of_timm(name):
    model = small(name)
    adapted = zoo.adapt(model, "pape")
    twin = timm.create_model(name, **(SMALL | FAMILIES[name]), dynamic_img_size=True).eval()
    twin.load_state_dict(model.state_dict())
    x = images(model, 3, 5)
    torch.testing.assert_close(adapted.forward_features(x), twin.forward_features(x), atol=1e-5, rtol=0)
    for options in (
        {"indices": 1, "norm": True},
        {"indices": [0], "stop_early": True, "intermediates_only": True},
        {"return_prefix_tokens": True, "output_fmt": "NLC"},
    ):
        ours, theirs = adapted.forward_intermediates(x, **options), twin.forward_intermediates(x, **options)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    if name == VIT:
        ours, theirs = (m.get_intermediate_layers(x, n=2, reshape=True) for m in (adapted, twin))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert ours[0].shape == (2, 32, 3, 5)
    adapted.reset_classifier(7)
    assert adapted(x).shape == (2, 7)
    assert adapted.prune_intermediate_layers([0]) == [0] and len(adapted.encodings) == 1
    assert adapted.forward_features(x).shape[-1] == 32


def test_another_own_size():
    name = "vit_tiny_patch16_224"
    adapted = zoo.adapt(small(name), "pape")
    open_gates(adapted)
    x = images(adapted, 4, 6)
    expected = adapted(x)
    adapted.set_input_size(img_size=(32, 48))
    torch.testing.assert_close(adapted(x), expected, atol=1e-5, rtol=0)


def test_masks():
    model = small("vit_tiny_patch16_224")
    adapted = zoo.adapt(model, "pape")
    x = images(model)
    mask = torch.ones(17, 17, dtype=torch.bool)
    mask[:, 5:9] = False
    expected = model(x, attn_mask=mask)
    torch.testing.assert_close(adapted(x, attn_mask=mask), expected, atol=1e-5, rtol=0)
    assert (expected - model(x)).abs().max() > 1e-3
    eva = small(EVA)
    if "attn_mask" in timm.models.eva.Eva.forward.__code__.co_varnames:  # Newer than the oldest timm supported.
        adapted_eva = zoo.adapt(eva)
        torch.testing.assert_close(
            adapted_eva(images(eva), attn_mask=mask[None, None]),
            eva(images(eva), attn_mask=mask[None, None]),
            atol=1e-5,
            rtol=0,
        )
    with pytest.raises(DataError, match=r"must be bool.*torch.float32 \(17, 17\)"):
        adapted(x, attn_mask=torch.zeros(17, 17))
    for shape in ((2, 17), (17, 16), (2, 17, 17), (5, 1, 17, 17), (17,)):
        with pytest.raises(DataError, match=r"B, H, N = 2, 4, 17; got torch.bool"):
            adapted(x, attn_mask=torch.ones(shape, dtype=torch.bool))


# Compilers


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoding"), [(VIT, "pape"), (MIXED, "rope")])
def test_compiles_whole(name, encoding):
    adapted = zoo.adapt(small(name), encoding)
    open_gates(adapted)
    x = images(adapted, 3, 5)
    expected = adapted(x)
    compiled = torch.compile(adapted, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=0)
    other = images(adapted, 4, 6)
    torch.testing.assert_close(compiled(other), adapted(other), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "encoding"), [(VIT, "pape"), (EVA, "pape"), (MIXED, "alibi")])
def test_the_compiler_follows_every_line(name, encoding):
    adapted = zoo.adapt(small(name), encoding)
    open_gates(adapted)
    x = images(adapted, 3, 5)
    traced = torch.compile(adapted, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(x), adapted(x), atol=1e-6, rtol=0)
