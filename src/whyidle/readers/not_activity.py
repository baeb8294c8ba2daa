"""Files that people give and that show no activity of a GPU: what they are, and what to give.

Asked only when no reader knows a file that was named. Each answer is one sentence about the file
and one about the way out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from whyidle.errors import UnknownEvidence, UnreadableEvidence
from whyidle.readers import nvidia_smi_csv, rocm_smi
from whyidle.readers.printed_text import decoded, encoding_of

SAMPLES = (
    "Give readings: nvidia-smi --query-gpu=timestamp,index,uuid,utilization.gpu,power.draw "
    "--format=csv -l 1 > gpu.csv."
)
SCRAPE = (
    "Give what it was made from: a scrape (curl HOST:9400/metrics) or the JSON of "
    "/api/v1/query_range."
)
OF_THE_JOB = (
    "Give a PyTorch Profiler trace of the job, or readings of its GPUs (nvidia-smi, DCGM, "
    "Prometheus)."
)
DUMPS = "Give the dump itself (TORCH_NCCL_DUMP_ON_TIMEOUT=1), or a PyTorch Profiler trace."
ASKED = "what was asked for, not what the GPUs did"


class Kind(NamedTuple):
    """A kind of file: patterns of its first bytes or its name, what it is, and what to give."""

    pattern: re.Pattern[str]
    what: str
    instead: str


def _kind(what: str, instead: str, *patterns: str) -> Kind:
    return Kind(re.compile("|".join(patterns), re.M), what, instead)


BY_NAME = (
    _kind("documentation: text about metrics or logs, not a reading of a GPU", SAMPLES,
          r"\.(?:md|rst)$"),
    _kind("a Python program, not a recording of one", OF_THE_JOB, r"\.py$"),
    _kind(f"a job script: {ASKED}", OF_THE_JOB, r"\.(?:sbatch|sh)$"),
)  # fmt: skip

BY_CONTENT = (
    _kind("a Grafana dashboard: how to draw metrics, and no metric", SCRAPE,
          r'"panels"\s*:\s*\[', r'"__inputs"\s*:', r'"schemaVersion"\s*:'),
    _kind("alert rules of Prometheus or their tests: conditions, and no reading", SCRAPE,
          r"^[ \t]*+-?[ \t]*+(?:alert|record):\s*\S", r"^rule_files:", r"^groups:\s*$"),
    _kind("the list of fields that dcgm-exporter exports, and no reading", SCRAPE,
          r"DCGM FIELD, Prometheus metric type",
          r"^#? ?DCGM_FI_\w+, *(?:gauge|counter|label)", r"^dcgm_\w+, *(?:gauge|counter)"),
    _kind(f"a Kubernetes object: {ASKED}", SCRAPE,
          r"^apiVersion:\s*\S", r"^kind:\s*\S", r"^[ \t]*+nvidia\.com/"),
    _kind("a plan for partitioning GPUs (MIG), and no reading", SAMPLES,
          r"^mig-configs:", r"^[ \t]*+mig-devices:"),
    _kind("the configuration of a stand-in for GPUs, and no measurement", SAMPLES,
          r"\A(?=[\s\S]*(?:architecture|driver_version|num_devices))"
          r"[\s\S]*?^(?:device_defaults|devices|system):[ \t]*(?:#.*)?$"),
    _kind("settings of Prometheus or Grafana, and no reading", SCRAPE,
          r"^serviceMonitor", r"^prometheus:", r"scrape_configs:", r"^grafana:"),
    _kind(f"a job script: {ASKED}", OF_THE_JOB, r"^#SBATCH\b"),
    _kind("a log of NCCL: how ranks are connected, not how long they worked or waited",
          "Give a PyTorch Profiler trace of each rank, or the dumps of the flight recorder.",
          r"NCCL (?:INFO|WARN)", r"\bvia (?:NET|P2P|SHM)/", r"^#\s+out-of-place",
          r"\bfloat\s+sum\s+-1\s"),
    _kind("a log of an injected fault, not what a flight recorder kept", DUMPS,
          r"[Ff]ault.?[Ii]nject", r"injected fault", r"GPU_ERROR", r"LOCK_GIL"),
    _kind("a report about a hang, not what a flight recorder kept", DUMPS,
          r"Process Group Desc\s*\|", r"Missing Ranks"),
    _kind("the description of a trace of steps, not the trace", OF_THE_JOB,
          r"^trial_name:", r"^dp_size:"),
    _kind("a log of the NVLink fabric manager: no activity of a GPU", SAMPLES,
          r"Message header details", r"multicast (?:group|team)", r"[Ff]abric ?[Mm]anager"),
    _kind("a list of PCI devices (lspci): no activity of a GPU",
          "Give nvidia-smi topo -m or nvidia-smi -q -x.",
          r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d .*\[[0-9a-f]{4}\]:",
          r"^[0-9a-f]{2}:[0-9a-f]{2}\.\d \S.*: "),
    _kind("nvidia-smi refused the command, so the file holds no reading", SAMPLES,
          r"^ERROR: Option .* is missing its value", r"^Invalid combination of input arguments"),
    _kind("nvidia-smi found no usable GPU and says so",
          "Take it again where the job runs; in a container, with its GPUs.",
          r"NVIDIA-SMI has failed", r"Failed to initialize NVML", r"No devices were found",
          r"Unable to determine the device handle"),
    _kind("JSON of Slurm: jobs, nodes and limits, and no reading of a GPU", OF_THE_JOB,
          r"data_parser", r"openapi/slurm", r"\"slurm\"\s*:",
          r"\"meta\"\s*:\s*\{\s*\"(?:plugin|slurm)"),
    _kind("the counts of a Slurm exporter of one job, and no reading of a GPU", OF_THE_JOB,
          r'^[ \t]*+\{[^{}]*"job_id"\s*:'),
    _kind("output of Slurm: what was allocated, not what the GPUs did", OF_THE_JOB,
          r"(?:^|[|,])(?:JobID|JobIDRaw|JobName|AllocTRES|ReqTRES|QOS|PARTITION|NODELIST|NodeName|"
          r"Partition|PartitionName|STATE|User|Account|Def Acct|GrpTRES)(?:[|,]|\s*$)",
          r"^(?:JobId|NodeName|PartitionName|ClusterName|Configuration data as of)\b",
          r"\bSLURM_\w+ *=", r"^SlurmctldHost", r"^AccountingStorage",
          r"^\S+ +\S+ +(?:idle|mix|alloc|down|drain)\w*[*~#]?\b", r"^\|[\w-]+\|[\d|]*\|$"),
    _kind("the output of a job: what it printed, not what the GPUs did", OF_THE_JOB,
          r"slurmstepd", r"srun: ", r"CUDA out of memory", r"Traceback \(most recent call last\)",
          r"DUE TO TIME LIMIT", r"oom.kill", r"^Epoch \d+", r"^Progress: \d+%"),
)  # fmt: skip
"""Asked in this order; the first that matches is told."""


def refuse(path: Path, head: bytes) -> None:
    """Raise a sentence when the file is of a kind that shows no activity of a GPU."""
    if b"\x00" in head[:4096] and encoding_of(head) == "utf-8":
        return
    text = decoded(head)
    if rocm_smi.is_table(text):
        raise UnknownEvidence(
            str(path), "the table that rocm-smi prints for people", rocm_smi.JSON_INSTEAD
        )
    for kind in BY_NAME:
        if kind.pattern.search(path.name):
            raise UnknownEvidence(str(path), kind.what, kind.instead)
    if nvidia_smi_csv.headless(text):
        raise UnknownEvidence(
            str(path),
            "rows of nvidia-smi --query-gpu without their header, so nobody can say which is what",
            "Run it without noheader, or write the names of its fields above the rows.",
        )
    for kind in BY_CONTENT:
        if kind.pattern.search(text):
            raise UnknownEvidence(str(path), kind.what, kind.instead)
    if text.lstrip().startswith("<?xml"):
        raise UnreadableEvidence(
            str(path), "XML that no reader knows",
            "Give nvidia-smi -q -x, or a topology of NCCL (NCCL_TOPO_DUMP_FILE).",
        )  # fmt: skip
