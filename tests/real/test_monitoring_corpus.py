"""Every file of the shared monitoring and communication corpora: read, or told why not.

The tables below were written by looking at the files, not at what the readers make of them.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, evidence_dir
from whyidle.errors import EvidenceError
from whyidle.model import HOST_METRICS, LINKS, METRICS, SAMPLES, SETTINGS, Evidence
from whyidle.readers import read

FOLDER = evidence_dir()
MIB = 1048576.0


def files() -> list[Path]:
    if FOLDER is None:
        return []
    return sorted(
        path
        for name in ("monitoring", "communication")
        for path in (FOLDER / name).rglob("*")
        if path.is_file()
    )


FILES = files()


def named(path: Path) -> str:
    assert FOLDER is not None
    return str(path.relative_to(FOLDER))


class Expected(NamedTuple):
    """A reader's name, or None for a sentence that holds ``told``."""

    reader: str | None
    told: str = ""


OUTCOMES: list[tuple[str, Expected]] = [
    ("*/CATALOGUE.tsv", Expected(None)),
    ("monitoring/alerts/*", Expected(None, "alert rules")),
    ("monitoring/captures/*", Expected("nvidia_smi")),
    ("monitoring/dashboards/*.json", Expected(None, "Grafana dashboard")),
    ("monitoring/dashboards/*prom-values.yaml", Expected(None, "settings of Prometheus")),
    ("monitoring/dashboards/*.yaml", Expected(None, "Kubernetes object")),
    ("monitoring/dcgm/*.csv", Expected(None, "list of fields that dcgm-exporter exports")),
    ("*.md", Expected(None, "documentation")),
    ("*.rst", Expected(None, "documentation")),
    ("*.py", Expected(None, "Python program")),
    ("monitoring/health/gpud-fabricmanager.log", Expected(None, "fabric manager")),
    ("monitoring/health/gpud-lspci*", Expected(None, "list of PCI devices")),
    ("monitoring/health/*.a10", Expected(None, "empty")),
    ("monitoring/health/*.a100", Expected("topology")),
    ("monitoring/job-traces/*.pkl", Expected(None)),
    ("monitoring/kubernetes/mig-parted-nvidia*", Expected(None, "Kubernetes object")),
    ("monitoring/kubernetes/mig-parted*", Expected(None, "plan for partitioning")),
    ("monitoring/kubernetes/*", Expected(None, "Kubernetes object")),
    ("monitoring/nccl-flight-recorder/*/_dump_*", Expected("flight_recorder")),
    ("monitoring/nccl-flight-recorder/*.log", Expected(None, "injected fault")),
    ("monitoring/nccl-flight-recorder/*.txt", Expected(None, "report about a hang")),
    ("monitoring/nvidia-smi-compute-apps-csv/*4080*idle*", Expected("nvidia_smi")),
    ("monitoring/nvidia-smi-compute-apps-csv/*idle*", Expected(None, "no process")),
    ("monitoring/nvidia-smi-pmon/*h?00*idle*", Expected(None, "no process")),
    ("monitoring/nvidia-smi-*", Expected("nvidia_smi")),
    ("monitoring/nvlink/*", Expected("topology")),
    ("monitoring/nvml-mock/*", Expected(None, "stand-in for GPUs")),
    ("monitoring/rocm-smi/*table*", Expected(None, "rocm-smi -a --json")),
    ("monitoring/rocm-smi/*", Expected("rocm_smi")),
    ("monitoring/slurm/*.sbatch", Expected(None, "job script")),
    ("monitoring/slurm/*.json", Expected(None)),
    ("monitoring/slurm/*1003.err", Expected(None, "empty")),
    ("monitoring/slurm/*", Expected(None)),
    ("monitoring/topo/windows*591*", Expected(None, "refused the command")),
    ("monitoring/topo/*", Expected("topology")),
    ("communication/topo*/*", Expected("topology")),
    ("communication/nccl_log/*", Expected(None, "log of NCCL")),
    ("communication/straggler_truth/*.yaml", Expected(None, "not the trace")),
    ("communication/straggler_truth/*.json", Expected(None)),
]
ANY = ("communication/straggler_truth/*.parquet", "communication/traces/*")
"""Files whose readers have their own tests: read, or refused with a sentence."""


def outcome(name: str) -> Expected | None:
    if any(fnmatch(name, pattern) for pattern in ANY):
        return None
    return next(expected for pattern, expected in OUTCOMES if fnmatch(name, pattern))


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}"[:70])
def test_every_file_is_read_or_says_in_a_sentence_why_not(path: Path) -> None:
    expected = outcome(named(path))
    try:
        found = read([path])
    except EvidenceError as error:
        lines = str(error).splitlines()
        assert 2 <= len(lines) <= 3 and all(len(line) < 400 for line in lines)
        assert expected is None or (expected.reader is None and expected.told in str(error))
        return
    assert expected is None or found.sources[0].reader == expected.reader
    keeps_its_promises(found)


def keeps_its_promises(found: Evidence) -> None:
    """What holds for every source of samples: schemas, units, and no unknown without a reason."""
    for name, schema in (("samples", SAMPLES), ("settings", SETTINGS), ("links", LINKS)):
        if name not in found.tables:
            continue
        table = found.tables[name]
        assert dict(table.schema) == schema and table.height
        if name == "links":
            assert table.drop("host").null_count().sum_horizontal()[0] == 0
            continue
        assert (table["value"].is_null() == table["reason"].is_not_null()).all()
    samples = found.table("samples")
    units = METRICS | HOST_METRICS
    for metric, unit in samples.select("metric", "unit").unique().rows():
        assert metric.startswith(("user/", "allocator.")) or units[metric] == unit
    ratios = samples.filter(pl.col("unit") == "ratio")["value"].drop_nulls()
    assert ratios.is_between(0, 1).all()


GPUS = {
    "captures/linux-x86_64__nvidia-h200__590.48.01.txt": 1,
    "captures/linux-x86_64__nvidia-h100-mig__590.48.01.txt": 5,  # one and its four instances
    "nvidia-smi-xml/k8s-test-infra-hw-qx-gb200.xml": 4,
    "nvidia-smi-xml/k8s-test-infra-mock-qx-gb200-ecc-injected.xml": 2,
    "nvidia-smi-xml/telegraf-tesla-t4.xml": 1,
    "nvidia-smi-q-text/thamada-A100SXMx4.q-text.txt": 4,
    "nvidia-smi-q-text/thamada-H100SXMx8.q-text.txt": 8,
    "nvidia-smi-q-text/thamada-RTX3090.q-text.txt": 2,
    "nvidia-smi-table/thamada-A40x10.table.txt": 10,
    "nvidia-smi-table/thamada-H100NVLx2.table.txt": 2,
    "rocm-smi/thamada-MI300X_x4.q-text.txt": 4,
}


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
@pytest.mark.parametrize(("name", "count"), GPUS.items(), ids=list(GPUS))
def test_as_many_gpus_are_found_as_the_file_lists(name: str, count: int) -> None:
    assert FOLDER is not None
    samples = read([FOLDER / "monitoring" / name]).table("samples")
    assert samples["gpu"].n_unique() == count


class Value(NamedTuple):
    """What a person reads in a file: the values of a metric of a GPU, in the file's order."""

    name: str
    metric: str
    values: list[float | None]
    device: int | None = 0


H200 = "nvidia-smi-query-gpu-csv/linux-h200__590.48.01.load.txt"
MIG = "nvidia-smi-query-gpu-csv/linux-h100-mig__590.48.01.load.txt"
RTX = "nvidia-smi-query-gpu-csv/linux-geforce-rtx-2080-super__610.57.04.load.txt"
ECC = "nvidia-smi-xml/k8s-test-infra-mock-qx-gb200-ecc-injected.xml"
READ_BY_HAND = [
    Value(H200, "gpu_utilization", [1.0]),
    Value(H200, "memory_utilization", [0.07]),
    Value(H200, "power", [627.4]),
    Value(H200, "memory_used", [32362 * MIB]),
    Value(H200, "fan_speed", [None]),
    Value(H200, "pcie_width", [16.0]),
    Value(MIG, "gpu_utilization", [None]),
    Value(RTX, "gpu_utilization", [0.08]),
    Value(RTX, "encoder_utilization", [1.0]),
    Value(RTX, "power", [98.14]),
    Value(RTX, "temperature", [38.0]),
    Value(RTX, "memory_temperature", [None]),
    Value(RTX, "sm_clock", [2.07e9]),
    Value(RTX, "ecc_corrected", [None]),
    Value("nvidia-smi-dmon/linux-h200__590.48.01.load.txt", "power", [630, 628, 629, 632, 630]),
    Value("nvidia-smi-dmon/linux-h100-mig__590.48.01.load.txt", "gpu_utilization", [None] * 5),
    Value("nvidia-smi-dmon/linux-h100-mig__590.48.01.load.txt", "power", [438, 440, 437, 439, 439]),
    Value("nvidia-smi-dmon/windows-geforce-rtx-2080-super__610.62.load.txt", "gpu_utilization",
          [0.07] * 5),
    Value("nvidia-smi-q-text/linux-h200__590.48.01.load.txt", "power", [627.32]),
    Value("nvidia-smi-q-text/linux-h200__590.48.01.load.txt", "pcie_rx", [8691e3]),
    Value("nvidia-smi-q-text/thamada-RTX6000Ada_x8.q-text.txt", "pcie_gen", [1.0]),
    Value("nvidia-smi-q-text/thamada-RTX6000Ada_x8.q-text.txt", "pcie_gen_max", [4.0]),
    Value(ECC, "gpu_utilization", [0.5]),
    Value(ECC, "power", [618.35]),
    Value(ECC, "ecc_uncorrected", [5.0]),
    Value("nvidia-smi-table/thamada-A100SXMx4.table.txt", "power", [60.0], 1),
    Value("nvidia-smi-table/thamada-A100SXMx4.table.txt", "memory_total", [81920 * MIB], 1),
    Value("nvidia-smi-table/thamada-A100SXMx4.table.txt", "fan_speed", [None], 1),
    Value("rocm-smi/telegraf-vega-10-XT.json", "power", [15.0]),
    Value("rocm-smi/telegraf-vega-10-XT.json", "fan_speed", [0.13]),
    Value("rocm-smi/telegraf-vega-10-XT.json", "memory_total", [17163091968.0]),
    Value("rocm-smi/telegraf-rx6700xt_rocm571.json", "memory_utilization", [None]),
    Value("rocm-smi/thamada-MI300X_x4.q-text.txt", "power", [136.0], 3),
]  # fmt: skip


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
@pytest.mark.parametrize("row", READ_BY_HAND, ids=lambda row: f"{row.metric}-{row.name[-40:]}")
def test_the_values_are_those_that_a_person_reads(row: Value) -> None:
    assert FOLDER is not None
    samples = read([FOLDER / "monitoring" / row.name]).table("samples")
    found = samples.filter(
        (pl.col("metric") == row.metric)
        & (pl.col("device") == row.device)
        & pl.col("process").is_null()
    )["value"].to_list()
    assert [value is None for value in found] == [value is None for value in row.values]
    known = [value for value in row.values if value is not None]
    assert [value for value in found if value is not None] == pytest.approx(known)


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
def test_a_card_sampled_each_minute_has_the_spread_that_was_measured_on_it() -> None:
    assert FOLDER is not None
    found = read([FOLDER / "monitoring/nvidia-smi-csv-series/rckola-24GB-60s.csv"])
    use = found.table("samples").filter(pl.col("metric") == "gpu_utilization")
    assert use.height == 90 and use["t_ns"].diff().drop_nulls().median() == 60 * 10**9
    assert use["value"].mean() == pytest.approx(0.58, abs=0.005)


LINKED = [
    ("monitoring/topo/stelline-asus-esc8000a-4gpu-4nic-0.txt", "GPU0", "GPU1", "NODE", "topology"),
    ("communication/topo/ml-engineering_README_network_8.txt", "GPU3", "GPU7", "NV18", "topology"),
    ("communication/topo/ml-engineering_README_debug_14.txt", "GPU0", "GPU1", "CNS", "peer_read"),
    ("communication/topo/fs23243314046_1gpu_6nic.txt", "NIC3", "NIC4", "PIX", "topology"),
    ("communication/topo/nccl_issue667_p2p_hang.txt", "GPU0", "GPU1", "PXB", "topology"),
    ("communication/topo_xml/azure_ncv4-topo.xml", "GPU0", "GPU1", "SYS", "topology"),
    ("communication/topo_xml/rccl_topo_8p_90a.xml", "GPU0", "GPU1", "XGMI1", "nvlink"),
    ("communication/topo_xml/rccl_topo_8p_pcie.xml", "GPU0", "GPU1", "PXB", "topology"),
    ("communication/topo_xml/azure_ncv4-graph.xml", "GPU0", "GPU3", "SYS", "nccl_graph 0"),
    ("monitoring/nvlink/linux-h200__590.48.01.capabilities.txt", "GPU0", "NVLink17",
     "26.562 GB/s", "nvlink"),
]  # fmt: skip


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
@pytest.mark.parametrize("row", LINKED, ids=lambda row: row[0].rsplit("/", 1)[1])
def test_the_links_are_those_that_a_person_reads(row: tuple[str, str, str, str, str]) -> None:
    assert FOLDER is not None
    links = read([FOLDER / row[0]]).table("links").select("one", "other", "kind", "about")
    assert row[1:] in links.rows()
