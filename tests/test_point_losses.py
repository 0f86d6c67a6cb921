"""Losses and metrics of segmentation against definitions in float64, and torchmetrics where it has the same ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from modalities.points.losses import SegmentationLoss, cross_entropy, lovasz_softmax
from modalities.points.metrics import ConfusionMatrix
from zoo.errors import DataError


def drawn(points: int = 40, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(points, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes - 1, (points,), generator=generator)  # The last class is absent.


def jaccard_loss(wrong: np.ndarray, truth: np.ndarray) -> float:
    """Jaccard loss of a class when the points `wrong` are taken for the other side (equation 6 of the paper)."""
    found = truth != wrong
    union = (truth | found).sum()
    return 1 - (truth & found).sum() / union if union else 0.0


def reference(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The Lovasz extension by its definition: sum of m_i (f(i first points) - f(i - 1 first points))."""
    probability = logits.softmax(1).numpy()
    losses = []
    for c in range(logits.shape[1]):
        truth = labels.numpy() == c
        if not truth.any():
            continue
        errors = np.where(truth, 1 - probability[:, c], probability[:, c])
        order, wrong, before, total = np.argsort(-errors), np.zeros(len(truth), bool), 0.0, 0.0
        for i in order:
            wrong[i] = True
            after = jaccard_loss(wrong, truth)
            total, before = total + errors[i] * (after - before), after
        losses.append(total)
    return float(np.mean(losses))


@pytest.mark.parametrize("seed", range(3))
def test_lovasz_softmax_is_the_extension_of_the_jaccard_loss(seed: int) -> None:
    logits, labels = drawn(seed=seed)
    assert lovasz_softmax(logits, labels).item() == pytest.approx(reference(logits, labels), rel=1e-12)


def test_lovasz_softmax_of_hard_predictions_is_one_minus_the_iou() -> None:
    for guess in itertools.islice(itertools.product(range(3), repeat=5), 0, None, 17):
        labels = torch.tensor([0, 0, 1, 2, 2])
        logits = 1e4 * F.one_hot(torch.tensor(guess), 3).double()
        counts = ConfusionMatrix(3)
        counts.update(torch.tensor(guess), labels)
        assert lovasz_softmax(logits, labels).item() == pytest.approx(1 - counts.iou().mean() / 100, abs=1e-9)


def test_ignored_points_change_neither_loss_nor_gradient() -> None:
    logits, labels = drawn()
    extra = torch.cat([logits, 5 * torch.randn(7, 4, dtype=torch.float64)]).requires_grad_()
    alone = logits.clone().requires_grad_()
    known = torch.cat([labels, torch.full((7,), 255)])
    loss = SegmentationLoss(255, 0.1)
    one, other = loss(alone, labels), loss(extra, known)
    assert one.keys() == other.keys() == {"loss", "cross_entropy", "lovasz"}
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-12, atol=0)
    one["loss"].backward()
    other["loss"].backward()
    torch.testing.assert_close(extra.grad[:40], alone.grad, rtol=1e-10, atol=1e-14)
    assert not extra.grad[40:].any()
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(one["cross_entropy"].detach(), expected)
    assert SegmentationLoss(255, lovasz=0)(logits, labels).keys() == {"loss"}


def test_gradient_of_the_lovasz_loss_is_right_and_all_ignored_is_zero() -> None:
    logits, labels = drawn(12)
    assert torch.autograd.gradcheck(lambda x: lovasz_softmax(x, labels), (logits.requires_grad_(),))
    nothing = torch.full((12,), -1)
    total = cross_entropy(logits, nothing, ignore_label=-1) + lovasz_softmax(logits, nothing, ignore_label=-1)
    total.backward()
    assert total.item() == 0 and not logits.grad.any()


def test_16_bit_logits_are_widened() -> None:
    logits, labels = drawn()
    half = logits.bfloat16()
    assert lovasz_softmax(half, labels).dtype == cross_entropy(half, labels).dtype == torch.float32
    torch.testing.assert_close(lovasz_softmax(half, labels), lovasz_softmax(half.float(), labels))


def test_metrics_equal_those_of_torchmetrics() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=generator)
    predicted = torch.where(torch.rand(200, generator=generator) < 0.6, labels, (labels + 1) % 4)
    labels[::9] = 255
    counts = ConfusionMatrix(4)
    for part in range(0, 200, 50):
        counts.update(predicted[part : part + 50], labels[part : part + 50])
    options = {"num_classes": 4, "ignore_index": 255}
    matrix = classification.MulticlassConfusionMatrix(**options)(predicted, labels)
    assert (counts.counts == matrix.numpy()).all()
    for average, value in (("micro", counts.overall_accuracy()), ("macro", counts.mean_accuracy())):
        expected = classification.MulticlassAccuracy(**options, average=average)(predicted, labels)
        assert value == pytest.approx(100 * expected.item(), rel=1e-6)
    expected = classification.MulticlassJaccardIndex(**options, average="none")(predicted, labels)
    np.testing.assert_allclose(counts.iou(), 100 * expected.numpy(), rtol=1e-6)


def test_absent_classes_do_not_count_but_false_predictions_do() -> None:
    counts = ConfusionMatrix(4)
    counts.update(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1, 1]))
    assert counts.iou().tolist()[:3] == [100, 50, 0] and np.isnan(counts.iou()[3])
    assert counts.mean_iou() == 50 and counts.mean_accuracy() == 75 and counts.overall_accuracy() == 75
    scores = counts.segmentation(["a", "b", "c", "d"])
    assert scores == {"miou": 50, "macc": 75, "accuracy": 75, "iou/a": 100, "iou/b": 50, "iou/c": 0}


def test_bad_input_of_metrics() -> None:
    counts = ConfusionMatrix(2)
    with pytest.raises(DataError, match="no point counts"):
        counts.mean_iou()
    counts.update(torch.tensor([0, 1]), torch.tensor([255, 255]))
    with pytest.raises(DataError, match="no point counts"):
        counts.overall_accuracy()
    with pytest.raises(DataError, match="predictions for"):
        counts.update(torch.tensor([0]), torch.tensor([0, 1]))
