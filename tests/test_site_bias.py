"""The bias that the panel draws is the term that the encoding is defined by, for that very picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pictures import RGB, encode
from reference import position_term
from site_client import running, site, toy_models

import zoo
from zoo.attention import CoordinateAttention
from zoo.site.predictor import Predictor
from zoo.site.running import has_patch_bias

PICTURE = encode("PNG")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with running(site(tmp_path_factory.mktemp("site")), Predictor()) as client:
        yield client


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    with running(site(folder / "site"), Predictor(toy_models(folder))) as client:
        yield client


def inputs_of(name_or_target: str, size: int, layer: int):
    """The layer of a model, and what enters its attention for the picture."""
    predictor = zoo.predictor(name_or_target, size=size)
    attention = [m for m in predictor.model.modules() if isinstance(m, CoordinateAttention)][layer]
    caught = []
    hook = attention.register_forward_pre_hook(lambda module, arguments: caught.append(arguments[:2]))
    predictor(PICTURE)
    hook.remove()
    return attention, *caught[0]


@pytest.mark.parametrize(("size", "row", "col", "layer"), [(112, 0, 13, 0), (112, 6, 3, 2), (64, 7, 7, -1)])
def test_bias_is_the_term_of_the_definition(client, size, row, col, layer):
    name = "pape-vit-t-imagenette"
    found = client.post(f"/api/bias?model={name}&size={size}&row={row}&col={col}&layer={layer}", PICTURE).json
    rows, columns = found["grid"]
    heads = np.array(found["heads"])
    assert (rows, columns, found["row"], found["col"]) == (size // 8, size // 8, row, col)
    assert found["layers"] == 7 and found["layer"] == layer % 7 and heads.shape == (4, rows, columns)
    attention, x, coords = inputs_of(name, size, layer)
    prefix = x.shape[1] - rows * columns
    query = prefix + row * columns + col
    term = position_term(attention, "pape", x, coords)[0, :, query, prefix:].reshape(heads.shape)
    np.testing.assert_allclose(heads, term.detach().numpy(), atol=2e-3, rtol=1e-4)
    # It is what attention adds: softmax of q k plus the term are the weights that the layer uses.
    with torch.no_grad():
        _, weights = attention(x, coords, return_attention=True)
        q, k, _ = attention._project(x)
        logits = attention.scale * (q[0, :, query] @ k[0].transpose(-1, -2)).diagonal(dim1=0, dim2=1).T
    logits[:, prefix:] += torch.from_numpy(heads).flatten(1)
    torch.testing.assert_close(logits.softmax(-1), weights[0, :, query], atol=1e-4, rtol=1e-3)


def test_bias_depends_on_the_picture(client):
    where = "/api/bias?model=pape-vit-t-imagenette&size=64&row=3&col=3&layer=1"
    one, other = (np.array(client.post(where, encode("PNG", rgb)).json["heads"]) for rgb in (RGB, 255 - RGB))
    assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model=with&row=4&col=0&layer=0", "outside the grid of 4 rows"),
        ("model=with&row=-1&col=0&layer=0", "outside the grid"),
        ("model=with&row=0&col=0&layer=2", "layer 2 is none of the 2"),
        ("model=with&row=0&col=0&layer=-3", "layer -3"),
        ("model=with&row=0&col=0&layer=0&size=33", "multiple of 8"),
        ("model=without&row=0&col=0&layer=0", "encoding 'rope'"),
        ("model=shakespeare&row=0&col=0&layer=0", "no position bias"),
    ],
)
def test_biases_that_are_not_there(toys, query, message):
    found = toys.post(f"/api/bias?{query}", PICTURE)
    assert found.status == 400 and message in found.error
    assert toys.post("/api/bias?model=with&row=0&col=0&layer=0", b"").status == 400


def test_bias_of_alibi_beside_a_token_encoding(toys):
    found = toys.post("/api/bias?model=both&row=1&col=2&layer=1", PICTURE).json
    rows, columns = np.mgrid[:4, :4]
    for head in np.array(found["heads"]):
        np.testing.assert_allclose(head, head[1, 3] * np.hypot(rows - 1, columns - 2), atol=1e-5)
    listed = {about["name"]: about["patch_bias"] for about in toys.get("/api/models").json}
    assert listed == {"with": True, "without": False, "both": True, "shakespeare": False, "jsb": False}


def test_which_encodings_have_a_bias():
    """What is said without a model is what the layer does."""
    coords = zoo.coordinates.grid(2, 2)
    for name in zoo.encodings():
        layer = CoordinateAttention(96, 12, 2, name)
        told = has_patch_bias({"modality": "image", "model": {"encoding": name}})
        assert told == (layer.position_bias(torch.zeros(1, 4, 96), coords) is not None), name
