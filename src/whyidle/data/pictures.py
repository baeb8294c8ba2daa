"""Pictures: whether a file holds a whole one, and storing it smaller with the loss stated."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from whyidle.data.records import BadSample
from whyidle.errors import MissingPackage

ENDINGS = {
    ".jpg": "jpg",
    ".jpeg": "jpg",
    ".png": "png",
    ".bmp": "bmp",
    ".webp": "webp",
    ".gif": "gif",
    ".tif": "tif",
    ".tiff": "tif",
    ".ppm": "ppm",
}
"""Ending of a file, in lower case -> the name of its field."""

FIELDS = frozenset(ENDINGS.values())
LISTED = 256
"""About so many pictures of a set are compared to state the loss."""


def flaw(field: str, content: bytes) -> str | None:
    """Why the file can be no whole picture, by its structure and without decoding; or None."""
    if not content:
        return "the file is empty"
    if field == "jpg":
        if content[:2] != b"\xff\xd8":
            return "no JPEG: it does not begin as one"
        if b"\xff\xd9" not in content[-4096:]:
            return "the JPEG is cut short: its end is missing"
    if field == "png":
        return _png_flaw(content)
    return None


def _png_flaw(content: bytes) -> str | None:
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        return "no PNG: it does not begin as one"
    at = 8
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        body = content[at + 4 : at + 8 + length]
        end = at + 8 + length
        if len(body) < 4 + length or end + 4 > len(content):
            break
        if zlib.crc32(body) != struct.unpack_from(">I", content, end)[0]:
            return "the PNG is damaged: a checksum does not agree"
        if body[:4] == b"IEND":
            return None
        at = end + 4
    return "the PNG is cut short: its end is missing"


@dataclass(frozen=True)
class Treatment:
    """What is done to the pictures of a sample; called in the processes that read.

    ``check``: none, structure, or decode. ``resize``: the shorter side in pixels, never enlarged.
    ``quality``: of the JPEG. Every ``stride``-th sample is compared, and the note is its loss.
    """

    check: str = "structure"
    resize: int | None = None
    quality: int | None = None
    stride: int = 1

    @property
    def changes(self) -> bool:
        """Whether pictures are stored anew."""
        return self.resize is not None or self.quality is not None

    def __call__(
        self, position: int, key: str, fields: dict[str, bytes]
    ) -> tuple[dict[str, bytes], Any]:
        """The fields with their pictures checked and treated, and the loss if it was looked at."""
        kept: dict[str, bytes] = {}
        note = None
        for name, content in fields.items():
            kind = name.rpartition(".")[2]
            if kind in FIELDS:
                if self.check != "none" and (found := flaw(kind, content)):
                    raise BadSample(key, found)
                if self.check == "decode" or self.changes:
                    new, stored, loss = self._stored(key, content, position % self.stride == 0)
                    if new:
                        name, content = name[: len(name) - len(kind)] + "jpg", stored
                        note = loss or note
            kept[name] = content
        return kept, note

    def _stored(self, key: str, content: bytes, compare: bool) -> tuple[bool, bytes, Any]:
        image_module = pillow("Checking pictures" if not self.changes else "Storing pictures anew")
        try:
            with image_module.open(io.BytesIO(content)) as image:
                image.load()
                if not self.changes or image.mode not in ("RGB", "L", "CMYK"):
                    return False, content, None
                small = image
                if self.resize is not None and min(image.size) > self.resize:
                    scale = self.resize / min(image.size)
                    width, height = (max(1, round(side * scale)) for side in image.size)
                    small = image.resize((width, height), image_module.Resampling.LANCZOS)
                elif self.quality is None:
                    return False, content, None
                stored = self._encoded(image, small)
                return True, stored, loss(image, small, stored) if compare else None
        except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
            raise BadSample(key, f"the picture cannot be decoded ({error})") from error

    def _encoded(self, image: Any, small: Any) -> bytes:
        kept = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
        out = io.BytesIO()
        small.save(out, "JPEG", quality=self.quality or 90, **kept)
        return out.getvalue()


def pillow(purpose: str) -> Any:
    """Pillow's module for images; ``purpose`` is what needs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackage("Pillow", purpose) from error
    return Image


def loss(image: Any, small: Any, stored: bytes) -> list[float]:
    """PSNR in dB of the stored picture: against the resized one, and, enlarged, the original."""
    image_module = pillow("Comparing pictures")
    with image_module.open(io.BytesIO(stored)) as again:
        again.load()
        large = again.resize(image.size, image_module.Resampling.BICUBIC)
    return [psnr(small, again), psnr(image, large)]


def psnr(one: Any, other: Any) -> float:
    """Peak signal-to-noise ratio of two pictures in dB; equal ones have 99."""
    import numpy as np

    difference = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    square = float(np.mean(difference * difference))
    return 99.0 if square == 0 else min(99.0, 10 * float(np.log10(255.0**2 / square)))


def told(treatment: Treatment, losses: list[list[float]]) -> dict[str, Any] | None:
    """What the manifest says of pictures that were stored anew."""
    if not treatment.changes:
        return None
    from PIL import __version__

    return {
        "resize": treatment.resize,
        "quality": treatment.quality or 90,
        "encoder": f"Pillow {__version__}",
        "kept": "pictures with alpha, a palette or 16 bits, and those that needed no change",
        "compared": len(losses),
        "psnr_db_after_resize": _spread([one[0] for one in losses]),
        "psnr_db_against_original": _spread([one[1] for one in losses]),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "least": round(ordered[0], 2),
        "median": round(ordered[len(ordered) // 2], 2),
        "most": round(ordered[-1], 2),
    }
