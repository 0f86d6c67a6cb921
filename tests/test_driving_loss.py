"""The loss of fusion networks: heat map, matching, boxes with what is unknown in them, and learning two scenes."""

import itertools
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from driving_toys import DATA, LABELS, scene_with, some_boxes, tiny, tiny_config

import zoo
from modalities.driving.batch import DrivingBatch
from modalities.driving.boxes import Boxes3D, pad_boxes
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.losses import FusionLoss, encode_boxes, gaussian_focal_loss, gaussian_radius, heat_targets
from modalities.driving.matching import assign, matching_cost
from modalities.driving.query_head import FusionOutputs, decode

CONFIG = FusionConfig.from_dict(tiny_config()["model"])
NAMES = tuple(LABELS)
LOSS = FusionLoss(config=CONFIG, data=DrivingDataConfig(**DATA), labels=NAMES)
KINDS, ALONG_X, ALONG_Y, QUERIES = 3, 15, 10, 6


def outputs(scenes=2, seed=0):
    """Outputs at random; every cell is a query's that lies in the middle of the map."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    cells = torch.randint(0, ALONG_X * ALONG_Y, (scenes, QUERIES), generator=generator)
    labels = torch.randint(0, KINDS, (scenes, QUERIES), generator=generator)
    heatmap, classes = normal(scenes, KINDS, ALONG_X, ALONG_Y), normal(scenes, QUERIES, KINDS)
    return FusionOutputs(heatmap, cells, labels, classes, normal(scenes, QUERIES, 10))


def test_heat_is_one_in_the_cells_of_boxes_and_falls_around_them():
    boxes = Boxes3D.from_arrays(
        [[-11.9, -7.9, 0], [0.1, 0.1, 0], [1.7, 0.1, 0], [11.9, 7.9, 0]],
        [[1, 1, 1], [12, 5, 3], [1, 1, 1], [4, 4, 1]],
        [0, 1, 2, 3],
        label=[0, 1, 1, 2],
    )
    targets = pad_boxes([boxes, Boxes3D.empty()])
    heat = heat_targets(torch.nan_to_num(targets.boxes), targets.labels, targets.mask, CONFIG, LOSS.data, KINDS)
    assert heat.shape == (2, KINDS, ALONG_X, ALONG_Y) and heat[1].abs().sum() == 0
    ones = (heat == 1).nonzero().tolist()
    assert ones == [[0, 0, 0, 0], [0, 1, 7, 5], [0, 1, 8, 5], [0, 2, 14, 9]]
    cell = CONFIG.bev_stride * LOSS.data.pillar_size
    radius = math.floor(gaussian_radius(torch.tensor(12 / cell), torch.tensor(5 / cell)))
    assert radius == 2
    for x, y in itertools.product(range(ALONG_X), range(ALONG_Y)):
        expected = 0.0
        for middle, radius in (((7, 5), 2), ((8, 5), 1)):
            if max(abs(x - middle[0]), abs(y - middle[1])) <= radius:
                squared = (x - middle[0]) ** 2 + (y - middle[1]) ** 2
                expected = max(expected, math.exp(-squared / (2 * ((2 * radius + 1) / 6) ** 2)))
        assert heat[0, 1, x, y].item() == pytest.approx(expected, abs=1e-6)


def test_radius_keeps_the_overlap():
    length, width = torch.tensor([3.0, 10.0, 1.0, 7.0]), torch.tensor([2.0, 3.0, 1.0, 7.0])
    radius = gaussian_radius(length, width)
    common = (length - radius) * (width - radius)
    torch.testing.assert_close(common / (2 * length * width - common), torch.full((4,), 0.1))


def test_focal_loss_of_the_heat_map_cell_by_cell():
    logits, heat = torch.randn(1, 2, 3, 3), torch.rand(1, 2, 3, 3)
    heat[0, 0, 1, 1] = 1.0
    total = 0.0
    for logit, wanted in zip(logits.flatten().tolist(), heat.flatten().tolist(), strict=True):
        p = 1 / (1 + math.exp(-logit))
        total -= (1 - p) ** 2 * math.log(p) if wanted == 1 else (1 - wanted) ** 4 * p**2 * math.log(1 - p)
    assert gaussian_focal_loss(logits, heat).item() == pytest.approx(total, rel=1e-5)


def test_assignment_is_the_best_of_all():
    generator = torch.Generator().manual_seed(0)
    cost = torch.randn(3, 5, 4, generator=generator)
    mask = torch.tensor([[True] * 4, [True, False, True, True], [False] * 4])
    found = assign(cost, mask)
    assert (found[~mask] == -1).all() and (found[mask] >= 0).all()
    for row in range(3):
        boxes = mask[row].nonzero()[:, 0].tolist()
        ways = itertools.permutations(range(5), len(boxes))
        best = min(sum(cost[row, q, m].item() for q, m in zip(way, boxes, strict=True)) for way in ways)
        assert sum(cost[row, found[row, m], m].item() for m in boxes) == pytest.approx(best, abs=1e-5)
    few = assign(cost[:, :2], torch.ones(3, 4, dtype=torch.bool))
    assert [sorted(row.tolist()) for row in few] == [[-1, -1, 0, 1]] * 3
    assert assign(cost[:, :, :0], mask[:, :0]).shape == (3, 0)


def test_assignment_names_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(zoo.ZooError, match=r"pip install 'pape-zoo\[driving\]'"):
        assign(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))


def test_cost_prefers_the_class_the_place_and_the_shape():
    made = outputs(1)
    boxes = made.boxes.clone()
    codes = boxes[:, 2:4].clone()
    labels = torch.tensor([[1, 2]])
    options = {"class_weight": 1.0, "centre_weight": 1.0, "box_weight": 1.0, "alpha": 0.25, "gamma": 2.0}
    alone = {key: 0.0 for key in ("class_weight", "centre_weight", "box_weight")}
    for key in ("centre_weight", "box_weight"):
        cost = matching_cost(made, codes, labels, **options | alone | {key: 1.0})
        assert cost.shape == (1, QUERIES, 2) and cost.argmin(1).tolist() == [[2, 3]]
        assert cost[0, 2, 0] == cost[0, 3, 1] == 0
    cost = matching_cost(made, codes, labels, **options | alone | {"class_weight": 1.0})
    assert torch.equal(cost[0].argsort(0, descending=True), made.classes[0][:, labels[0]].argsort(0))
    broken = FusionOutputs(**vars(made) | {"boxes": torch.full_like(boxes, math.nan)})
    assert matching_cost(broken, codes, labels, **options).isfinite().all()


def test_loss_term_by_term():
    made, boxes = outputs(2), [some_boxes(0, 4), some_boxes(1, 2)]
    targets = pad_boxes(boxes)
    found = LOSS(made, targets)
    codes, known = encode_boxes(targets.boxes)
    cost = matching_cost(
        made, codes, targets.labels.clamp_min(0), class_weight=1.0, centre_weight=0.5, box_weight=0.25,
        alpha=0.25, gamma=2.0, alike=targets.labels == NAMES.index("barrier"),
    )  # fmt: skip
    match = assign(cost, targets.mask)
    box = velocity = 0.0
    wanted = torch.zeros(2, QUERIES, KINDS)
    for b, m in targets.mask.nonzero().tolist():
        query = match[b, m]
        wanted[b, query, targets.labels[b, m]] = 1
        difference = (made.boxes[b, query] - codes[b, m]).abs()
        turn = difference[6:8].sum().item()
        if NAMES[targets.labels[b, m]] == "barrier":  # It looks the same from behind.
            turn = min(turn, (made.boxes[b, query, 6:8] + codes[b, m, 6:8]).abs().sum().item())
        box += difference[:6].sum().item() + turn
        velocity += difference[8:][known[b, m]].sum().item()
    p = made.classes.sigmoid()
    focal = torch.where(wanted == 1, -0.25 * (1 - p) ** 2 * p.log(), -0.75 * p**2 * (1 - p).log()).sum().item()
    assert found["box"].item() == pytest.approx(0.25 * box / 6, rel=1e-5)
    assert found["velocity"].item() == pytest.approx(0.25 * 0.2 * velocity / 6, rel=1e-5) and velocity > 0
    assert found["class"].item() == pytest.approx(focal / 6, rel=1e-5)
    total = sum(found[name].item() for name in ("heat", "class", "box", "velocity"))
    assert found["loss"].item() == pytest.approx(total, rel=1e-5)


def test_unknown_velocities_and_what_is_no_target_count_nothing():
    made, boxes = outputs(1), some_boxes(0, 4)
    for value in vars(made).values():
        if value.is_floating_point():
            value.requires_grad_()
    extra = [
        boxes.with_(centre=boxes.centre + torch.tensor([50.0, 0, 0])),
        boxes.with_(label=torch.full((4,), -1)),
        boxes.with_(label=torch.full((4,), 99)),
    ]
    plain = LOSS(made, pad_boxes([boxes]))
    more = LOSS(made, pad_boxes([Boxes3D.cat([boxes, *extra])]))
    for name, value in plain.items():
        torch.testing.assert_close(more[name], value)
    unknown = LOSS(made, pad_boxes([boxes.with_(velocity=torch.full((4, 2), math.nan))]))
    assert unknown["velocity"] == 0 and torch.equal(unknown["box"], plain["box"])
    nothing = LOSS(made, pad_boxes([Boxes3D.empty()]))
    assert nothing["box"] == 0 and nothing["heat"] > 0 and nothing["class"] > 0
    nothing["loss"].backward()
    assert made.boxes.grad is not None and made.boxes.grad.abs().sum() == 0
    assert all(value.grad.isfinite().all() for value in vars(made).values() if value.requires_grad)


def test_only_what_has_a_front_is_wrong_when_turned_around():
    boxes = some_boxes(0, 6).with_(velocity=torch.zeros(6, 2))
    codes, _ = encode_boxes(pad_boxes([boxes]).boxes)
    around, _ = encode_boxes(pad_boxes([boxes.with_(yaw=boxes.yaw + math.pi)]).boxes)
    sure = F.one_hot(boxes.label, KINDS)[None] * 40.0 - 20
    empty = torch.zeros(1, 6, dtype=torch.int64)
    made = FusionOutputs(torch.zeros(1, KINDS, ALONG_X, ALONG_Y), empty, empty, sure, around)
    for label, name in enumerate(NAMES):
        kept = boxes.label == label
        loss = LOSS(made, pad_boxes([boxes[kept]]))["box"].item()
        wrong = 0.25 * 2 * codes[0, kept, 6:8].abs().sum().item() / 2  # of two boxes
        assert loss == pytest.approx(0 if name == "barrier" else wrong, abs=1e-5)
    unnamed = FusionLoss(config=CONFIG, data=LOSS.data)
    assert unnamed(made, pad_boxes([boxes[boxes.label == 2]]))["box"] > 0.1
    # Which of its queries has a barrier is decided the same way.
    options = {"class_weight": 0.0, "centre_weight": 0.0, "box_weight": 1.0, "alpha": 0.25, "gamma": 2.0}
    cost = matching_cost(made, codes, boxes.label[None], **options, alike=boxes.label[None] == 2)
    own = cost[0].diagonal()
    assert (own[boxes.label == 2] < 1e-5).all() and (own[boxes.label != 2] > 0.5).all()


def test_barriers_labelled_either_way_keep_their_direction():
    """With both directions as often, the mean and the median of sine and cosine are 0, which is no direction."""
    yaw = torch.tensor([0.9, 0.9 - math.pi])
    size = torch.tensor([[0.5, 2.0, 1.0]])
    found, generator = {}, torch.Generator().manual_seed(0)
    for name in ("car", "barrier"):
        label = NAMES.index(name)
        boxes = [Boxes3D.from_arrays([[0.4, 0.4, 0.5]], size, [angle], [[0, 0]], label=[label]) for angle in yaw]
        targets = pad_boxes(boxes)
        code = encode_boxes(targets.boxes)[0][0, 0].clone()
        code[6:8] = 0.05 * torch.randn(2, generator=generator)
        code.requires_grad_()
        optimiser = torch.optim.SGD([code], lr=0.1)
        sure = (F.one_hot(torch.tensor([[label]]), KINDS) * 40.0 - 20).expand(2, -1, -1)
        empty = torch.zeros(2, 1, dtype=torch.int64)
        for _ in range(45):
            heat = torch.zeros(2, KINDS, ALONG_X, ALONG_Y)
            loss = LOSS(FusionOutputs(heat, empty, empty, sure, code.expand(2, 1, 10)), targets)
            optimiser.zero_grad()
            loss["box"].backward()
            optimiser.step()
        found[name] = code.detach()[6:8]
    away = torch.atan2(*found["barrier"]) - 0.9
    assert abs(math.sin(float(away))) < 0.1 and found["barrier"].norm() > 0.9
    assert found["car"].norm() < 0.3


def test_boxes_survive_encoding():
    boxes = some_boxes(3, 6)
    targets = pad_boxes([boxes])
    codes, known = encode_boxes(targets.boxes)
    assert torch.equal(known[0], boxes.velocity.isfinite())
    low = torch.tensor(LOSS.data.point_range[:2])
    at = ((boxes.centre[:, :2] - low) / (CONFIG.bev_stride * LOSS.data.pillar_size)).floor().long()
    sure = F.one_hot(boxes.label, KINDS)[None] * 40.0 - 20
    made = FusionOutputs(
        torch.full((1, KINDS, ALONG_X, ALONG_Y), 20.0), at[None, :, 0] * ALONG_Y + at[None, :, 1], boxes.label[None],
        sure, codes,
    )  # fmt: skip
    (found,) = decode(made, 10, 0.5)
    order = [int((found.centre[:, 0] == x).nonzero()[0, 0]) for x in boxes.centre[:, 0]]
    for name in ("centre", "size", "yaw", "label"):
        torch.testing.assert_close(getattr(found, name)[order], getattr(boxes, name), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.velocity[order], torch.nan_to_num(boxes.velocity))


def test_two_scenes_are_learnt():
    boxes = [some_boxes(0, 4), some_boxes(1, 3)]
    batch = DrivingBatch.from_samples([scene_with(one, seed) for seed, one in enumerate(boxes)])
    network = tiny("pape", blocks=["bev"], set_size=32, min_score=0.3).train()
    loss = FusionLoss(config=network.sizes, data=network.data_config)
    targets = pad_boxes(boxes)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=45)
    first = last = math.inf
    for step in range(45):
        optimiser.zero_grad()
        value = loss(network(batch), targets)["loss"]
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        last = value.item()
        first = last if step == 0 else first
    assert last < 0.15 * first
    with torch.no_grad():
        results = network.eval()(batch)
    for found, wanted in zip(results, boxes, strict=True):
        assert len(found) == len(wanted)
        distance = torch.cdist(found.centre[:, :2], wanted.centre[:, :2])
        best = distance.argmin(0)
        assert sorted(best.tolist()) == list(range(len(wanted))) and distance.amin(0).max() < 1.0  # a cell has 1.6
        assert torch.equal(found.label[best], wanted.label)
