"""Faster parts of a chain give what the slow ones give; each is priced from the stages."""

from __future__ import annotations

import io
import math
import random
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from whyidle.data import faster  # noqa: E402
from whyidle.data.faster import Collate, decode, normalise, resize  # noqa: E402
from whyidle.data.faster_prices import decoders, prices  # noqa: E402
from whyidle.errors import DataError, MissingPackage  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::whyidle.data.faster.SlowerThanPossible")


def picture(height: int = 60, width: int = 90, mode: str = "RGB") -> Any:
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [127 + 120 * np.sin(rows / (7 + k) + columns / (9 + k)) for k in range(3)]
    return Image.fromarray(np.stack(waves, 2).astype(np.uint8)).convert(mode)


def encoded(format: str = "JPEG", **how: Any) -> bytes:
    file = io.BytesIO()
    picture(**how).save(file, format)
    return file.getvalue()


def pillow(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_of_any_colours_is_decoded_as_by_pillow(mode: str) -> None:
    found = decode(encoded(mode=mode)).astype(int)
    wanted = pillow(encoded(mode=mode)).astype(int)
    assert found.shape == wanted.shape and abs(found - wanted).max() <= 2


@pytest.mark.parametrize("decoder", ["simplejpeg", "PIL", "cv2"])
def test_each_decoder_gives_the_same_picture(decoder: str) -> None:
    pytest.importorskip(decoder)
    found = decode(encoded(), decoder=decoder).astype(int)
    assert abs(found - pillow(encoded()).astype(int)).max() <= 3


def test_the_fast_way_differs_little() -> None:
    pytest.importorskip("simplejpeg")
    found = decode(encoded(), fast=True).astype(int)
    assert abs(found - pillow(encoded()).astype(int)).mean() < 8


@pytest.mark.parametrize("format", ["PNG", "BMP", "WEBP"])
def test_other_formats_are_decoded_too(format: str) -> None:
    assert decode(encoded(format)).shape == (60, 90, 3)


def test_an_orientation_in_the_file_turns_nothing_whatever_the_decoder() -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(file, "JPEG", exif=exif)
    for decoder in faster.DECODERS:
        pytest.importorskip(decoder)
        assert decode(file.getvalue(), decoder=decoder).shape == (60, 90, 3)


@pytest.mark.parametrize("damage", ["cut", "nonsense", "empty"])
def test_damage_is_a_sentence(damage: str) -> None:
    whole = encoded()
    data = {"cut": whole[: len(whole) // 2], "nonsense": b"\xff\xd8" + b"x" * 50, "empty": b""}
    with pytest.raises(DataError, match="cannot be decoded"):
        decode(data[damage])


def test_a_missing_decoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faster, "_module", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install simplejpeg"):
        decode(encoded())
    with pytest.raises(MissingPackage, match="pip install opencv-python-headless"):
        resize(np.zeros((4, 4, 3), np.uint8), (2, 2))
    with pytest.raises(ValueError, match="decoder is one of"):
        decode(encoded(), decoder="jpeg2000")


@pytest.mark.filterwarnings("error")
def test_falling_back_to_pillow_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = faster._module
    monkeypatch.setattr(faster, "_module", lambda name: real(name) if name == "PIL" else None)
    faster._once.cache_clear()
    with pytest.warns(faster.SlowerThanPossible, match="pip install simplejpeg"):
        decode(encoded())
    with pytest.warns(faster.SlowerThanPossible, match="opencv-python-headless"):
        resize(np.zeros((4, 4, 3), np.uint8), (2, 2))


def test_resizing_falls_back_to_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    image = np.asarray(picture())
    real = faster._module
    for size in ((120, 180), (45, 80), (224, 224)):
        quick = resize(image, size).astype(int)
        with monkeypatch.context() as without:
            without.setattr(faster, "_module", lambda n: real(n) if n == "PIL" else None)
            slow = resize(image, size).astype(int)
        assert quick.shape == slow.shape == (*size, 3)
        assert abs(quick - slow)[2:-2, 2:-2].max() <= 3


def box_of_the_paper(rng: Any, height: int, width: int) -> tuple[int, int, int, int]:
    """The crop of "Going deeper with convolutions" as commonly drawn, by another generator."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1)
        shape = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = int(round(math.sqrt(area * shape))), int(round(math.sqrt(area / shape)))
        if 0 < wide <= width and 0 < tall <= height:
            return rng.randint(0, height - tall), rng.randint(0, width - wide), tall, wide
    return (height - min(height, width)) // 2, (width - min(height, width)) // 2, 0, 0


def test_crops_are_distributed_as_those_of_the_usual_augmentation() -> None:
    torch.manual_seed(3)
    ours = np.array([faster.random_crop_box(300, 400) for _ in range(4000)])
    rng = random.Random(4)
    theirs = np.array([box_of_the_paper(rng, 300, 400) for _ in range(4000)])
    for column in range(4):
        both = np.sort(np.concatenate([ours[:, column], theirs[:, column]]))
        gap = np.abs(
            np.searchsorted(np.sort(ours[:, column]), both, "right")
            - np.searchsorted(np.sort(theirs[:, column]), both, "right")
        ).max()
        assert gap / 4000 * math.sqrt(2000) < 1.95  # Kolmogorov and Smirnov, p = 0.001


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1), (7, 7)])
def test_a_crop_lies_inside_pictures_of_any_shape(height: int, width: int) -> None:
    for _ in range(50):
        top, left, tall, wide = faster.random_crop_box(height, width, scale=(0.9, 1.0))
        assert tall > 0 and wide > 0 and 0 <= top <= height - tall and 0 <= left <= width - wide


def test_a_flip_is_fair_and_mirrors() -> None:
    torch.manual_seed(1)
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    made = [faster.random_flip(image) for _ in range(1000)]
    flipped = sum(bool((one == image[:, ::-1]).all()) for one in made)
    assert abs(flipped - 500) < 4 * math.sqrt(250)
    assert faster.random_resized_crop(np.asarray(picture()), 16).shape == (16, 16, 3)


def test_normalising_on_the_device_is_what_the_cpu_did() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    batch = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    wanted = (
        torch.stack([(one.float().div(255) - torch.tensor(mean)[:, None, None]) for one in batch])
        / torch.tensor(std)[:, None, None]
    )
    assert torch.allclose(normalise(batch, mean, std), wanted, atol=1e-6)
    assert torch.allclose(normalise(batch, mean, std, "cpu"), wanted, atol=1e-6)
    assert normalise(batch, mean, std, dtype=torch.float16).dtype is torch.float16
    assert batch.dtype is torch.uint8
    with pytest.raises(DataError, match="8 bits, not float32"):
        normalise(batch.float(), mean, std)


def test_collating_keeps_eight_bits_and_puts_channels_second() -> None:
    images = [np.full((5, 4, 3), k, np.uint8) for k in range(3)]
    batch, labels = Collate()([(image, k) for k, image in enumerate(images)])
    assert batch.shape == (3, 3, 5, 4) and batch.dtype is torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [0, 1, 2] and batch[2].unique().tolist() == [2]
    named = Collate()([{"image": image, "id": str(k)} for k, image in enumerate(images)])
    assert named["image"].equal(batch) and named["id"] == ["0", "1", "2"]
    with pytest.raises(DataError, match="differ in size"):
        Collate()([images[0], np.zeros((5, 5, 3), np.uint8)])


def test_flipped_views_collate_as_copies() -> None:
    image = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    batch = Collate()([image[:, ::-1], image])
    assert batch[0].flip(2).equal(batch[1])


STAGES = {"read": 0.03, "decode": 0.64, "resize": 0.63, "normalise": 0.3, "collate": 0.39,
          "hand-over": 0.48}  # fmt: skip


def test_prices_follow_from_the_stages() -> None:
    found = {one.name: one for one in prices(STAGES, threads=1.9, pixels=(160_000, 65_536))}
    assert list(found)[0] == "uint8"
    assert found["uint8"].saves_ms == pytest.approx(0.3 + 0.75 * 0.87)
    assert found["resize"].saves_ms == pytest.approx(0.63 * 0.68)
    assert found["threads"].saves_ms == pytest.approx(0.48) and found["threads"].measured
    assert found["stored size"].saves_ms == pytest.approx(0.64 * (1 - 65_536 / 160_000))
    total = sum(STAGES.values())
    assert found["resize"].speedup == pytest.approx(total / (total - 0.63 * 0.68))


def test_a_decoder_timed_on_the_users_pictures_is_priced_by_that() -> None:
    timed = {"PIL": 0.8, "simplejpeg": 0.4, "cv2": 0.5, "simplejpeg fast": 0.1}
    (found,) = prices({"decode": 0.6, "read": 0.1}, decoding=timed)
    assert found.measured and "simplejpeg" in found.what
    assert found.saves_ms == pytest.approx(0.6 * 0.5)


def test_what_gains_nothing_is_not_offered() -> None:
    assert prices({"read": 10.0, "decode": 0.1}) == []
    assert prices({}) == []
    assert [p.name for p in prices({"hand-over": 1.0, "decode": 1.0}, threads=1.0)] == ["decoder"]
    assert not [p for p in prices(STAGES, pixels=(100, 100)) if p.name == "stored size"]


def test_installed_decoders_are_timed_on_pictures() -> None:
    found = decoders([encoded()], seconds=0.01)
    assert "PIL" in found and all(ms > 0 for ms in found.values())
