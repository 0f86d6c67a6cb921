"""Pictures under camera motions: what each class does, what a single frame tells, and that clips follow from a seed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from modalities.video.data_config import VideoDataConfig
from modalities.video.motion import MotionClips, draw_states, render
from modalities.video.motion_evaluate import Condition, conditions, filmed
from modalities.video.presets import MOTION_DATA, MOTIONS
from zoo.errors import ConfigError, DataError

SIZE = 32


def pictures(count: int, side: int = 64, seed: int = 0) -> torch.Tensor:
    """Smooth noise, uint8 (count, 3, side, side)."""
    coarse = torch.rand(count, 3, 9, 9, generator=torch.Generator().manual_seed(seed))
    return (255 * F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)).to(torch.uint8)


def all_motions(seed: int = 0) -> MotionClips:
    """The ten classes with the same draws."""
    draws = draw_states(1, seed).draws
    return MotionClips(torch.arange(len(MOTIONS)), draws.expand(len(MOTIONS), -1))


def filmed_alike(seed: int = 0, frames: int = 9, rate: float = 8.0) -> dict[str, torch.Tensor]:
    scene = pictures(1, seed=seed).expand(len(MOTIONS), -1, -1, -1)
    clips = render(scene, all_motions(seed), size=SIZE, frames=frames, frame_rate=rate)
    return dict(zip(MOTIONS, clips, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_the_first_frame_is_the_same_for_every_class(seed: int) -> None:
    clips = filmed_alike(seed)
    for name, clip in clips.items():
        assert torch.equal(clip[:, 0], clips["still"][:, 0]), name
        assert name == "still" or (clip[:, 3] - clip[:, 0]).abs().mean() > 0.5, name
    still = clips["still"]
    assert (still == still[:, :1]).all()


@pytest.mark.parametrize(("name", "down", "right"), [("left", 0, 4), ("right", 0, -4), ("up", 4, 0), ("down", -4, 0)])
def test_panning_moves_the_picture_the_other_way(name: str, down: int, right: int) -> None:
    speed = 0.2 * 4 ** float(draw_states(1, 3).draws[0, 5])  # Views a second.
    clip = filmed_alike(3, frames=2, rate=speed * SIZE / 4)[f"pan-{name}"]  # Four pixels from frame to frame.
    inside = (slice(None), slice(4, -4), slice(4, -4))
    moved = clip[:, 0].roll((down, right), dims=(1, 2))
    assert torch.allclose(moved[inside], clip[:, 1][inside], atol=0.1)


def test_zooming_and_turning_are_about_the_middle_and_opposite() -> None:
    clips = filmed_alike(1, frames=5, rate=8.0)
    first = clips["still"][:, 0]
    grid = torch.stack(torch.meshgrid(*[(torch.arange(SIZE) + 0.5) * 2 / SIZE - 1] * 2, indexing="xy"), -1)

    def seen(scale: float, angle: float) -> torch.Tensor:
        """The first frame, as it would be seen closer and turned clockwise by an angle."""
        turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        return F.grid_sample(first[None], (grid @ turn / scale)[None], align_corners=False)[0]

    middle = (slice(None), slice(10, -10), slice(10, -10))
    draws = draw_states(1, 1).draws[0, 5]
    zoom = math.exp(0.5 * math.exp(math.log(0.2) + math.log(3) * float(draws)))
    turn = 0.5 * math.radians(25) * 4 ** float(draws)
    for name, scale, angle in (("zoom-in", zoom, 0.0), ("rotate-left", 1.0, turn), ("rotate-right", 1.0, -turn)):
        right = (clips[name][:, 4] - seen(scale, angle))[middle].abs().mean()
        wrong = (clips[name][:, 4] - seen(1 / scale, -angle))[middle].abs().mean()
        assert right < 0.4 * wrong, name
    # What is seen in the middle after zooming out is smaller than at first.
    last = F.interpolate(clips["zoom-out"][None, :, 4], scale_factor=zoom, mode="bilinear")[0]
    cut = (last.shape[1] - SIZE) // 2
    error = (last[:, cut : cut + SIZE, cut : cut + SIZE] - first)[middle].abs().mean()
    assert error < 0.4 * (clips["zoom-out"][:, 4] - first)[middle].abs().mean()


def test_shaking_stays_near_where_it_began() -> None:
    clip = filmed_alike(2, frames=33, rate=16.0)["shake"]
    moved = (clip - clip[:, :1]).abs().mean((0, 2, 3))
    panned = filmed_alike(2, frames=33, rate=16.0)["pan-left"]
    assert moved[1:].min() > 0 and moved.max() < (panned - panned[:, :1]).abs().mean((0, 2, 3)).max()


def test_frames_tell_nothing_of_the_class_but_zoom_at_the_end() -> None:
    """A linear reading of place, angle and zoom of later frames: their distribution is that of other classes."""
    from modalities.video.motion import _camera

    clips = draw_states(20_000, 5, balanced=True)
    centre, angle, view = _camera(clips, torch.tensor([0.0, 1.0]))
    for moment in (0, 1):
        for label in range(len(MOTIONS)):
            rows = clips.labels == label
            for values, period in (
                (centre[rows, moment, 0], 4.0),
                (centre[rows, moment, 1], 4.0),
                (angle[rows, moment], 2 * math.pi),
            ):
                turns = 2 * math.pi * values / period
                # Uniform over the period: the mean of n unit vectors is about n^-1/2 long.
                assert float(torch.hypot(turns.cos().mean(), turns.sin().mean())) < 4 / math.sqrt(int(rows.sum()))
            others = MOTIONS[label] not in ("zoom-in", "zoom-out")
            if others or moment == 0:
                assert float(view[rows, moment].log().mean()) == pytest.approx(float(view[:, 0].log().mean()), abs=0.03)


def test_clips_follow_from_seed_and_number_alone() -> None:
    many, few = draw_states(50, 7), draw_states(20, 7)
    assert torch.equal(many.draws[:20], few.draws) and torch.equal(many.labels[:20], few.labels)
    assert not torch.equal(draw_states(20, 8).draws, few.draws)
    assert draw_states(20, 7, balanced=True).labels.tolist() == [*range(10)] * 2
    scene = pictures(20)
    whole = render(scene, few, size=SIZE, frames=4, frame_rate=8.0)
    again = render(scene[5:9], few[slice(5, 9)], size=SIZE, frames=4, frame_rate=8.0)
    assert torch.allclose(whole[5:9], again, atol=1e-3)
    assert len(torch.unique(draw_states(500, 0).labels)) == 10


def test_the_same_scene_longer_larger_and_faster() -> None:
    scene, clips = pictures(10), draw_states(10, 1, balanced=True)
    base = render(scene, clips, size=SIZE, frames=8, frame_rate=8.0)
    longer = render(scene, clips, size=SIZE, frames=16, frame_rate=8.0)
    faster = render(scene, clips, size=SIZE, frames=16, frame_rate=16.0)
    larger = render(scene, clips, size=2 * SIZE, frames=8, frame_rate=8.0)
    assert torch.equal(longer[:, :, :8], base)
    assert torch.allclose(faster[:, :, ::2], base, atol=1e-2)
    assert larger.shape == (10, 3, 8, 2 * SIZE, 2 * SIZE)
    shrunk = F.avg_pool3d(larger, (1, 2, 2))
    assert (shrunk - base).abs().mean() < 0.05 * base.std()


def test_finer_pictures_are_made_smaller_before_they_are_filmed() -> None:
    noise = torch.randint(0, 256, (4, 3, 256, 256), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    clip = render(noise, draw_states(4, 0), size=32, frames=2, frame_rate=8.0)
    assert clip.std() < 0.5 * noise.float().std()  # Not aliased: neighbours were averaged.


def test_what_cannot_be_filmed_is_refused() -> None:
    clips = draw_states(2, 0)
    for about in ({"size": 0, "frames": 2, "frame_rate": 1.0}, {"size": 8, "frames": 2, "frame_rate": 0.0}):
        with pytest.raises(ConfigError, match="cannot be drawn"):
            render(pictures(2), clips, **about)  # type: ignore[arg-type]
    for bad in (pictures(3), torch.zeros(2, 3, 8, 9)):
        with pytest.raises(DataError, match="expected 2 square pictures"):
            render(bad, clips, size=8, frames=2, frame_rate=1.0)
    with pytest.raises(ConfigError, match="square and at a stated frame rate"):
        filmed(VideoDataConfig(input_size=(3, 64, 96), frame_rate=8.0))
    with pytest.raises(ConfigError, match="square and at a stated frame rate"):
        filmed(VideoDataConfig(input_size=(3, 64, 64)))


def test_models_are_measured_as_trained_longer_larger_and_at_other_rates() -> None:
    data = VideoDataConfig.from_dict(MOTION_DATA)
    found = conditions(data, data.tubelet)
    assert found[0] == Condition(64, 16, 16.0) and str(found[0]) == "16 frames at 16 a second"
    assert {(c.size, c.frames, c.frame_rate) for c in found[1:]} == {
        (64, 32, 16.0),
        (96, 16, 16.0),
        (128, 16, 16.0),
        (64, 8, 8.0),
        (64, 32, 32.0),
    }
    assert conditions(data, data.tubelet, [96]) == [Condition(96, 16, 16.0)]
