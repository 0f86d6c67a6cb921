"""Classes of points written back into LAS and LAZ files: codes of the standard, and all else as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import point_files
import pytest
from point_files import cloud

import zoo
from modalities.points.results import CloudSegments
from modalities.points.write_las import las_codes
from zoo.cli.saving import saver_for
from zoo.errors import ConfigError, DataError

laspy = pytest.importorskip("laspy")
NAMES = ("ground", "vegetation", "sofa")


def file(folder: Path, suffix: str = ".las", form: int = 7) -> Path:
    path = folder / f"tile{suffix}"
    path.write_bytes(point_files.las(cloud(60), compress=suffix == ".laz"))
    if form != 7:
        laspy.convert(laspy.read(path), point_format_id=form, file_version="1.2").write(path)
    return path


def segments(path: Path, names: tuple[str, ...] = NAMES) -> CloudSegments:
    """As of a model: the classes in turn."""
    points = zoo.read(path)
    indices = np.arange(len(points)) % len(names)
    scores = np.linspace(0.5, 1, len(points)).astype(np.float32)
    return CloudSegments(str(path), path, points, indices, scores, names)


def test_codes():
    assert las_codes(NAMES).tolist() == [2, 5, 66] and las_codes(NAMES).dtype == np.uint8
    assert las_codes(["Low_Vegetation", "building ", "noise", "water"]).tolist() == [3, 6, 7, 9]
    with pytest.raises(DataError, match="codes up to 255, too few for 300 classes"):
        las_codes([str(index) for index in range(300)])


@pytest.mark.parametrize(("suffix", "target"), [(".las", ".las"), (".las", ".laz"), (".laz", ".las")])
def test_all_else_stays_as_it_was(tmp_path, suffix, target):
    if ".laz" in (suffix, target):
        pytest.importorskip("lazrs")
    result = segments(file(tmp_path, suffix))
    before = laspy.read(result.path)
    after = laspy.read(result.save(tmp_path / "new" / f"labelled{target}"))
    assert np.array(after.classification).tolist() == [2, 5, 66] * 20
    assert np.array_equal(after.score, result.scores) and after.header.are_points_compressed == (target == ".laz")
    names = list(before.point_format.dimension_names)
    assert list(after.point_format.dimension_names) == [*names, "score"]
    for name in names:
        assert name == "classification" or np.array_equal(before[name], after[name]), name
    assert (after.header.scales == before.header.scales).all() and (after.header.offsets == before.header.offsets).all()
    again = segments(tmp_path / "new" / f"labelled{target}")
    assert "score_" in laspy.read(again.save(tmp_path / "twice.las")).point_format.dimension_names


def test_records_of_the_file_stay(tmp_path):
    path = file(tmp_path)
    whole = laspy.read(path)
    whole.header.vlrs.append(laspy.VLR("LASF_Projection", 2112, "", b'PROJCS["somewhere"]\0'))
    whole.write(path)
    found = laspy.read(segments(path).save(tmp_path / "a.las")).header.vlrs
    assert [record.string for record in found.get("WktCoordinateSystemVlr")] == ['PROJCS["somewhere"]']


def test_old_point_formats(tmp_path):
    path = file(tmp_path, form=3)
    result = segments(path, ("ground", "building"))
    assert result.suffix == ".las"
    after = laspy.read(result.save(tmp_path / "a.las"))
    assert after.point_format.id == 3 and np.array(after.classification).tolist() == [2, 6] * 30
    result = segments(path)
    assert result.suffix == ".ply"
    with pytest.raises(DataError, match="its point format 3 has codes up to 31"):
        result.save(tmp_path / "b.las")
    assert not (tmp_path / "b.las").exists()


def test_what_is_no_las_file(tmp_path):
    (tmp_path / "a.ply").write_bytes(point_files.ply(cloud(60)))
    result = segments(tmp_path / "a.ply")
    assert result.suffix == ".ply"
    with pytest.raises(DataError, match="must be a LAS or LAZ file on this machine"):
        result.save(tmp_path / "a.las")
    path = file(tmp_path)
    result = segments(path)
    path.write_bytes(point_files.las(cloud(61)))
    with pytest.raises(DataError, match="does not hold the points of this cloud"):
        result.save(tmp_path / "a.las")
    path.write_bytes(b"LASF" + bytes(90))
    with pytest.raises(DataError, match="can no longer be read"):
        result.save(tmp_path / "a.las")
    path.unlink()
    with pytest.raises(DataError, match="can no longer be read"):
        result.save(tmp_path / "a.las")


class Labels:
    """What a saver asks of a predictor."""

    kind, task = "points", "segmentation"


def test_a_folder_gets_the_format_of_each_file(tmp_path):
    (tmp_path / "b.ply").write_bytes(point_files.ply(cloud(60)))
    saver = saver_for(Labels(), tmp_path / "out", 2, fps=None, window_ms=None)
    for path in (file(tmp_path), tmp_path / "b.ply"):
        saver.add(segments(path))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.ply", "tile.las"]
    assert saver.summary() == f"2 labelled clouds in {tmp_path / 'out'}"
    saver = saver_for(Labels(), tmp_path / "one.las", 1, fps=None, window_ms=None)
    saver.add(segments(file(tmp_path)))
    assert saver.saved == 1 and (tmp_path / "one.las").is_file()
    with pytest.raises(ConfigError, match=r"a\.pcd: results of a segmenter are written as .*\.las"):
        saver_for(Labels(), tmp_path / "a.pcd", 1, fps=None, window_ms=None)
