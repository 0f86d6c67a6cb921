import contextlib
import io
import os

import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import HEIGHT, RGB, SMOOTH, WIDTH, difference, encode

import zoo
from modalities.image.read import MAX_PIXELS
from zoo.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("BMP", {}),
        ("GIF", {"interlace": 0}),
        ("TIFF", {}),
        ("PPM", {}),
    ],
)
def test_truncated(tmp_path, form, options):
    path = tmp_path / "cut"
    whole = encode(form, SMOOTH, **options)
    path.write_bytes(whole[: len(whole) * 7 // 10])
    with pytest.raises(DataError, match=rf"{path}: .*truncated"):
        zoo.read(path)
    kept, complete = zoo.read(path, errors="keep"), zoo.read(whole).rgb
    assert kept.truncated and kept.size == complete.shape[:2]
    if "progressive" in options:  # Coarse everywhere.
        assert difference(kept.rgb, complete) < 5
    else:
        first = slice(120, None) if form == "BMP" else slice(120)  # BMP starts at the bottom.
        assert np.array_equal(kept.rgb[first], complete[first])
    path.write_bytes(whole)
    assert not zoo.read(path, errors="keep").truncated
    assert PIL.ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_truncated_before_any_pixel_is_an_error_even_with_keep():
    whole = encode("PNG")
    with pytest.raises(DataError, match="before any of the picture"):
        zoo.read(whole[: whole.index(b"IDAT") + 8], errors="keep")
    with pytest.raises(DataError):
        zoo.read(encode("WEBP")[:200], errors="keep")


def test_truncated_pil_image():
    data = encode("JPEG", SMOOTH)
    with pytest.raises(DataError, match="truncated"):
        zoo.read(PIL.Image.open(io.BytesIO(data[: len(data) // 2])))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "it is empty"),
        (b"just some words\n", "it is text"),
        ("größer\n".encode(), "it is text"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1", "video"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
        (bytes(range(256)), "unknown or damaged"),
    ],
)
def test_what_is_no_picture(tmp_path, content, word):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"photo\.jpg: not a picture that can be read: .*{word}"):
        zoo.read(path)


def test_too_large_is_refused_before_decoding(monkeypatch):
    bomb = PIL.Image.new("1", (20_000, 10_000))
    data = encode("PNG", bomb)
    assert MAX_PIXELS < 200_000_000

    def load(self):
        raise AssertionError("decoded")

    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", load)
    with pytest.raises(DataError, match=r"bytes: 20000 x 10000 pixels, the limit is 178956970.*ZOO_MAX_PIXELS"):
        zoo.read(data)


def test_pixel_bound_is_a_setting(monkeypatch):
    data, pillow_limit = encode("PNG"), PIL.Image.MAX_IMAGE_PIXELS
    with pytest.raises(DataError, match=f"{WIDTH} x {HEIGHT} pixels, the limit is {HEIGHT * WIDTH - 1}"):
        zoo.read(data, max_pixels=HEIGHT * WIDTH - 1)
    with pytest.raises(DataError, match=f"{HEIGHT * WIDTH} pixels, the limit is 100;"):
        zoo.read(data, max_pixels=100)
    for source in (RGB, PIL.Image.fromarray(RGB)):
        with pytest.raises(DataError, match="the limit is 100;"):
            zoo.read(source, max_pixels=100)
    assert zoo.read(data, max_pixels=HEIGHT * WIDTH).size == (HEIGHT, WIDTH)
    monkeypatch.setenv("ZOO_MAX_PIXELS", "50")
    with pytest.raises(DataError, match="the limit is 50;"):
        zoo.read(data)
    for bad in ("many", "-1", "0"):
        monkeypatch.setenv("ZOO_MAX_PIXELS", bad)
        with pytest.raises(ConfigError, match="ZOO_MAX_PIXELS"):
            zoo.read(data)
    assert pillow_limit == PIL.Image.MAX_IMAGE_PIXELS


def test_bound_above_that_of_pillow(monkeypatch, recwarn):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)
    assert zoo.read(encode("PNG")).size == (HEIGHT, WIDTH)
    assert not recwarn.list and PIL.Image.MAX_IMAGE_PIXELS == 100


def test_files_that_are_not_there(tmp_path):
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    for source, word in {
        tmp_path / "absent.jpg": "no such file",
        tmp_path / "dangling.jpg": "link to a file that does not exist",
        tmp_path / "pipe.jpg": "not a regular file",
        tmp_path: "is a folder",
        "a\0b.jpg": "null byte|no such file",
        "x" * 5000: "cannot be opened",
    }.items():
        with pytest.raises(DataError, match=word):
            zoo.read(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden_file(tmp_path):
    path = tmp_path / "secret.jpg"
    path.write_bytes(encode("JPEG"))
    path.chmod(0)
    with pytest.raises(DataError, match="secret.jpg: Permission denied"):
        zoo.read(path)


@pytest.mark.parametrize(("name", "kind"), [("a.mp4", "clip")])
def test_other_kinds_say_so(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"\0" * 64)
    with pytest.raises(DataError, match=rf"{name}: {kind} sources are not in this version"):
        zoo.read(tmp_path / name)
    with pytest.raises(DataError, match=f"{kind} sources are not in this version"):
        zoo.read(encode("PNG"), kind=kind)


def test_bad_arguments():
    with pytest.raises(DataError, match="unknown kind 'sound'"):
        zoo.read(encode("PNG"), kind="sound")
    with pytest.raises(ConfigError, match="errors must be"):
        zoo.read(encode("PNG"), errors="ignore")
    with pytest.raises(DataError, match="s3:// addresses are not read"):
        zoo.read("s3://bucket/key.jpg")
    for source in (None, 3, [RGB], {"a": 1}, object()):
        with pytest.raises(DataError, match="is no picture; pass a path"):
            zoo.read(source)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["raise", "keep"]))
def test_arbitrary_bytes_are_read_or_a_data_error(data, errors):
    try:
        zoo.read(data, errors=errors)
    except DataError as error:
        assert "\n" not in str(error)


SAMPLES = {
    form: encode(form) for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "ICO", "PPM", "QOI", "JPEG2000")
}


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(sorted(SAMPLES)), st.sampled_from(["raise", "keep"]))
@pytest.mark.filterwarnings("ignore")
def test_damaged_pictures_are_read_or_a_data_error(data, form, errors):
    damaged = bytearray(SAMPLES[form])
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(1, len(damaged))) :]
    with contextlib.suppress(DataError):
        # The bound keeps damaged sizes from taking the machine's memory during the test.
        assert zoo.read(bytes(damaged), errors=errors, max_pixels=10**6).rgb.dtype == np.uint8
