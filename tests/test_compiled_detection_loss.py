"""The compiled detection loss: the eager one in fewer kernels, or the eager one and a warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_detection_loss import STRIDES, random_maps, random_objects

from zoo.detection.compiled_loss import CompiledDetectionLoss, detection_loss
from zoo.detection.loss import DetectionLoss
from zoo.detection.targets import Targets


def problem(counts=(4, 0, 9), device="cpu"):
    samples = [random_objects(count, seed) for seed, count in enumerate(counts)]
    maps = random_maps(len(counts), dtype=torch.float32)
    maps = {branch: [level.to(device).requires_grad_() for level in levels] for branch, levels in maps.items()}
    return maps, Targets.collate([(boxes.float(), labels) for boxes, labels in samples], 5).to(device)


def losses_and_gradients(loss, maps, targets):
    losses = loss(maps, targets)
    leaves = [level for levels in maps.values() for level in levels]
    return losses, torch.autograd.grad(losses["loss"], leaves)


def assert_as_eager(loss, maps, targets):
    ours, gradients = losses_and_gradients(loss, maps, targets)
    eager, expected = losses_and_gradients(DetectionLoss(STRIDES), maps, targets)
    assert ours.keys() == eager.keys()
    for name, value in eager.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-7)


def test_it_is_taken_on_cuda_for_compiled_training_alone():
    loss = DetectionLoss(STRIDES)
    assert detection_loss(loss, compiled=True, device="cpu") is loss
    assert detection_loss(loss, compiled=False, device="cuda") is loss
    assert isinstance(detection_loss(loss, compiled=True, device=torch.device("cuda:0")), CompiledDetectionLoss)


def test_after_the_check_it_is_the_compiled_one():
    loss = CompiledDetectionLoss(DetectionLoss(STRIDES), backend="eager")
    maps, targets = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_as_eager(loss, maps, targets)
        assert_as_eager(loss, *problem((2, 1, 1)))
    assert loss.chosen is loss.compiled


@pytest.mark.parametrize("fault", ["value", "gradient", "error", "nan"])
def test_a_compiler_that_errs_costs_a_warning_only(fault):
    def backend(graph, inputs):
        def run(*inputs):
            if fault == "error":
                raise RuntimeError("no such kernel")
            outputs = graph(*inputs)
            if fault == "gradient":  # the values stay
                return [o + 0.5 * (o - o.detach()) if o.requires_grad else o for o in outputs]
            return [o * (1.01 if fault == "value" else torch.nan) for o in outputs]

        return run

    loss = CompiledDetectionLoss(DetectionLoss(STRIDES), backend=backend)
    maps, targets = problem()
    with pytest.warns(UserWarning, match="without the compiled detection loss"):
        assert_as_eager(loss, maps, targets)
    assert loss.chosen is loss.eager


@pytest.mark.gpu
def test_on_a_gpu_it_has_fewer_kernels():
    loss = CompiledDetectionLoss(DetectionLoss(STRIDES))
    maps, targets = problem(device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_as_eager(loss, maps, targets)
    assert loss.chosen is loss.compiled

    def kernels(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            losses_and_gradients(call, maps, targets)
            torch.cuda.synchronize()
        return sum(event.count for event in profile.key_averages())

    assert 3 * kernels(loss) < kernels(loss.eager)
