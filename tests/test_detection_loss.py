"""The detection loss: against loops in float64, by hand, and with targets as they come."""

from __future__ import annotations

import math
import warnings

import detection_reference as reference
import pytest
import torch

import zoo
from zoo.detection.assign import assign
from zoo.detection.boxes import complete_iou, iou
from zoo.detection.loss import DetectionLoss, distribution_focal_loss
from zoo.detection.targets import Targets

STRIDES = (8.0, 16.0, 32.0)
CLASSES = 5


def random_maps(batch=3, side=128, seed=0, dtype=torch.float64, requires_grad=False):
    """Raw maps with sizes of boxes and scores as in a network that was trained for a while."""
    generator = torch.Generator().manual_seed(seed)

    def level(stride):
        cells = int(side // stride)
        maps = torch.randn(batch, 64 + CLASSES, cells, cells, generator=generator, dtype=dtype)
        peak = torch.randint(1, 6, (batch, 4, 1, cells, cells), generator=generator)
        sharp = 6 * (torch.arange(16).view(1, 1, 16, 1, 1) == peak).to(dtype)
        maps[:, :64] += sharp.flatten(1, 2)
        return maps.requires_grad_(requires_grad)

    return {branch: [level(stride) for stride in STRIDES] for branch in ("one2one", "one2many")}


def random_objects(count, seed, side=128):
    generator = torch.Generator().manual_seed(seed)
    centre = side * torch.rand(count, 2, generator=generator, dtype=torch.float64)
    size = 5 + 0.5 * side * torch.rand(count, 2, generator=generator, dtype=torch.float64) ** 2
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return torch.cat([centre - size / 2, centre + size / 2], dim=1), labels


def as_lists(samples):
    return [[(tuple(box), int(label)) for box, label in zip(b.tolist(), k, strict=True)] for b, k in samples]


def exact(samples):
    """`Targets.collate` in float64, so that targets equal those of the reference."""
    made = Targets.collate(samples, CLASSES)
    boxes = torch.zeros(made.boxes.shape, dtype=torch.float64)
    for row, (sample, _) in enumerate(samples):
        boxes[row, : len(sample)] = sample
    return Targets(boxes, made.labels, made.mask)


# ---- against loops


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("counts", [(4, 0, 9), (1, 1, 1), (0, 0, 0), (25, 3, 0)])
def test_against_loops(counts, seed):
    samples = [random_objects(n, 10 * seed + i) for i, n in enumerate(counts)]
    maps = random_maps(seed=seed)
    found = DetectionLoss(STRIDES)(maps, exact(samples))
    expected = reference.detection_loss(maps, STRIDES, as_lists(samples))
    assert set(found) == {*expected, "one2many", "one2one"}
    if sum(counts):
        assert all(expected[name] > 0 for name in expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert float(found["loss"]) == pytest.approx(float(found["one2many"] + found["one2one"]))
    for branch in ("one2many", "one2one"):
        assert float(found[branch]) == pytest.approx(
            sum(float(found[f"{branch}_{p}"]) for p in ("box", "dfl", "class"))
        )


@pytest.mark.parametrize("seed", range(3))
def test_complete_iou_against_loops(seed):
    a, _ = random_objects(40, seed)
    b, _ = random_objects(40, seed + 100)
    expected = [[reference.complete_iou(x, y) for y in b.tolist()] for x in a.tolist()]
    torch.testing.assert_close(complete_iou(a.unsqueeze(1), b), torch.tensor(expected, dtype=torch.float64))


# ---- by hand


def test_overlaps_by_hand():
    a = torch.tensor([0.0, 0, 4, 2], dtype=torch.float64)
    same, moved = complete_iou(a, a), torch.tensor([2.0, 0, 6, 2], dtype=torch.float64)
    assert float(same) == pytest.approx(1.0, abs=1e-6)
    assert float(iou(a, moved)) == pytest.approx(4 / 12, abs=1e-6)
    assert float(complete_iou(a, moved)) == pytest.approx(4 / 12 - 4 / 40, abs=1e-6)  # The same shape: v is 0.
    turned = torch.tensor([1.0, -1, 3, 3], dtype=torch.float64)  # The same centre.
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(0.5)) ** 2
    assert float(complete_iou(a, turned)) == pytest.approx(1 / 3 - v * v / (2 / 3 + v), abs=1e-6)
    apart = complete_iou(a, a + 1000)
    assert -1.0 < float(apart) < -0.95
    point = torch.zeros(4, dtype=torch.float64)
    assert torch.isfinite(complete_iou(point, point))


def test_distribution_focal_loss_by_hand():
    logits = torch.zeros(6, 16, dtype=torch.float64)
    logits[1, 3] = 2.0
    distances = torch.tensor([7.3, 3.0, 3.25, -5.0, 99.0, 14.99], dtype=torch.float64)
    logits[2, 3], logits[2, 4] = 1.0, 3.0
    found = distribution_focal_loss(logits, distances).tolist()
    assert found[0] == pytest.approx(math.log(16))
    assert found[1] == pytest.approx(-2 + math.log(15 + math.exp(2)))
    assert found[2] == pytest.approx(math.log(14 + math.exp(1) + math.exp(3)) - 0.75 * 1 - 0.25 * 3)
    assert found[3:] == pytest.approx([math.log(16)] * 3)
    logits[3, 0], logits[4, 14:] = 9.0, 9.0  # Cut to the first and the last pair of bins.
    assert max(distribution_focal_loss(logits, distances)[3:5].tolist()) < 0.8


def four_cells(scores, targets, top_k=2):
    """Cells at 8, 24 of a 32 x 32 input, each predicting a box of its own."""
    centres = torch.tensor([[8.0, 8], [24, 8], [8, 24], [24, 24]])
    boxes = torch.tensor([[[0.0, 0, 16, 16], [0, 0, 32, 16], [0, 0, 32, 32], [16, 16, 32, 32]]])
    return assign(boxes, torch.tensor([scores]), centres, targets.ordered(), top_k=top_k, smallest_side=8.0)


def test_assignment_by_hand():
    one = Targets.collate([(torch.tensor([[0.0, 0, 32, 32]]), torch.tensor([1]))], 2)
    scores = [[0.9, 0.1], [0.1, 0.64], [0.1, 0.36], [0.1, 0.9]]
    # Overlaps 1/4, 1/2, 1, 1/4, less the distances of the centres and the shape; cell 2 has t = 0.6 and is the best.
    found = four_cells(scores, one, top_k=1)
    assert found.weights[0].tolist() == pytest.approx([0, 0, 1, 0], abs=1e-6)
    assert found.labels[0].tolist() == [0, 0, 1, 0] and found.boxes[0, 2].tolist() == [0, 0, 32, 32]
    assert not found.boxes[0, :2].any()
    two = four_cells(scores, one, top_k=2)
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(1)) ** 2
    u = 0.5 - 64 / 2048 - v * v / (0.5 + v)
    assert two.weights[0].tolist() == pytest.approx([0, 0.8 * u**6 / 0.6, 1, 0], abs=1e-5)


def test_a_contested_cell_goes_to_the_larger_overlap_and_counts_once():
    boxes = torch.tensor([[0.0, 0, 32, 32], [0, 0, 32, 31]])
    targets = Targets.collate([(boxes, torch.tensor([0, 1]))], 2)
    found = four_cells([[0.5, 0.9]] * 4, targets, top_k=1)
    assert found.weights[0].gt(0).tolist() == [False, False, True, False]
    assert found.boxes[0, 2].tolist() == [0, 0, 32, 32] and found.labels[0, 2] == 0


def test_small_objects_between_centres_have_candidates():
    between = Targets.collate([(torch.tensor([[12.0, 10, 15, 13]]), torch.tensor([0]))], 2)
    centres, boxes = torch.tensor([[8.0, 8], [24, 8]]), torch.tensor([[[8.0, 6, 16, 14], [16, 6, 24, 14]]])
    scores = torch.full((1, 2, 2), 0.5)
    for side, expected in ((16.0, [True, False]), (4.0, [False, False])):
        found = assign(boxes, scores, centres, between.ordered(), top_k=10, smallest_side=side)
        assert found.weights[0].gt(0).tolist() == expected


# ---- targets as they come


def test_the_order_of_objects_and_their_padding_do_not_count():
    samples = [random_objects(7, 1), random_objects(2, 2)]
    samples[0][0][3], samples[0][1][3] = samples[0][0][5], (samples[0][1][5] + 1) % CLASSES  # One box, two classes.
    maps = random_maps(batch=2, dtype=torch.float32)
    first = DetectionLoss(STRIDES)(maps, Targets.collate(samples, CLASSES))
    order = torch.tensor([4, 3, 6, 5, 0, 2, 1])
    turned = Targets.collate([(samples[0][0][order], samples[0][1][order]), samples[1]], CLASSES)
    boxes = torch.nn.functional.pad(turned.boxes, (0, 0, 2, 3), value=float("nan"))
    labels = torch.nn.functional.pad(turned.labels, (2, 3), value=-100)
    padded = Targets(boxes, labels, torch.nn.functional.pad(turned.mask, (2, 3)))
    for other in (turned, padded):
        again = DetectionLoss(STRIDES)(maps, other)
        assert all(torch.equal(first[name], again[name]) for name in first)


ODD = {
    "outside": [-60.0, -60, -20, -20],
    "far": [1e6, 1e6, 1e6 + 50, 1e6 + 50],
    "across the edge": [-40.0, 60, 30, 200],
    "larger than all": [-500.0, -500, 900, 900],
    "a line": [20.0, 20, 20, 60],
    "a point": [20.0, 20, 20, 20],
    "inverted": [60.0, 60, 20, 20],
    "not a number": [float("nan"), 20, 60, 60],
    "infinite": [0.0, 0, float("inf"), 60],
    "small": [20.0, 20, 23, 23],
}
UNUSABLE = {"outside", "far", "a line", "a point", "inverted", "not a number", "infinite"}


@pytest.mark.parametrize("name", ODD)
def test_odd_boxes(name):
    plain = random_objects(3, 5)
    odd = torch.cat([plain[0].float(), torch.tensor([ODD[name]])]), torch.cat([plain[1], torch.tensor([2])])
    maps = random_maps(batch=1, dtype=torch.float32, requires_grad=True)
    found = DetectionLoss(STRIDES)(maps, Targets.collate([odd], CLASSES))
    found["loss"].backward()
    assert all(value.isfinite() for value in found.values())
    assert all(level.grad.isfinite().all() for levels in maps.values() for level in levels)
    without = DetectionLoss(STRIDES)(maps, Targets.collate([plain], CLASSES))
    assert torch.equal(found["loss"], without["loss"]) == (name in UNUSABLE)


@pytest.mark.parametrize("objects", [0, None])
def test_samples_without_objects_train_every_parameter_towards_background(objects, tiny_config):
    from modalities.image.detector import build

    tiny_config |= {"task": "detection", "architecture": "vit-det"}
    tiny_config["model"] |= {"pyramid_dim": 8, "class_width": 8}
    torch.manual_seed(0)
    model = build(tiny_config).train()
    torch.nn.init.normal_(model.head.cv3[0][-1].weight)
    if objects is None:  # Not even a padded place.
        targets = Targets(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0).bool())
    else:
        targets = Targets.collate([(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))] * 2, 3)
    maps = model(torch.rand(2, 3, 32, 32))
    parts = DetectionLoss(model.strides)(maps, targets)
    parts["loss"].backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert parts["one2many_box"] == parts["one2one_dfl"] == 0
    logits = torch.cat([level[:, 64:].flatten() for level in maps["one2many"]])
    assert float(parts["one2many_class"].detach()) == pytest.approx(
        0.5 * float(torch.nn.functional.softplus(logits).sum().detach()), rel=1e-5
    )


def test_extreme_predictions_have_finite_gradients():
    for scale in (0.0, 50.0, 1e4):
        maps = random_maps(batch=2, dtype=torch.float32)
        maps = {k: [(scale * level).detach().requires_grad_() for level in v] for k, v in maps.items()}
        found = DetectionLoss(STRIDES)(maps, Targets.collate([random_objects(6, 1), random_objects(0, 2)], CLASSES))
        found["loss"].backward()
        assert found["loss"].isfinite()
        assert all(level.grad.isfinite().all() for levels in maps.values() for level in levels)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_arithmetic_is_float32_whatever_the_maps_are(dtype):
    maps = {k: [level.to(dtype) for level in v] for k, v in random_maps(batch=2).items()}
    targets = Targets.collate([random_objects(6, 1), random_objects(3, 2)], CLASSES)
    plain = DetectionLoss(STRIDES)({k: [level.float() for level in v] for k, v in maps.items()}, targets)
    with torch.autocast("cpu", torch.bfloat16):
        found = DetectionLoss(STRIDES)(maps, targets)
    assert found["loss"].dtype == torch.float32 and torch.equal(found["loss"], plain["loss"])


def test_what_the_loss_does_not_take():
    maps = random_maps(batch=2)
    with pytest.raises(zoo.DataError, match="3 samples for a batch of 2"):
        DetectionLoss(STRIDES)(maps, Targets.collate([random_objects(1, 1)] * 3, CLASSES))
    with pytest.raises(zoo.DataError, match="sample 1: labels must lie in 0..4"):
        Targets.collate([random_objects(1, 1), (torch.rand(1, 4), torch.tensor([5]))], CLASSES)
    with pytest.raises(zoo.DataError, match=r"expected boxes \(n, 4\)"):
        Targets.collate([(torch.rand(2, 4), torch.tensor([1]))], CLASSES)
    assert Targets.collate([random_objects(1, 1)], CLASSES).to("meta").boxes.shape == (1, 1, 4)
    with pytest.raises(zoo.DataError, match="at least one sample"):
        Targets.collate([], CLASSES)
    with pytest.raises(zoo.ConfigError, match="gains"):
        DetectionLoss(STRIDES, box_gain=-1)


def test_the_loss_compiles_without_a_break():
    maps, targets = random_maps(batch=2, side=64, dtype=torch.float32), Targets.collate([random_objects(2, 1)] * 2, 5)
    compiled = torch.compile(DetectionLoss(STRIDES), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(maps, targets), DetectionLoss(STRIDES)(maps, targets))


@pytest.mark.slow
def test_a_batch_can_be_learned(tiny_config):
    """Two pictures with one square each: after some steps the detector finds them, without suppression."""
    from modalities.image.detector import build

    tiny_config |= {"task": "detection", "architecture": "vit-det", "labels": None}
    tiny_config["model"] |= {"pyramid_dim": 16, "class_width": 16, "num_classes": 2, "depth": 1}
    torch.manual_seed(0)
    model = build(tiny_config)
    boxes = torch.tensor([[[8.0, 12, 36, 40]], [[30.0, 4, 60, 34]]])
    pictures = torch.zeros(2, 3, 64, 64)
    for picture, (box,), colour in zip(pictures, boxes.int().tolist(), (0, 2), strict=True):
        picture[colour, box[1] : box[3], box[0] : box[2]] = 1
    targets = Targets(boxes, torch.tensor([[0], [1]]), torch.ones(2, 1).bool())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    criterion = DetectionLoss(model.strides)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = criterion(model(pictures), targets)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0]
    model.train()  # The statistics of the batch itself: what was fitted.
    found = model.detect(pictures)
    for row in range(2):
        assert float(iou(found[row, 0, :4], boxes[row, 0])) > 0.75 and found[row, 0, 5] == row
        assert found[row, 1, 4] < 0.5 * found[row, 0, 4]  # One box an object.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_ultralytics(seed, tmp_path, monkeypatch):
    """Its loss on the same predictions, if it is installed (8.4.190; AGPL-3.0, so nothing of it is used otherwise)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))  # Their import writes settings.
        pytest.importorskip("ultralytics")
        from ultralytics.utils.loss import v8DetectionLoss

    from types import SimpleNamespace

    class Network(torch.nn.Module):
        """As much of a network of theirs as its loss asks for."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5, epochs=1)
            self.model = [SimpleNamespace(stride=torch.tensor(STRIDES), nc=CLASSES, reg_max=16)]

    maps = random_maps(batch=2, seed=seed, dtype=torch.float32)
    samples = [random_objects(4, seed), random_objects(2, seed + 50)]
    for boxes, _ in samples:  # Longer than the second stride, from which on its assignment is that of the paper.
        boxes[:, 2:] = torch.maximum(boxes[:, 2:], boxes[:, :2] + 20)
        boxes.clamp_(0, 128)
    found = DetectionLoss(STRIDES)(maps, Targets.collate(samples, CLASSES))
    index = torch.cat([torch.full((len(k),), float(i)) for i, (_, k) in enumerate(samples)])
    corners = torch.cat([boxes for boxes, _ in samples]).float() / 128
    centres = torch.cat([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], dim=1)
    batch = {"batch_idx": index, "cls": torch.cat([k for _, k in samples]).float(), "bboxes": centres}
    for branch, top_k in (("one2many", 10), ("one2one", 1)):
        flat = torch.cat([level.flatten(2) for level in maps[branch]], dim=2)
        predictions = {"boxes": flat[:, :64], "scores": flat[:, 64:], "feats": maps[branch]}
        _, parts = v8DetectionLoss(Network(), tal_topk=top_k)(predictions, batch)
        for name, value in (("box", "box_loss"), ("class", "cls_loss"), ("dfl", "dfl_loss")):
            # Not closer, since it adds 1e-9 to the t of the best cell, of which t is a sixth power.
            assert float(found[f"{branch}_{name}"]) == pytest.approx(float(parts[value]), rel=1e-3), (branch, name)
