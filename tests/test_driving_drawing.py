"""Pictures of key frames: where boxes, points and absent sensors are drawn, and the commands that write them."""

from __future__ import annotations

import csv
import io
import json
import zipfile

import numpy as np
import PIL.Image
import pytest
import torch
from driving_frames import TOKENS, detector
from driving_tables import write_drive

import zoo
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import EDGES, MIN_DEPTH, image_boxes, project, project_segments
from modalities.driving.nuscenes.classes import DETECTION_CLASSES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.scene import Camera, Sample
from modalities.driving.sheet import OTHER, Layer, SceneSheet
from modalities.driving.submission import read_submission
from modalities.driving.viz import key_frame_picture, truth_layer
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError

RED, WHITE = (255, 0, 0), (255, 255, 255)
FORWARD = np.array([[0.0, -1, 0, 0], [0, 0, -1, 1.5], [1, 0, 0, 0], [0, 0, 0, 1]])  # from 1.5 m above the ego origin
BACKWARD = FORWARD @ np.diag([-1.0, -1, 1, 1])
INTRINSICS = np.array([[320.0, 0, 319.5], [0, 320, 179.5], [0, 0, 1]])


def frame(points=None, **images) -> Sample:
    """A key frame with a grey picture ahead and behind, of the size of its panels."""
    grey = np.full((360, 640, 3), 128, np.uint8)
    cameras = [
        Camera(name, images.get(name, grey), INTRINSICS, pose, size=(360, 640))
        for name, pose in (("CAM_FRONT", FORWARD), ("CAM_BACK", BACKWARD))
    ]
    return Sample("token", 0, tuple(cameras), points)


def box(x: float, y: float = 0.0, yaw: float = 0.0, velocity=(np.nan, np.nan), size=(4.0, 2.0, 1.5)) -> Boxes3D:
    return Boxes3D.from_arrays([[x, y, size[2] / 2]], [size], [yaw], [velocity], [0])


def painted(sample: Sample, boxes: Boxes3D, **options) -> tuple[SceneSheet, np.ndarray]:
    """The sheet, and where it differs from one without the boxes."""
    sheet = SceneSheet(sample, **options)
    with_boxes = sheet.paint([])
    sheet.draw(with_boxes, [Layer(boxes, ("car",), "x", width=1)])
    return sheet, (np.asarray(with_boxes) != np.asarray(sheet.paint([]))).any(2)


def where(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Smallest and largest column and row that are True, x1, y1, x2, y2."""
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max(), rows.max()


def test_a_box_is_drawn_where_it_is():
    sheet, mask = painted(frame(), box(12, 1.5, yaw=0.4))
    front, back = sheet.panels
    assert (front.left, front.top, front.height, front.scale) == (0, 0, 360, 1.0) and (back.left, back.top) == (0, 364)
    expected = image_boxes(
        box(12, 1.5, yaw=0.4).corners().double(), torch.from_numpy(FORWARD), torch.from_numpy(INTRINSICS), (360, 640)
    )[0]
    np.testing.assert_allclose(where(mask[:360, :640]), expected, atol=1.5)
    assert not mask[360:, : sheet.view_left].any()  # Nothing behind.
    corners = sheet.pixels(box(12, 1.5, yaw=0.4).corners()[0, :4, :2].double().numpy())
    view = mask[: sheet.view, sheet.view_left :]
    np.testing.assert_allclose(where(view), [*corners.min(0), *corners.max(0)], atol=1.5)
    # Ahead is up, left is left; the front of the box is marked by a line from its middle.
    middle = sheet.pixels(np.array([0.0, 0.0]))
    assert where(view)[3] < middle[1] and where(view)[0] < 2 * middle[0] - where(view)[2]
    sheet, mask = painted(frame(), box(-12))
    assert not mask[:360, : sheet.view_left].any() and mask[364:724, : sheet.view_left].any()


def test_arrows_say_how_fast():
    plain, slow, fast = (
        where(painted(frame(), box(12, velocity=v))[1][:, 644:]) for v in ((np.nan, np.nan), (0.3, 0), (10, 0))
    )
    assert plain == slow and fast[1] < plain[1] - 40 and fast[3] == plain[3]


def test_boxes_around_the_camera_leave_finite_lines():
    """Also one that the camera is in, and ones that pass it on both sides."""
    boxes = Boxes3D.cat([box(0, size=(9, 3, 3)), box(0.2, 1.2), box(1, -1.1, yaw=1.5), box(0, 0, size=(300, 300, 4))])
    _, mask = painted(frame(), boxes)
    assert mask[:360, :640].any() and mask[364:724, :640].any()
    empty = painted(frame(), box(400))[1]
    assert not empty[:, 644:].any()  # Beyond the reach of the view; the camera sees it as a dot.


def test_segments_are_cut_at_the_camera():
    generator = torch.Generator().manual_seed(0)
    segments = torch.randn(200, 2, 3, generator=generator, dtype=torch.float64) * 4
    pose, intrinsics = torch.from_numpy(FORWARD), torch.from_numpy(INTRINSICS)
    pixels, front = project_segments(segments, pose, intrinsics)
    assert pixels.isfinite().all() and 20 < int(front.sum()) < 180
    share = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    for number in range(0, 200, 9):
        dense = segments[number, 0] + share * (segments[number, 1] - segments[number, 0])
        seen = project(dense, pose, intrinsics, (360, 640), min_depth=MIN_DEPTH)
        shown = seen.depth > MIN_DEPTH
        assert bool(shown.any()) == bool(front[number])
        if not shown.any():
            continue
        start, stop = pixels[number]
        along = (stop - start) / (stop - start).norm()
        away = (seen.pixels[shown] - start) - ((seen.pixels[shown] - start) @ along)[:, None] * along
        assert away.norm(dim=1).max() < 1e-6 * (1 + pixels[number].abs().max())
        ends = seen.pixels[shown][[0, -1]]
        near = seen.depth[shown][[0, -1]] > 2 * MIN_DEPTH  # Where a step along the line is no leap in the picture.
        torch.testing.assert_close(ends[near], pixels[number][near], rtol=0.05, atol=2.0)
    corners = box(5, 1, 0.3).corners()[0]
    lengths = sorted((corners[[i for i, _ in EDGES]] - corners[[j for _, j in EDGES]]).norm(dim=1).tolist())
    np.testing.assert_allclose(lengths, [1.5] * 4 + [2.0] * 4 + [4.0] * 4, rtol=1e-5)


def test_points_and_absent_sensors():
    points = np.zeros((3, 5), np.float32)
    points[:, :3] = [[30, 10, 0], [30, 10, 5], [500, 0, 0]]
    sheet = SceneSheet(frame(points))
    view = np.asarray(sheet.paint())[: sheet.view, sheet.view_left :]
    column, row = np.round(sheet.pixels(np.array([30.0, 10.0]))).astype(int)
    assert view[row, column].tolist() == [58, 78, 104]  # The higher one is on top.
    bare = np.asarray(SceneSheet(frame()).paint())[: sheet.view, sheet.view_left :]
    assert bare[row, column].tolist() == [255] * 3
    assert (bare[:20, :60] == 0).any() and not (view[:20, :60] == 0).any()  # "no lidar".
    dead = SceneSheet(frame(CAM_BACK=None))
    assert [panel.height for panel in dead.panels] == [360, 360]
    picture = np.asarray(dead.paint([Layer(box(-12), ("car",), "x")]))
    assert (picture[400:720, 200:600] == 60).all()
    # Six cameras are in two rows as one looks around; others follow.
    names = ("CAM_BACK", "CAM_FRONT_RIGHT", "CAM_FRONT", "CAM_FRONT_LEFT", "image_2", "CAM_BACK_LEFT", "CAM_BACK_RIGHT")
    grey = np.full((36, 64, 3), 128, np.uint8)
    six = SceneSheet(Sample("t", 0, tuple(Camera(name, grey, INTRINSICS, FORWARD) for name in names), None))
    places = {panel.camera.name: (panel.left // 640, panel.top // 360) for panel in six.panels}
    assert [places[f"CAM_{name}"] for name in ("FRONT_LEFT", "FRONT", "FRONT_RIGHT")] == [(0, 0), (1, 0), (2, 0)]
    assert [places[f"CAM_{name}"] for name in ("BACK_LEFT", "BACK", "BACK_RIGHT")] == [(0, 1), (1, 1), (2, 1)]
    assert places["image_2"] == (0, 2)
    alone = SceneSheet(Sample("t", 0, (), points))
    assert alone.paint([Layer(box(5), ("car",), "x")]).size[0] == alone.view == 640
    # The legend is below the cameras where there is room beside the bird's-eye view, else below all.
    low = SceneSheet(Sample("t", 0, (Camera("CAM_FRONT", grey, INTRINSICS, FORWARD),), points))
    painted = np.asarray(low.paint([Layer(box(5), ("car",), "x")]))
    assert painted.shape == (low.view, 644 + low.view, 3) and (painted[370:450, :640] < 100).any()
    assert low.paint([Layer(box(5), ("a car " * 20,), "x" * 160)]).size[1] > low.view
    with pytest.raises(ConfigError, match="1 to 1000 metres"):
        SceneSheet(frame(), reach=0)


def test_layers():
    boxes = Boxes3D.cat([box(9), box(15), box(20)]).with_(label=torch.tensor([1, -1, 1]))
    layer = Layer(boxes, ("car", "bus"), "found")
    assert [(name, count) for name, _, count in layer.counts()] == [("bus", 2), ("other", 1)]
    ((colours, width),) = layer.strokes()
    assert colours[0] == colours[2] != OTHER == colours[1] and width == 2
    one = Layer(boxes, ("car", "bus"), "found", RED)
    assert [(set(colours), width) for colours, width in one.strokes()] == [({(0, 0, 0)}, 4), ({RED}, 2)]
    sheet = SceneSheet(frame())
    tall = [sheet.paint(layers).height for layers in ([], [layer], [layer, one])]
    assert tall[0] < tall[1] < tall[2]
    with pytest.raises(DataError, match="has at least"):
        sheet.draw(PIL.Image.new("RGB", (100, 100)), [layer])
    with pytest.raises(DataError, match="no annotations"):
        truth_layer(frame(), ("car",))


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    return write_drive(tmp_path_factory.mktemp("drive"), frames=2)


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    return f"local-dir:{zoo.save(detector(), tmp_path_factory.mktemp('model') / 'tiny')}"


@pytest.fixture
def run(capsys):
    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        assert "Traceback" not in err
        return out, err

    return call


def test_results_are_drawn(drive):
    predict = zoo.predictor(detector(), min_score=0.0)
    result, plain = predict(drive, sample=TOKENS[0]), zoo.predictor(detector(), min_score=1.0)(drive, sample=TOKENS[0])
    drawn, bare = np.asarray(result.plot()), plain.plot()
    sheet = SceneSheet(NuScenes(drive).sample(TOKENS[0], sweeps=1))
    area = (slice(0, sheet.view), slice(0, sheet.width))
    assert (drawn[area] != np.asarray(bare)[area]).any()
    assert (np.asarray(result.draw_on(bare))[area] == drawn[area]).all()
    both = np.asarray(predict(drive, sample=TOKENS[0], truth=True).plot())
    assert both.shape[0] > drawn.shape[0] and (both[area] != drawn[area]).any()
    assert ((both[area] == WHITE).all(2) & (drawn[area] != WHITE).any(2)).sum() > 50
    bare_frame = NuScenes(drive).sample(TOKENS[0], sweeps=1)
    unlabelled = Sample("t", 0, bare_frame.cameras, bare_frame.points)
    with pytest.raises(DataError, match="no annotations"):
        predict(unlabelled, truth=True).plot()
    assert predict(unlabelled).plot().size == result.plot().size


def test_predict_command(run, drive, name, tmp_path):
    out = tmp_path / "out"
    printed, told = run(
        "predict", name, "--dataroot", drive, "--sample", TOKENS[3], "--min-score", 0, "--save", out, "--truth"
    )
    assert printed.startswith(f"{TOKENS[3]} (2 cameras, ") and len(printed.splitlines()) == 17
    assert told.strip() == f"1 annotated picture in {out}, all boxes in submission.json"
    assert sorted(path.name for path in out.iterdir()) == [f"{TOKENS[3]}.png", "submission.json"]
    assert len(read_submission(out / "submission.json").results[TOKENS[3]].boxes) == 16
    with PIL.Image.open(out / f"{TOKENS[3]}.png") as picture:
        assert picture.width > 1000
    # Again: nothing is overwritten.
    chosen = ("--limit", 1, "--csv", "--min-score", 0, "--top-k", 2)
    printed, _ = run("predict", name, drive, *chosen, "--save", out)
    assert sorted(path.name for path in out.glob("*.json")) == ["submission-2.json", "submission.json"]
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["source"] for row in rows] == TOKENS[:1] * 2
    assert float(rows[0]["global_x"]) > 400 and rows[0]["label"] in ("car", "pedestrian", "barrier")

    whole = tmp_path / "val.json"
    printed, told = run("predict", name, "--dataroot", drive, "--split", "mini_val", "--json", "--save", whole)
    assert [row["source"] for row in json.loads(printed)] == TOKENS[2:] and told.strip() == f"saved: {whole}"
    assert list(read_submission(whole).results) == TOKENS[2:]


def test_predict_command_errors(run, drive, name, tmp_path):
    def error(*arguments):
        return run("predict", *arguments, code=2)[1]

    assert "no sample 'gone'; of its 4 some are" in error(name, "--dataroot", drive, "--sample", "gone")
    told = error(name, tmp_path, "--dataroot", tmp_path / "x")
    assert "no folder of nuScenes tables" in told and "no such folder; a driving model takes the root" in told
    assert "give SOURCE, or of a driving model --dataroot" in error(name)
    assert "one picture for 4 key frames" in error(name, drive, "--save", tmp_path / "x.png")
    assert "for driving models" in error("pape-vit-n-imagenette", "--dataroot", drive)
    # One broken frame: the others are there, and the exit code says so.
    root = write_drive(tmp_path / "drive", frames=2)
    (root / "samples" / "CAM_BACK" / f"{TOKENS[1]}.jpg").unlink()
    printed, told = run("predict", name, root, "--save", tmp_path / "all.json", code=2)
    assert f"{TOKENS[1]}.jpg: no such picture" in told and [t for t in TOKENS if t in printed] == [
        TOKENS[0],
        *TOKENS[2:],
    ]
    assert list(read_submission(tmp_path / "all.json").results) == [TOKENS[0], *TOKENS[2:]]
    _, told = run("predict", name, root, "--errors", "keep")
    assert f"warning: {TOKENS[1]}: predicted without CAM_BACK" in told


def test_viz_command(run, drive, name, tmp_path):
    out = tmp_path / "deep" / "frame.png"
    printed, _ = run("viz", "driving", "--dataroot", drive, "-o", out)
    assert printed.strip() == str(out)
    with PIL.Image.open(out) as picture:
        labelled = np.asarray(picture.convert("RGB"))
    assert (labelled == np.asarray(key_frame_picture(NuScenes(drive), TOKENS[0]))).all()
    run("predict", name, drive, "--sample", TOKENS[1], "--save", tmp_path / "found.json")
    shown = tmp_path / "found.png"
    choice = ("--sample", TOKENS[1], "--predictions", tmp_path / "found.json")
    run("viz", "driving", "--dataroot", drive, *choice, "--min-score", 0, "--out", shown)
    # The same boxes as the prediction draws.
    result = zoo.predictor(f"{name}", min_score=0.0)(drive, sample=TOKENS[1], truth=True)
    with PIL.Image.open(shown) as picture:
        found, expected = np.asarray(picture.convert("RGB")), np.asarray(result.plot())
    sheet = SceneSheet(NuScenes(drive).sample(TOKENS[1]))
    # A class has one colour, whatever its label. A score or a corner may be rounded another way in the file.
    rows = slice(0, sheet.cameras)
    assert (found[rows] != expected[rows]).any(2).mean() < 0.001
    names = ("pedestrian", "car", "tram")
    colours = [Layer(box(5), names, "x").colour_of(label) for label in (0, 1, 2, 3)]
    assert colours[:2] == [Layer(box(5), DETECTION_CLASSES, "x").colour_of(label) for label in (5, 0)]
    assert colours[3] == OTHER and len(set(colours)) == 4
    first = tmp_path / "first.png"  # The first that was predicted, not the first of all.
    run("viz", "driving", "--dataroot", drive, *choice[2:], "--min-score", 0, "--out", first)
    assert first.read_bytes() == shown.read_bytes()
    choice = ("--sample", TOKENS[0], *choice[2:])
    _, told = run("viz", "driving", "--dataroot", drive, *choice, code=2)
    assert f"no entry for the key frame {TOKENS[0]}" in told
    _, told = run("viz", "driving", "--dataroot", drive, "-o", tmp_path / "x.txt", code=2)
    assert "no picture format" in told
    _, told = run("viz", "driving", "--dataroot", tmp_path, code=2)
    assert "not the root of a data set" in told


def test_the_real_key_frame(shared, tmp_path):
    """All 69 boxes: each that a camera sees is drawn there, each within reach is drawn from above."""
    archive = shared / "data" / "nuscenes_one_sample" / "nuscenes_one_sample.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    data = NuScenes(tmp_path)
    sample = data.sample(data.sample_tokens()[0], sweeps=1)
    layer = truth_layer(sample, data.classes)
    counts = {label: count for label, _, count in layer.counts()}
    assert counts == {
        **{"car": 8, "truck": 2, "bus": 1, "construction_vehicle": 1, "pedestrian": 30, "bicycle": 1},
        **{"traffic_cone": 3, "barrier": 22, "other": 1},
    }
    sheet = SceneSheet(sample)
    empty = np.asarray(sheet.paint())
    full = np.asarray(sheet.paint([layer]))
    assert full.shape == (796, 2656, 3) and [panel.height for panel in sheet.panels] == [360] * 6
    changed = (full[: sheet.view] != empty[: sheet.view]).any(2)
    seen = 0
    for panel in sheet.panels:
        pose, intrinsics = map(torch.from_numpy, (panel.camera.camera_from_ego, panel.camera.intrinsics))
        flat = image_boxes(layer.boxes.corners().double(), pose, intrinsics, (900, 1600)) * panel.scale
        region = changed[panel.top : panel.top + panel.height, panel.left : panel.left + 640]
        for x1, y1, x2, y2 in flat[~flat.isnan().any(1)].tolist():
            seen += 1
            assert region[int(y1) : int(y2) + 2, int(x1) : int(x2) + 2].any()
    assert seen >= 69
    for number in range(len(layer.boxes)):
        places = sheet.pixels(layer.boxes.corners()[number, :4, :2].double().numpy())
        (left, top), (right, bottom) = np.floor(places.min(0)).astype(int), np.ceil(places.max(0)).astype(int)
        if min(left, top) >= 0 and max(right, bottom) < sheet.view:
            assert changed[top : bottom + 1, sheet.view_left + left : sheet.view_left + right + 1].any()
    assert len(DETECTION_CLASSES) == 10
