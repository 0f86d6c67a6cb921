import io
import struct
import warnings
import zlib

import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
from pictures import HEIGHT, RGB, WIDTH, difference, encode

import zoo
from modalities.image.read import Image
from zoo.errors import ConfigError, DataError


def luma(rgb: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(PIL.Image.fromarray(rgb).convert("L"))[..., None], 3, axis=2)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "QOI", "GIF", "JPEG", "JPEG2000", "WEBP", "AVIF"])
def test_formats(form):
    if form not in PIL.Image.registered_extensions().values():
        pytest.skip(f"this Pillow has no {form}")
    options = {
        "WEBP": {"lossless": True},
        "JPEG": {"quality": 95, "subsampling": 0},
        "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    }.get(form, {})
    image = zoo.read(encode(form, **options))
    assert isinstance(image, Image) and image.size == (HEIGHT, WIDTH) and image.path is None and not image.truncated
    exact = form not in ("JPEG", "JPEG2000", "AVIF")
    assert difference(image.rgb, RGB) <= (0 if exact else 8)


def test_path_and_string(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(encode("PNG"))
    for source in (path, str(path)):
        image = zoo.read(source)
        assert np.array_equal(image.rgb, RGB) and image.path == path and image.name == str(path)
    assert np.array_equal(zoo.read(path, kind="image").to_pil(), RGB)


def test_content_wins_over_the_suffix(tmp_path):
    for name in ("photo.dat", "photo.mp4", "photo.txt", "photo"):
        (tmp_path / name).write_bytes(encode("PNG"))
        assert np.array_equal(zoo.read(tmp_path / name).rgb, RGB)


def test_cmyk_jpeg_is_not_a_negative():
    """Adobe's CMYK JPEG files hold inverted values."""
    data = encode("JPEG", PIL.Image.fromarray(RGB).convert("CMYK"), quality=95)
    assert b"Adobe" in data and PIL.Image.open(io.BytesIO(data)).mode == "CMYK"
    assert difference(zoo.read(data).rgb, RGB) < 8


def test_cmyk_tiff():
    assert difference(zoo.read(encode("TIFF", PIL.Image.fromarray(RGB).convert("CMYK"))).rgb, RGB) < 1


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_16_bit_gray(form):
    gray = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 21 % 65536).astype(np.uint16)
    rgb = zoo.read(encode(form, PIL.Image.fromarray(gray))).rgb
    assert np.abs(rgb - gray[..., None] / 257).max() <= 0.5


def test_16_bit_rgb_png():
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    wide = RGB.astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert np.array_equal(zoo.read(data).rgb, RGB)


def test_float_tiff():
    gray = RGB[..., 0].astype(np.float32)
    assert np.array_equal(zoo.read(encode("TIFF", PIL.Image.fromarray(gray / 255))).rgb[..., 1], RGB[..., 0])
    with pytest.raises(DataError, match=r"must be in 0\.\.1"):
        zoo.read(encode("TIFF", PIL.Image.fromarray(gray)))


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "PA", "RGBA", "RGBX", "YCbCr", "HSV", "LAB", "I", "I;16", "F"])
def test_every_mode_of_pil(mode):
    gray = PIL.Image.fromarray(RGB).convert("L")
    if mode == "F":
        image, expected = PIL.Image.fromarray(np.asarray(gray, np.float32) / 255), luma(RGB)
    elif mode in ("I", "I;16"):
        image, expected = PIL.Image.fromarray(np.asarray(gray, np.uint16) * 257), luma(RGB)
        image = image.convert("I") if mode == "I" else image
    elif mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image, expected = ImageCms.profileToProfile(PIL.Image.fromarray(RGB), *profiles, outputMode="LAB"), RGB
    else:
        image = gray.convert(mode) if mode in ("L", "LA", "1", "PA") else PIL.Image.fromarray(RGB).convert(mode)
        expected = np.asarray(image.convert("RGB"))
    if mode != "LAB":
        assert image.mode == mode
    before = image.tobytes()
    assert difference(zoo.read(image).rgb, expected) < 4
    assert image.tobytes() == before and image.mode in (mode, "LAB")


def test_alpha_is_composited_on_white():
    rgba = np.dstack([RGB, np.zeros((HEIGHT, WIDTH), np.uint8)])
    rgba[: HEIGHT // 2, :, 3] = 255
    expected = RGB.copy()
    expected[HEIGHT // 2 :] = 255
    for source in (encode("PNG", rgba), encode("WEBP", rgba, lossless=True, exact=True), rgba):
        assert np.array_equal(zoo.read(source).rgb, expected)
    half = np.array([[[0, 100, 255, 128]]], np.uint8)
    assert np.abs(zoo.read(half).rgb.astype(int) - zoo.read(encode("PNG", half)).rgb).max() <= 1


def test_palette_with_a_transparent_colour():
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((1, 0), 1)
    for form in ("PNG", "GIF"):
        assert zoo.read(encode(form, image, transparency=1)).rgb.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_transparent_colour_of_gray_and_rgb_png():
    image = PIL.Image.fromarray(np.array([[0, 90]], np.uint8))
    assert zoo.read(encode("PNG", image, transparency=90)).rgb[0, :, 0].tolist() == [0, 255]
    image = PIL.Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert zoo.read(encode("PNG", image, transparency=(4, 5, 6))).rgb[0, :, 2].tolist() == [3, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(form, orientation):
    # Where the picture's first row and column are in the stored array, by the EXIF standard.
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    data = encode(form, np.ascontiguousarray(undo(RGB)), exif=exif, **options)
    assert difference(zoo.read(data).rgb, RGB) < 6
    opened = PIL.Image.open(io.BytesIO(data))
    assert difference(zoo.read(opened).rgb, RGB) < 6


def test_exif_orientation_of_16_bit():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    gray = RGB[..., 0].astype(np.uint16) * 257
    data = encode("PNG", PIL.Image.fromarray(np.rot90(gray).copy()), exif=exif)
    assert np.array_equal(zoo.read(data).rgb[..., 0], RGB[..., 0])


def test_damaged_exif_does_not_matter():
    data = encode("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff garbage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert zoo.read(data).size == (HEIGHT, WIDTH)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animations(form):
    frames = [PIL.Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if form == "WEBP" else {}
    data = encode(form, frames[0], save_all=True, append_images=frames[1:], **options)
    for frame, colour in {None: [255, 0, 0], 0: [255, 0, 0], 1: [0, 255, 0], 2: [0, 0, 255]}.items():
        assert zoo.read(data, frame=frame).rgb[4, 4].tolist() == colour
    with pytest.raises(DataError, match=r"bytes: no frame 3, it has 3"):
        zoo.read(data, frame=3)
    opened = PIL.Image.open(io.BytesIO(data))
    opened.seek(1)
    assert zoo.read(opened).rgb[4, 4].tolist() == [0, 255, 0]
    assert zoo.read(opened, frame=2).rgb[4, 4].tolist() == [0, 0, 255] and opened.tell() == 1


@pytest.mark.parametrize("frame", [-1, 1.5, True, "0"])
def test_bad_frame(frame):
    with pytest.raises(ConfigError, match="frame must be"):
        zoo.read(encode("PNG"), frame=frame)


def test_a_still_picture_has_one_frame():
    with pytest.raises(DataError, match="no frame 1, it has 1"):
        zoo.read(encode("PNG"), frame=1)
    with pytest.raises(DataError, match="no frame 1"):
        zoo.read(RGB, frame=1)
