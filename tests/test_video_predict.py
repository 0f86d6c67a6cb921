"""Prediction on videos: windows over time, results and their forms, folders, failures, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from training_toys import TINY, write_toys
from video_files import cut, frames, write_video

import zoo
from modalities.video import Clip, ClipResults
from modalities.video.batches import ClipInputs
from modalities.video.transforms import preprocess_clip
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError

NAME = "pape-video-vit-n-imagenette-motion"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    made = zoo.load(NAME, pretrained=False, **TINY, input_size=16)
    with torch.no_grad():
        made.head.weight.normal_(std=1.0)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 16 frames a second: of 3 s and of half a second; a text that is none."""
    root = tmp_path_factory.mktemp("videos")
    write_video(root / "long.mp4", 48, fps=16)
    write_video(root / "short.mkv", 8, fps=16)
    (root / "notes.txt").write_text("no video")
    return root


def test_a_video_gives_one_result_with_its_windows(model: Any, folder: Path) -> None:
    result = zoo.predictor(model, top_k=3)(folder / "long.mp4")
    assert isinstance(result, ClipResults) and len(result.indices) == 3
    assert result.windows_us == ((0, 1_000_000), (1_000_000, 2_000_000), (2_000_000, 3_000_000))
    assert result.time_us == (0, 3_000_000) and (result.size, result.truncated) == ((48, 64), False)
    whole = zoo.read(folder / "long.mp4", kind="clip")
    inputs = torch.cat([preprocess_clip(whole.frames[i : i + 16], model.data_config) for i in (0, 16, 32)])
    with torch.inference_mode():
        expected = model(inputs, None, torch.from_numpy(whole.times_s.reshape(3, 16))).softmax(1).numpy()
    assert result.probabilities == pytest.approx(expected, abs=1e-5)
    assert result.scores == pytest.approx(np.sort(expected.mean(0))[::-1][:3], abs=1e-5)
    assert result.label == model.config["labels"][expected.mean(0).argmax()]


def test_the_time_of_frames_reaches_the_model(model: Any) -> None:
    slow = Clip(frames(16), np.arange(16) / 4.0)
    fast = Clip(frames(16), np.arange(16) / 16.0)
    sampler = {"sampling": "uniform", "frame_rate": None}
    # In a single block the class token, which has no position, sees none either.
    uniform = zoo.load(NAME, pretrained=False, **{**TINY, "depth": 2}, input_size=16)
    uniform.head.load_state_dict(model.head.state_dict())
    uniform.data_config = uniform.data_config.replace(**sampler)
    seen: list[Any] = []
    uniform.register_forward_pre_hook(lambda _, inputs: seen.append(ClipInputs(*inputs)))
    results = zoo.predictor(uniform)([slow, fast])
    (inputs,) = seen
    assert inputs.times_s.dtype == torch.float64 and inputs.times_s.numpy()[:, -1].tolist() == [3.75, 15 / 16]
    assert torch.equal(inputs.clips[0], inputs.clips[1]) and results[0].probabilities != pytest.approx(
        results[1].probabilities, abs=1e-6
    )


def test_batches_do_not_change_results_and_streams_give_the_same(model: Any, folder: Path) -> None:
    predictor = zoo.predictor(model)
    whole = predictor(folder / "long.mp4", stride_s=0.25)
    assert len(whole.windows_us) == 9
    assert predictor(folder / "long.mp4", batch_size=2, stride_s=0.25).probabilities == pytest.approx(
        whole.probabilities, abs=1e-5
    )
    shares: list[float] = []
    stream = predictor(folder, stream=True, batch_size=2, progress=shares.append)
    found = {result.path.name: result for result in stream}
    assert set(found) == {"long.mp4", "short.mkv"} and shares == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert len(found["short.mkv"].windows_us) == 1
    assert [result.name for result in predictor(str(folder / "*.mkv"))] == [str(folder / "short.mkv")]
    with pytest.raises(DataError, match="holds no video"):
        predictor(folder.parent)


def test_results_in_every_form(model: Any, folder: Path, tmp_path: Path) -> None:
    predictor = zoo.predictor(model, top_k=2)
    result = predictor(folder / "long.mp4", stride_s=0.5)
    values = json.loads(result.to_json())
    assert len(values["predictions"]) == 2 and len(values["windows"]) == 5
    assert values["windows"][1]["start_us"] == 500_000 and len(values["windows"][1]["predictions"]) == 2
    table = result.to_pandas()
    assert list(table.columns) == list(predictor.columns) and len(table) == 10
    assert table["start_us"].tolist()[::2] == [0, 500_000, 1_000_000, 1_500_000, 2_000_000]
    assert table["score"][0] == pytest.approx(float(result.probabilities[0].max()))
    text = str(result)
    assert "over time:" in text and result.label in text
    stretches = result.stretches()
    assert stretches[0][0] == 0 and stretches[-1][1] == 3_000_000
    assert [stretch[2] for stretch in stretches] == [
        label
        for label, before in zip([s[2] for s in stretches], [None, *(s[2] for s in stretches)], strict=False)
        if label != before
    ]
    single = predictor(folder / "short.mkv")
    assert "over time" not in str(single)
    picture, other = result.plot(), single.plot()
    assert picture.height > other.height and picture.width == other.width
    assert np.asarray(picture).std() > 10
    assert result.save(tmp_path / "new" / "plot.png").is_file()
    with pytest.raises(DataError, match="a video is made of an event recording"):
        result.save(tmp_path / "plot.mp4")


def test_damaged_videos_are_used_as_far_as_they_go_or_refused(model: Any, tmp_path: Path) -> None:
    path = cut(write_video(tmp_path / "a.mp4", 48, fps=16, options={"movflags": "faststart"}), 0.8)
    predictor = zoo.predictor(model)
    with pytest.warns(UserWarning, match="damaged"):
        assert predictor(path).truncated
    with pytest.raises(DataError, match="damaged"):
        predictor(path, errors="raise")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.warns(UserWarning, match="damaged"):
        found = predictor([path, tmp_path / "text.mp4"], on_error="skip")
    assert [result.path for result in found] == [path]
    assert [failure.name for failure in predictor.failures] == [str(tmp_path / "text.mp4")]


def test_options_are_checked(model: Any, folder: Path) -> None:
    predictor = zoo.predictor(model)
    for options, match in (({"stride_s": 0}, "stride_s must be"), ({"frame": 1}, "unknown option 'frame'")):
        with pytest.raises(ConfigError, match=match):
            predictor(folder / "long.mp4", **options)
    with pytest.raises(ConfigError, match="save to a folder"):
        predictor.video("out.mp4")
    assert (predictor.kind, predictor.columns[-2:]) == ("clip", ("start_us", "end_us"))
    assert len(predictor(frames(20), fps=10).windows_us) == 2


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: Any, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        assert "Traceback" not in err
        return out, err

    return call


@pytest.fixture(scope="module")
def name(model: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    zoo.save(model, folder)
    return f"local-dir:{folder}"


def test_predict_at_the_command_line(name: str, folder: Path, tmp_path: Path, run: Any) -> None:
    out, err = run("predict", name, folder, folder / "notes.txt", "--json", "--save", tmp_path / "out", code=2)
    assert "notes.txt" in err and [len(video["windows"]) for video in json.loads(out)] == [3, 1]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["long.png", "short.png"]
    out, _ = run("predict", name, folder / "long.mp4", "--csv", "--top-k", 1, "--stride-ms", 500)
    lines = out.splitlines()
    assert lines[0] == "source,rank,index,label,score,start_us,end_us" and len(lines) == 6
    out, _ = run("predict", name, folder / "long.mp4")
    assert "over time:" in out
    assert "save to a folder" in run("predict", name, folder / "long.mp4", "--save", tmp_path / "a.mp4", code=2)[1]


def test_eval_at_the_command_line(name: str, tmp_path: Path, run: Any) -> None:
    toys, report = write_toys(tmp_path / "toys", train=4, validation=4), tmp_path / "report.json"
    evaluation = ("eval", name, "--data", toys, "--sizes", "16,32", "--quiet", "--out", report)
    out, _ = run(*evaluation)
    assert "measured on" in out
    assert [row["size"] for row in json.loads(report.read_text())["results"]] == [16, 32]
    assert "leave out fold, clips and crops" in run(*evaluation, "--clips", 2, code=2)[1]
