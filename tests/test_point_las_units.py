"""The unit of LAS files as their coordinate system states it, and the warning where it is not the metre."""

from __future__ import annotations

import types
import warnings

import numpy as np
import point_files
import pytest
from point_files import cloud
from test_point_predict import ByHeight

import zoo
from modalities.points.formats.las_units import horizontal_unit

FOOT = 0.3048006096012192
ANGLE = 'GEOGCS["g",UNIT["Degree",0.0174532925]]'
PLANE = f'PROJCS["p",{ANGLE},UNIT["Foot_US",{FOOT}]]'
NEWER = 'PROJCRS["p",ELLIPSOID["e",6378137,LENGTHUNIT["metre",1]],CS[Cartesian,2],LENGTHUNIT["foot", 0.3048]]'


def text(string: object) -> object:
    return type("WktCoordinateSystemVlr", (), {"string": string})()


def keys(code: int, place: int = 0) -> object:
    key = types.SimpleNamespace(id=3076, tiff_tag_location=place, value_offset=code)
    return type("GeoKeyDirectoryVlr", (), {"geo_keys": [types.SimpleNamespace(id=1024), key]})()


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([text(PLANE)], FOOT),
        ([text(f'COMPD_CS["c",{PLANE},VERT_CS["v",UNIT["metre",1]]]')], FOOT),
        ([text(NEWER)], 0.3048),
        ([text(f'COMPOUNDCRS["c",{NEWER},VERTCRS["v",LENGTHUNIT["metre",1]]]')], 0.3048),
        ([text(ANGLE), keys(9001)], 1.0),
        ([keys(9003), text(PLANE.replace("0.3", "3.3e-"))], 1200 / 3937),
        ([keys(9002)], 0.3048),
        ([keys(9002, place=34736)], None),
        ([keys(32767)], None),
        ([text('PROJCS["p",UNIT["x",nan]]')], None),
        ([text('PROJCS["p",UNIT["x",' + "1" * 9)], 111111111.0),
        ([text(None), object()], None),
        ([text(PLANE[: PLANE.index('UNIT["Foot')])], None),
        ([], None),
    ],
)
def test_what_records_state(records, expected):
    found = horizontal_unit(records)
    if expected is not None and expected > 1e6:
        expected = None  # No unit is as long.
    assert found == (None if expected is None else pytest.approx(expected))


def test_feet_are_told(tmp_path):
    laspy = pytest.importorskip("laspy")
    path = tmp_path / "feet.las"
    path.write_bytes(point_files.las(cloud(40)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "unit_m" not in zoo.read(path).info
        zoo.predictor(ByHeight())(path)
    whole = laspy.read(path)
    whole.header.vlrs.append(laspy.VLR("LASF_Projection", 2112, "", PLANE.encode() + b"\0"))
    whole.write(path)
    assert zoo.read(path).info["unit_m"] == pytest.approx(FOOT)
    with pytest.warns(UserWarning, match=r"feet\.las: one unit of its coordinates is 0\.304801 m .*--unit 0\.304801"):
        plain = zoo.predictor(ByHeight())(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = zoo.predictor(ByHeight())(path, unit=FOOT)
        zoo.predictor(ByHeight("classification"))(path)
    assert np.array_equal(plain.points.xyz, scaled.points.xyz)  # What is written back is in the unit of the file.
