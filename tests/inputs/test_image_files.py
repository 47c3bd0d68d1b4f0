"""Image files of every pixel format are read with the right colours or refused in one line."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from parity.inputs.image_files import (
    check_reference,
    describe_left_out,
    digest_state,
    open_image,
    read_images,
)

GRAY = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
COLOURS = np.stack([GRAY, GRAY[::-1], GRAY[:, ::-1]], axis=2)
ALPHA = np.full((4, 6, 1), 255, np.uint8)
TEN_BITS = np.ceil(GRAY * (1023 / 255)).astype(int)
DEEP = GRAY.astype(np.uint16) * 257


def make_orientation(tag):
    """Make EXIF data that name an orientation."""
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif


def write_16_bit_colours(file):
    """Write a PNG of 16 bits a channel, which Pillow cannot."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in (COLOURS.astype(np.uint16) * 257).astype(">u2"))
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def make_writer(array, name, mode=None, **settings):
    """Return a file's name, and a function that writes an array as an image to a file."""
    return name, lambda file: Image.fromarray(array, mode).save(file, **settings)


def make_frames_writer(array, name):
    """Return a file's name, and a function that writes an image of two frames, the array and its negative."""
    frames = [Image.fromarray(array), Image.fromarray(255 - array)]
    return name, lambda file: frames[0].save(file, save_all=True, append_images=frames[1:])


def save_with_palette(file, **settings):
    """Save COLOURS as an image with a palette of 24 colours."""
    image = Image.new("P", (6, 4))
    image.putdata(list(range(24)))
    image.putpalette(COLOURS.reshape(-1).tolist())
    image.save(file, **settings)


GRAYS = np.repeat(GRAY[..., None], 3, 2)
READ = {  # a file's name, what writes it, and the colours that are read
    "8-bit gray": (*make_writer(GRAY, "a.png"), GRAYS),
    "16-bit gray PNG": (*make_writer(DEEP, "a.png"), GRAYS),
    "16-bit gray TIFF": (*make_writer(DEEP, "a.tif"), GRAYS),
    "16-bit gray TIFF, packed": (*make_writer(DEEP, "a.tif", compression="tiff_lzw"), GRAYS),
    "16-bit gray TIFF, big-endian": (
        "a.tif", lambda f: Image.frombytes("I;16B", (6, 4), DEEP.astype(">u2")).save(f), GRAYS
    ),
    "16-bit gray PGM": (*make_writer(DEEP, "a.ppm"), GRAYS),
    "gray PGM of ten bits": (
        "a.ppm", lambda f: f.write_text(f"P2 6 4 1023 {' '.join(map(str, TEN_BITS.flat))}"), GRAYS
    ),
    "gray and opaque alpha": (*make_writer(np.concatenate([GRAY[..., None], ALPHA], 2), "a.png"), GRAYS),
    "8-bit colours": (*make_writer(COLOURS, "a.png"), COLOURS),
    "16-bit colours": ("a.png", write_16_bit_colours, COLOURS),
    "lossless WebP": (*make_writer(COLOURS, "a.webp", lossless=True), COLOURS),
    "opaque alpha": (*make_writer(np.concatenate([COLOURS, ALPHA], 2), "a.png"), COLOURS),
    "opaque alpha in TIFF": (*make_writer(np.concatenate([COLOURS, ALPHA], 2), "a.tif"), COLOURS),
    "BMP": (*make_writer(COLOURS, "a.bmp"), COLOURS),
    "palette": ("a.png", save_with_palette, COLOURS),
    "palette with an unused transparent colour": ("a.png", lambda f: save_with_palette(f, transparency=200), COLOURS),
}  # fmt: skip
HALF = np.where(COLOURS[..., :1] > 99, np.uint8(155), ALPHA)
REFUSED = {
    "transparency": (*make_writer(np.concatenate([COLOURS, HALF], 2), "a.png"), "transparent pixels"),
    "a transparent palette": ("a.png", lambda f: save_with_palette(f, transparency=3), "transparent pixels"),
    "a transparent shade of gray": (*make_writer(GRAY, "a.png", transparency=10), "transparent pixels"),
    "32-bit integers": (*make_writer(GRAY.astype(np.int32), "a.tif"), "32-bit integers"),
    "floating-point numbers": (*make_writer(GRAY.astype(np.float32), "a.tif"), "floating-point numbers"),
    "a portable float map": (*make_writer(GRAY.astype(np.float32), "a.pfm"), "floating-point numbers"),
    "CMYK": ("a.jpg", lambda f: Image.fromarray(COLOURS).convert("CMYK").save(f), "CMYK colours"),
    "Lab": ("a.tif", lambda f: Image.frombytes("LAB", (6, 4), COLOURS.tobytes()).save(f), "Lab colours"),
    "an animated PNG": (*make_frames_writer(GRAY, "a.png"), "2 frames"),
    "an animated WebP": (*make_frames_writer(COLOURS, "a.webp"), "2 frames"),
    "pages": (*make_frames_writer(GRAY, "a.tif"), "2 frames"),
}


@pytest.mark.parametrize("case", READ)
def test_images_keep_their_colours(tmp_path, case):
    name, write, colours = READ[case]
    write(tmp_path / name)
    assert np.array_equal(open_image(tmp_path / name), colours)


@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_colours_are_refused(tmp_path, case):
    name, write, problem = REFUSED[case]
    write(tmp_path / name)
    with pytest.raises(ParityError, match=f"{name}'?.*: holds {problem}; allowed: one opaque image"):
        open_image(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
@pytest.mark.parametrize(("tag", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_a_image_is_turned_as_its_exif_says(tmp_path, name, tag, turns):
    settings = {"lossless": True} if name.endswith("webp") else {}
    Image.fromarray(COLOURS).save(tmp_path / name, exif=make_orientation(tag), **settings)
    assert np.array_equal(open_image(tmp_path / name), np.rot90(COLOURS, turns))


@pytest.mark.parametrize(
    ("tag", "value", "problem"), [(258, 12, "12-bit gray"), (262, 0, "16-bit gray from white to black")]
)
def test_tiffs_of_unknown_grays_are_refused(tmp_path, tag, value, problem):
    file = tmp_path / "a.tif"
    Image.fromarray(DEEP).save(file)
    old = 16 if tag == 258 else 1
    entry = struct.pack("<HHIHH", tag, 3, 1, old, 0)
    assert entry in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(entry, struct.pack("<HHIHH", tag, 3, 1, value, 0)))
    with pytest.raises(ParityError, match=f"holds {problem}"):
        open_image(file)


def save_images(folder, count=4):
    folder.mkdir()
    for k in range(count):
        Image.fromarray(COLOURS).save(folder / f"{k}.png")


UINT8 = np.zeros((5, 4, 6, 3), np.uint8)
LFS = "version https://git-lfs.github.com/spec/v1"


def write_mixed(folder):
    """Write images to a new folder, one of them with four colour channels."""
    save_images(folder)
    Image.new("CMYK", (4, 4)).save(folder / "0.jpg")


def make_array_writer(**named):
    """Return a file's name, and a function that writes these arrays to a file."""
    return "r.npz", lambda file: np.savez(file, **named)


REFERENCES = {
    "an empty folder": ("refs", lambda p: p.mkdir(), 0, "holds 0 images; allowed: at least 4"),
    "folders alone": ("refs", lambda p: (p / "one").mkdir(parents=True), 0, "0 images beside folders"),
    "too few": ("refs", lambda p: save_images(p, 9), 10, "holds 9 images; allowed: at least 10"),
    "another pixel format": ("refs", write_mixed, 0, "0.jpg': holds CMYK"),
    "an array of another name": (*make_array_writer(images=UINT8), 0, "neither images nor statistics"),
    "floats": (*make_array_writer(arr_0=UINT8 / 255), 0, r"arr_0 is float64 \(5, 4, 6, 3\)"),
    "channels first": (*make_array_writer(arr_0=UINT8.transpose(0, 3, 1, 2)), 0, r"uint8 \(5, 3, 4, 6\)"),
    "one image": (*make_array_writer(arr_0=UINT8[:1]), 0, r"uint8 \(1, 4, 6, 3\)"),
    "a pointer of Git LFS": ("r.npz", lambda p: p.write_text(LFS), 0, "not a zip"),
    "statistics of two sizes": (*make_array_writer(mu=np.zeros(3), sigma=np.eye(4)), 0, r"mu \(3,\), sigma \(4, 4\)"),
    "a mean alone": (*make_array_writer(mu=np.zeros(3)), 0, "holds one of mu and sigma"),
    "a covariance beside images": (*make_array_writer(arr_0=UINT8, sigma=np.eye(3)), 0, "holds one of mu and sigma"),
    "statistics for images": (*make_array_writer(mu=np.zeros(3), sigma=np.eye(3)), 4, "statistics alone"),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_a_reference_that_cannot_be_used_is_refused(tmp_path, case):
    name, write, count, problem = REFERENCES[case]
    write(tmp_path / name)
    with pytest.raises(ConfigError, match=f"^image.reference = '.*{name}.*{problem}"):
        check_reference("image.reference", tmp_path / name, count, drawn=count > 0)


def test_files_of_a_reference_that_are_left_out_are_counted(tmp_path):
    for k in range(70):
        Image.fromarray(COLOURS).save(tmp_path / f"{k:02d}.png")
    config = checks.make_config(
        {"image": {"methods": {"ar": [{}]}, "reference": str(tmp_path), "reference_images": 70}}
    )
    assert describe_left_out(config) == []
    for name in ("a.gif", "b.gif", "notes"):
        (tmp_path / name).touch()
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "99.png").hardlink_to(tmp_path / "00.png")
    (tmp_path / "more").mkdir()
    (line,) = describe_left_out(config)
    reasons = "2 files .gif, 1 files without a suffix, 1 folders, 1 images after the first 70, 1 links to nothing"
    assert line == f"image.reference = {str(tmp_path)!r}: left out: {reasons}"


def save_cmyk(file):
    Image.new("CMYK", (6, 4)).save(file)


def test_all_images_that_cannot_be_used_are_named_at_once(tmp_path):
    """Where the first file is one of them, that is before any job."""
    save_images(tmp_path / "refs")
    (tmp_path / "refs/b.png").touch()
    with pytest.raises(ParityError, match=r"b.png'?: cannot be read.*; allowed") as alone:
        list(read_images(tmp_path / "refs")[1])
    assert "images cannot be used" not in str(alone.value)
    for other in "cdefgh":
        save_cmyk(tmp_path / f"refs/{other}.jpg")
    others = "c.jpg holds CMYK colours, .*, f.jpg holds CMYK colours and 2 more$"
    with pytest.raises(ParityError, match=f"7 of 11 images cannot be used: b.png cannot be read.*, {others}"):
        list(read_images(tmp_path / "refs")[1])
    assert len(list(read_images(tmp_path / "refs", 4)[1])) == 4, "what is not read does not matter"
    save_cmyk(tmp_path / "refs/0.jpg")
    with pytest.raises(ConfigError, match=r"^image.reference = '.*0.jpg': holds CMYK.* 8 of 12 images cannot"):
        check_reference("image.reference", tmp_path / "refs", 0, drawn=False)


@pytest.mark.parametrize("name", ["._0.png", "._0.jpg", ".hidden.webp", "__MACOSX/._0.png", "Thumbs.db", ".DS_Store"])
def test_files_that_computers_add_to_a_folder_are_no_images(tmp_path, name):
    folder = tmp_path / "refs"
    save_images(folder)
    state = digest_state(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\0\5\x16\7" + bytes(4096))
    assert digest_state(folder) == state
    check_reference("image.reference", folder, 4, drawn=True)
    count, found = read_images(folder)
    assert count == len(list(found)) == 4
    config = checks.make_config({"image": {"methods": {"ar": [{}]}, "reference": str(folder)}})
    kind = {"T": "files .db", "_": "folders"}.get(name[0], "hidden files")
    assert describe_left_out(config) == [f"image.reference = {str(folder)!r}: left out: 1 {kind}"]


def test_references_of_every_form_are_accepted(tmp_path):
    save_images(tmp_path / "refs")
    np.savez(tmp_path / "a.npz", UINT8)
    np.savez(tmp_path / "s.npz", mu=np.zeros(3), sigma=np.eye(3))
    for name in ("refs", "a.npz", "s.npz"):
        assert check_reference("image.reference", tmp_path / name, 4 * (name != "s.npz"), name != "s.npz") is None
    with pytest.raises(ConfigError, match=r"mu \(3,\); allowed: \(2048,\)"):
        check_reference("image.reference", tmp_path / "s.npz", 0, drawn=False, size=2048)


def test_a_folder_of_links_that_lead_nowhere_says_so(tmp_path):
    for k in range(70):
        (tmp_path / f"{k}.png").symlink_to("../.git/annex/objects/x")
    with pytest.raises(ConfigError, match=r"holds 0 images and 70 links to files that are not there \(git annex get"):
        check_reference("image.reference", tmp_path, 64, drawn=True)
