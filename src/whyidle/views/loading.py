"""What the loader was busy with while the device waited for it, by the Python frames recorded.

Only the process that was recorded shows its frames: with ``num_workers=0`` that is all of loading,
with worker processes it is what the training process does itself (waiting, unpickling, pinning).

========= ======= ======================================================================
stage     String  one of STAGES: storage, tokens, sample, handover
file      String  the user's innermost source file around it; null when none was recorded
line      Int32   likewise
op        String  the frame that tells the stage
rank      Int32
waited_ns Int64   empty device time blamed on the loader meanwhile, in nanoseconds
========= ======= ======================================================================
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.intervals import Index
from whyidle.views.activities import CODE
from whyidle.views.host import split_frame
from whyidle.views.nest import nearest

if TYPE_CHECKING:
    from whyidle.views import Views
    from whyidle.views.host import Host

STAGES = ("storage", "tokens", "sample", "handover")

LEAST = 0.2
"""The part of the wait for the loader from which on a stage is worth telling."""

MOST_PLACES = 3

SCHEMA = {
    "stage": pl.String, "file": pl.String, "line": pl.Int32, "op": pl.String, "rank": pl.Int32,
    "waited_ns": pl.Int64,
}  # fmt: skip

_RULES = (
    (
        "storage",
        re.compile(
            r"<built-in (method|function) (open|open_code|read|readinto|readline|readlines|read1"
            r"|recv|recv_into|recvfrom|pread|stat|listdir|scandir|fromfile)\b"
            r"|<method '(read|readinto|recv|recv_into)' of"
            r"|(^|/)(h5py|fsspec|s3fs|gcsfs|adlfs|botocore|boto3|urllib3|requests|aiohttp|lmdb|zarr"
            r"|pyarrow|netCDF4|zipfile|tarfile|gzip|sqlite3)(/|\.py)"
            r"|numpy/lib/(_?npyio(_impl)?|format|_format_impl)\.py\(\d+\): "
            r"|torch/serialization\.py\(\d+\): (load|_load)$|(^|/)(pathlib|glob|mmap)\.py\("
        ),
    ),
    (
        "tokens",
        re.compile(
            r"(^|/)(tokenizers|sentencepiece|tiktoken|youtokentome|spacy|nltk)(/|\.)"
            r"|transformers/.*tokenization|<method 'encode(_batch)?' of|tokeniz",
            re.IGNORECASE,
        ),
    ),
    (
        "handover",
        re.compile(
            r"torch/multiprocessing/reductions\.py\(\d+\): rebuild"
            r"|torch/_utils\.py\(\d+\): _rebuild|<built-in (function|method) loads\b"
            r"|multiprocessing/(reduction|resource_sharer)\.py"
            r"|torch/utils/data/_utils/pin_memory\.py\(\d+\): pin_memory$"
        ),
    ),
    (
        "sample",
        re.compile(
            r"(^|/)(PIL|cv2|torchvision/transforms|torchvision/io|torchvision/datasets"
            r"|albumentations|kornia|imageio|skimage|decord|av|librosa|soundfile|torchaudio"
            r"|audiomentations|imgaug|scipy|pandas)(/|\.py)"
            r"|<method 'decode' of 'Imaging|torch/utils/data/_utils/collate\.py\("
            r"|\): __getitem__$|\): __getitems__$"
        ),
    ),
)
"""Stage -> frames that tell it. The innermost frame that tells any stage decides."""


def stage_of(frame: str) -> str | None:
    """The stage that a recorded Python frame tells of, if any."""
    return next((stage for stage, rule in _RULES if rule.search(frame)), None)


def loading(views: Views) -> pl.DataFrame:
    """The frame that the module describes; no rows where no frames were recorded."""
    rows = views.blame.filter((pl.col("activity") == "loader") & (pl.col("span") >= 0))
    host = views.host
    if not rows.height or not host.nest.start.size:
        return pl.DataFrame(schema=SCHEMA)
    nearby, stages = _innermost(host)
    at = nearby[rows["span"].to_numpy().astype(np.intp)]
    inside = (at >= 0) & (host.activity[np.maximum(at, 0)] == CODE["loader"])
    if not inside.any():
        return pl.DataFrame(schema=SCHEMA)
    at, rows = at[inside], rows.filter(pl.Series(inside))
    names = host.nest.spans["name"].cast(pl.String)
    names = host.nest.spans["name"].cast(pl.String)
    around = host.frame[at]
    found = pl.DataFrame(
        {
            "stage": stages.gather(at),
            "user": pl.Series(names.gather(np.maximum(around, 0))).set(pl.Series(around < 0), None),
            "op": names.gather(at),
            "rank": rows["rank"],
            "waited_ns": rows["end_ns"] - rows["start_ns"],
        }
    )
    sums = found.group_by("stage", "user", "op", "rank").agg(pl.col("waited_ns").sum())
    places = [_line(name) for name in sums["user"].to_list()]
    return (
        sums.with_columns(
            pl.Series("file", [file for file, _ in places], dtype=pl.String),
            pl.Series("line", [line for _, line in places], dtype=pl.Int32),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .sort("waited_ns", "stage", "op", "file", "rank", descending=[True] + [False] * 4)
    )


def told(views: Views, stage: str, words: str, remedies: list[Remedy]) -> list[Sign]:
    """One sign when a stage took a fair part of the wait for the loader; else none.

    ``words`` say what the stage is. Its milliseconds are counted under the wait for the loader.
    """
    found = views.loading.filter(pl.col("stage") == stage)
    waited_ms, all_ms = int(found["waited_ns"].sum()) / 1e6, views.waited_for_loader_ms
    if not found.height or waited_ms < LEAST * all_ms:
        return []
    top = list(found.head(MOST_PLACES).iter_rows(named=True))
    places = [Place(file=r["file"], line=r["line"], op=r["op"], rank=r["rank"]) for r in top]
    return [
        Sign(
            level="seen",
            what=f"{waited_ms:.4g} ms of the {all_ms:.4g} ms that the device waited for the loader "
            f"went by in {words}, most of it in {top[0]['op']}.",
            where=places,
            remedies=remedies,
        )
    ]


def _innermost(host: Host) -> tuple[Index, pl.Series]:
    """Per span, the innermost frame around it that tells a stage; and each span's own stage."""
    spans = host.nest.spans.select("kind", pl.col("name").cast(pl.String))
    framed = spans.filter(pl.col("kind") == "python")["name"].unique()
    known = {name: stage_of(name) for name in framed.to_list()}
    stages = spans.select(
        pl.when(pl.col("kind") == "python").then(
            pl.col("name").replace_strict(known, default=None, return_dtype=pl.String)
        )
    ).to_series()
    return nearest(host.nest, stages.is_not_null().to_numpy()), stages


def _line(name: str | None) -> tuple[str | None, int | None]:
    found = split_frame(name) if name is not None else None
    return (found[0], found[1]) if found else (None, None)
