"""Reading videos: containers, times, rotation, chosen frames, and files that are damaged or no videos."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")

from video_files import SIZE, cut, frames, numbers, turned, write_sound, write_video

import zoo
from modalities.video import ClipReader, open_clip
from modalities.video.clip import Clip
from modalities.video.decode import Decoder
from zoo.errors import ConfigError, DataError


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".mov", ".webm", ".gif"])
def test_every_container_gives_frames_and_times(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"a{suffix}", 20, fps=10)
    clip = zoo.read(path, kind="clip")
    assert clip.frames.shape == (20, *SIZE, 3) and clip.frames.dtype == np.uint8
    assert clip.times_s.dtype == np.float64 and clip.times_s == pytest.approx(np.arange(20) / 10, abs=2e-3)
    assert (clip.path, clip.name, clip.truncated, clip.size) == (path, str(path), False, SIZE)
    if suffix != ".gif":  # Eight bits a pixel are too few for the brightness.
        assert numbers(clip.frames).tolist() == list(range(20))
    assert zoo.read(path.read_bytes(), kind="clip").frames.shape == clip.frames.shape


def test_a_path_with_a_video_suffix_is_a_clip_and_a_gif_a_picture(tmp_path: Path) -> None:
    assert isinstance(zoo.read(write_video(tmp_path / "a.mp4", 3)), Clip)
    assert zoo.read(write_video(tmp_path / "a.gif", 3)).rgb.shape == (*SIZE, 3)


def test_variable_frame_rate_keeps_the_times_of_the_file(tmp_path: Path) -> None:
    times = np.cumsum([0, 40, 40, 500, 10, 10, 10, 200, 40, 1000])
    path = write_video(tmp_path / "a.mkv", 10, times_ms=times.tolist())
    clip = zoo.read(path, kind="clip")
    assert clip.times_s == pytest.approx(times / 1000, abs=1e-9) and not clip.truncated
    part = zoo.read(path, kind="clip", start_s=0.5, end_s=0.7)
    assert numbers(part.frames).tolist() == [3, 4, 5, 6] and part.times_s == pytest.approx(times[3:7] / 1000)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_of_the_file_is_applied(tmp_path: Path, degrees: int, mirrored: bool) -> None:
    plain = write_video(tmp_path / "a.mp4", 3)
    expected = np.rot90(zoo.read(plain, kind="clip").frames, -degrees // 90, axes=(1, 2))
    expected = expected[:, :, ::-1] if mirrored else expected
    reader = open_clip(turned(plain, degrees, mirrored))
    assert reader.size == expected.shape[1:3]
    assert (reader.read_all().frames == expected).all()
    assert (reader.at(np.array([2])).frames[0] == expected[2]).all()


def test_odd_sizes(tmp_path: Path) -> None:
    clip = zoo.read(write_video(tmp_path / "a.mp4", 4, size=(35, 51)), kind="clip")
    assert clip.frames.shape == (4, 35, 51, 3) and numbers(clip.frames).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_chosen_frames_are_those_of_the_whole_without_decoding_it(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / f"a{suffix}", 44, key_every=4)
    whole = zoo.read(path, kind="clip")
    decoded = []
    convert = Decoder.frames
    monkeypatch.setattr(Decoder, "frames", lambda self: (decoded.append(1) or frame for frame in convert(self)))  # type: ignore[func-returns-value]
    wanted = np.array([40, 3, 3, 1, 22])
    clip = open_clip(path).at(wanted)
    assert (clip.frames == whole.frames[wanted]).all() and clip.times_s == pytest.approx(whole.times_s[wanted])
    assert len(decoded) < 30  # Of 44: what lies between is skipped.
    with pytest.raises(DataError, match="of 44 asked for"):
        open_clip(path).at(np.array([44]))


def test_windows_are_decoded_once_in_order(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    positions = [np.arange(0, 8), np.arange(4, 12), np.array([20, 20, 29])]
    found = list(open_clip(path).windows(positions))
    assert [numbers(clip.frames).tolist() for clip in found] == [part.tolist() for part in positions]


def test_memory_stays_bounded_when_a_long_file_is_read_frame_by_frame(tmp_path: Path) -> None:
    size = (240, 320)
    path = write_video(tmp_path / "a.mp4", pixels=np.zeros((60, *size, 3), np.uint8))
    reader = open_clip(path)
    assert len(reader) == 60 and reader.duration_s == pytest.approx(5)
    tracemalloc.start()
    assert sum(1 for _ in reader.frames()) == 60
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * size[0] * size[1] * 3  # A few frames, not 60.
    with pytest.raises(DataError, match=r"60 frames of 320 x 240 pixels take .* GiB, the limit is .*start_s"):
        zoo.read(path, kind="clip", max_bytes=10 * size[0] * size[1] * 3)


def test_reading_from_a_time_starts_there(tmp_path: Path) -> None:
    reader = open_clip(write_video(tmp_path / "a.mp4", 24, fps=12))
    assert [round(12 * frame.time_s) for frame in reader.frames(start_s=1.0, end_s=1.5)] == list(range(12, 18))
    assert list(reader.frames(start_s=99.0)) == []
    with pytest.raises(DataError, match=r"no frames from 99 s; the video lasts 2\.000 s"):
        reader.read_all(start_s=99.0)


@pytest.mark.parametrize(("suffix", "share"), [(".mp4", 0.8), (".avi", 0.85), (".mkv", 0.7)])
def test_the_decodable_part_of_a_truncated_file_is_used_with_a_warning(
    tmp_path: Path, suffix: str, share: float
) -> None:
    options = {"movflags": "faststart"} if suffix == ".mp4" else {}
    path = cut(write_video(tmp_path / f"a{suffix}", 40, options=options), share)
    with pytest.warns(UserWarning, match=rf"cut-a{suffix}: the video is damaged"):
        clip = zoo.read(path, kind="clip")
    assert clip.truncated and 0 < len(clip) < 40
    assert numbers(clip.frames)[: len(clip) - 3].tolist() == list(range(len(clip) - 3))
    with pytest.raises(DataError, match=rf"cut-a{suffix}: the video is damaged"):
        zoo.read(path, kind="clip", errors="raise")


def test_a_whole_file_gives_no_warning(tmp_path: Path) -> None:
    for suffix in (".mp4", ".avi", ".mkv", ".webm"):
        path = write_video(tmp_path / f"a{suffix}", 17)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(zoo.read(path, kind="clip", errors="raise")) == 17


def test_what_stands_in_for_frames_that_a_truncated_file_lacks(tmp_path: Path) -> None:
    reader = open_clip(cut(write_video(tmp_path / "a.mp4", 40, options={"movflags": "faststart"}), 0.8))
    last = len(reader) - 1
    with pytest.warns(UserWarning, match="damaged"):
        (clip,) = reader.windows([np.array([0, 1, last])])
    assert numbers(clip.frames)[:2].tolist() == [0, 1] and clip.frames.shape[0] == 3


def test_files_that_are_no_videos(tmp_path: Path) -> None:
    bad = {
        "text.mp4": b"hello",
        "empty.mp4": b"",
        "lfs.mp4": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "noise.avi": np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes(),
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            zoo.read(tmp_path / name, kind="clip")
    with pytest.raises(DataError, match="the file is empty"):
        zoo.read(tmp_path / "empty.mp4", kind="clip")
    with pytest.raises(DataError, match="Git LFS pointer"):
        zoo.read(tmp_path / "lfs.mp4", kind="clip")
    with pytest.raises(DataError, match=r"sound\.m4a: holds no video stream \(audio alone\)"):
        zoo.read(write_sound(tmp_path / "sound.m4a"), kind="clip")
    with pytest.raises(DataError, match="no such file"):
        zoo.read(tmp_path / "absent.mp4")


def test_a_file_with_a_stream_but_no_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "none.mkv", pixels=np.zeros((0, *SIZE, 3), np.uint8))
    with pytest.raises(DataError, match=r"none\.mkv"):
        zoo.read(path, kind="clip")
    full = write_video(tmp_path / "a.mkv", 10)
    with pytest.raises(DataError, match=r"cut-a\.mkv"):
        zoo.read(cut(full, 0.05), kind="clip")


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    ],
)
def test_a_list_of_other_files_or_addresses_is_not_followed(tmp_path: Path, text: str) -> None:
    other = write_video(tmp_path / "other.mp4", 3)
    listed = tmp_path / "list.mp4"
    listed.write_text(text.format(path=other))
    with pytest.raises(DataError, match="not a video that can be read"):
        zoo.read(listed, kind="clip")


def test_flipped_bytes_end_in_frames_or_in_an_error_of_ours(tmp_path: Path) -> None:
    data = write_video(tmp_path / "a.mp4", 12, options={"movflags": "faststart"}).read_bytes()
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(25):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 12):
            broken[place] = int(rng.integers(256))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcomes.add(zoo.read(bytes(broken), kind="clip").frames.ndim)
            except DataError:
                outcomes.add("error")
    assert outcomes <= {4, "error"} and 4 in outcomes


def test_frames_in_memory(tmp_path: Path) -> None:
    import torch

    pixels = frames(6)
    clip = zoo.read(pixels, kind="clip", fps=2)
    assert (clip.frames == pixels).all() and clip.times_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert zoo.read(clip, kind="clip") is clip
    assert (zoo.read(torch.from_numpy(pixels), kind="clip").frames == pixels).all()
    for bad in (pixels[0], pixels.astype(np.float32), pixels.transpose(0, 3, 1, 2), pixels[:0], "x" * 3, [pixels]):
        with pytest.raises(DataError):
            zoo.read(bad, kind="clip")
    with pytest.raises(ConfigError, match="fps is for frames in memory"):
        zoo.read(write_video(tmp_path / "a.mp4", 2), kind="clip", fps=3)
    with pytest.raises(ConfigError, match="start_s must be"):
        zoo.read(tmp_path / "a.mp4", kind="clip", start_s=-1)
    with pytest.raises(ConfigError, match='errors must be "raise" or "keep"'):
        ClipReader(b"", "x", errors="ignore")
