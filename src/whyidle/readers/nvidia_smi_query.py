"""Reads ``nvidia-smi -q``, as text or XML (-x), once or in a loop: all GPUs, MIG, processes.

The text is turned into the same tree as the XML; where the two, or two driver generations, call
one thing by different names, ``PATHS`` lists them all. The GPU's index is not printed: it is the
place in the list, when every attached GPU is listed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from whyidle.readers.readings import LOCAL_TIME, Place, Readings, naive_ns
from whyidle.readers.unknowns import NOT_AVAILABLE, Reading, number, whole_number
from whyidle.readers.xml_tree import Node, parsed

XML_ROOT = "<nvidia_smi_log"
TEXT_TITLE = "NVSMI LOG"

PATHS: tuple[tuple[str, str, str], ...] = (
    ("gpu_utilization", "%", "utilization/gpu_util utilization/gpu"),
    ("memory_utilization", "%", "utilization/memory_util utilization/memory"),
    ("encoder_utilization", "%", "utilization/encoder_util utilization/encoder"),
    ("decoder_utilization", "%", "utilization/decoder_util utilization/decoder"),
    ("jpeg_utilization", "%", "utilization/jpeg_util utilization/jpeg"),
    ("ofa_utilization", "%", "utilization/ofa_util utilization/ofa"),
    ("memory_total", "MiB", "fb_memory_usage/total"),
    ("memory_reserved", "MiB", "fb_memory_usage/reserved"),
    ("memory_used", "MiB", "fb_memory_usage/used"),
    ("memory_free", "MiB", "fb_memory_usage/free"),
    ("bar1_used", "MiB", "bar1_memory_usage/used"),
    ("power", "W", "gpu_power_readings/power_draw gpu_power_readings/average_power_draw "
     "gpu_power_readings/instant_power_draw gpu_power_readings/instantaneous_power_draw "
     "power_readings/power_draw"),
    ("power_limit", "W", "gpu_power_readings/current_power_limit "
     "power_readings/enforced_power_limit power_readings/power_limit"),
    ("temperature", "C", "temperature/gpu_temp temperature/gpu_current_temp"),
    ("memory_temperature", "C", "temperature/memory_temp temperature/memory_current_temp"),
    ("sm_clock", "MHz", "clocks/sm_clock clocks/sm"),
    ("graphics_clock", "MHz", "clocks/graphics_clock clocks/graphics"),
    ("memory_clock", "MHz", "clocks/mem_clock clocks/memory"),
    ("video_clock", "MHz", "clocks/video_clock clocks/video"),
    ("sm_clock_max", "MHz", "max_clocks/sm_clock max_clocks/sm"),
    ("graphics_clock_max", "MHz", "max_clocks/graphics_clock max_clocks/graphics"),
    ("memory_clock_max", "MHz", "max_clocks/mem_clock max_clocks/memory"),
    ("pcie_gen", "", "pci/pci_gpu_link_info/pcie_gen/current_link_gen "
     "pci/gpu_link_info/pcie_generation/current"),
    ("pcie_gen_max", "", "pci/pci_gpu_link_info/pcie_gen/max_link_gen "
     "pci/gpu_link_info/pcie_generation/max"),
    ("pcie_width", "", "pci/pci_gpu_link_info/link_widths/current_link_width "
     "pci/gpu_link_info/link_width/current"),
    ("pcie_width_max", "", "pci/pci_gpu_link_info/link_widths/max_link_width "
     "pci/gpu_link_info/link_width/max"),
    ("pcie_tx", "KB/s", "pci/tx_util pci/tx_throughput"),
    ("pcie_rx", "KB/s", "pci/rx_util pci/rx_throughput"),
    ("pcie_replays", "", "pci/replay_counter pci/replays_since_reset"),
    ("fan_speed", "%", "fan_speed"),
)  # fmt: skip
"""Metric, unit where the text has none, and where it stands: the first known one counts."""

SUMS = (
    ("ecc_corrected", "single_bit/total sram_correctable dram_correctable"),
    ("ecc_uncorrected", "double_bit/total sram_uncorrectable sram_uncorrectable_parity "
     "sram_uncorrectable_secded sram_uncorrectable_sec_ded dram_uncorrectable"),
)  # fmt: skip
"""Error counts since the driver was loaded, as the sum of those that are known."""

SETTINGS = (
    ("name", "product_name"), ("uuid", "uuid gpu_uuid"), ("bus_id", "pci/pci_bus_id pci/bus_id"),
    ("pstate", "performance_state"), ("persistence_mode", "persistence_mode"),
    ("compute_mode", "compute_mode"), ("mig_mode", "mig_mode/current_mig mig_mode/current"),
    ("ecc_mode", "ecc_mode/current_ecc ecc_mode/current"), ("addressing_mode", "addressing_mode"),
    ("virtualization", "gpu_virtualization_mode/virtualization_mode"),
    ("recovery_action", "gpu_recovery_action"), ("fabric_state", "fabric/state"),
    ("fabric_status", "fabric/status"),
    ("row_remap_failure", "remapped_rows/remapped_row_failure "
     "remapped_rows/remapping_failure_occurred"),
    ("row_remap_pending", "remapped_rows/remapped_row_pending remapped_rows/pending"),
)  # fmt: skip

THROTTLES = (
    ("gpu_idle", "gpu_idle idle"),
    ("clocks_setting", "applications_clocks_setting"),
    ("sw_power_cap", "sw_power_cap"),
    ("hw_slowdown", "hw_slowdown"),
    ("hw_thermal_slowdown", "hw_thermal_slowdown hw_slowdown/hw_thermal_slowdown"),
    ("hw_power_brake", "hw_power_brake_slowdown hw_slowdown/hw_power_brake_slowdown"),
    ("sw_thermal_slowdown", "sw_thermal_slowdown"),
    ("sync_boost", "sync_boost"),
)
"""Our name of a reason for low clocks -> its names below the list of reasons."""

TIME = ("%a %b %d %H:%M:%S %Y",)
_COLON = re.compile(r"\s:(?:\s|$)")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")


def recognises(text: str) -> bool:
    """Whether the text is output of ``nvidia-smi -q``, with or without -x."""
    return XML_ROOT in text or (TEXT_TITLE in text and "==" in text)


def take(path: Path, text: str, readings: Readings) -> None:
    """Add what every reading in the text says."""
    logs = _xml_logs(path, text) if XML_ROOT in text else map(_text_log, _text_parts(text))
    for log in logs:
        _take_log(log, readings)
    readings.note(LOCAL_TIME)


def _xml_logs(path: Path, text: str) -> Iterator[Node]:
    """One tree per document: a loop writes one document after the other."""
    starts = [found.start() for found in re.finditer(r"<\?xml|<!DOCTYPE|<nvidia_smi_log", text)]
    ends = [found.end() for found in re.finditer(r"</nvidia_smi_log>", text)] or [len(text)]
    if len(ends) < text.count(XML_ROOT):
        ends.append(len(text))
    at = 0
    for end in ends:
        first = bisect_left(starts, at)
        if first == len(starts):
            return
        yield parsed(path, text[starts[first] : end])
        at = end


def _text_parts(text: str) -> Iterator[str]:
    parts = re.split(r"^=+\s*NVSMI LOG\s*=+\s*$", text, flags=re.M)[1:]
    return iter(parts)


def _text_log(text: str) -> Node:
    """The tree of one text: a line is an element, what is indented below it lies inside."""
    root = Node("nvidia_smi_log")
    open_: list[tuple[int, Node]] = [(-1, root)]
    for line in text.splitlines():
        bare = line.strip()
        if not bare:
            continue
        indent = len(line[: len(line) - len(line.lstrip())].expandtabs())
        colon = _COLON.search(bare)
        key = bare[: colon.start()].rstrip() if colon else bare
        value = bare[colon.end() :] if colon else ""
        gpu = _GPU.fullmatch(key)
        node = Node("gpu", {"id": gpu[1]}) if gpu else Node(_tag(key), {}, value)
        while open_[-1][0] >= indent:
            open_.pop()
        if len(open_) < 24:
            open_[-1][1].children.append(node)
            open_.append((indent, node))
    return root


def _tag(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")


def _take_log(log: Node, readings: Readings) -> None:
    t_ns = naive_ns(log.words("timestamp") or "", *TIME)
    gpus = list(log.all("gpu"))
    attached = log.words("attached_gpus")
    in_order = attached is None or attached == str(len(gpus))
    if not in_order:
        readings.note(f"{len(gpus)} of {attached} GPUs are listed, so their index is unknown")
    uuids = [_first(gpu, "uuid gpu_uuid") for gpu in gpus]
    for index, gpu in enumerate(gpus):
        uuid, bus = uuids[index], gpu.attributes.get("id")
        name = uuid if uuid and uuids.count(uuid) == 1 and number(uuid).reason else bus
        place = Place(name or str(index), index if in_order else None, None, t_ns)
        readings.setting(place, "driver", log.words("driver_version"))
        readings.setting(place, "cuda", log.words("cuda_version"))
        _take_gpu(gpu, place, readings)


def _take_gpu(gpu: Node, place: Place, readings: Readings) -> None:
    for metric, unit, paths in PATHS:
        texts = [
            found for path in paths.split() if (found := gpu.words(*path.split("/"))) is not None
        ]
        if texts:
            readings.sample(place, metric, _best(texts, unit))
    for key, paths in SETTINGS:
        text = _first(gpu, paths)
        if text is not None:
            readings.setting(place, key, text)
    volatile = gpu.at("ecc_errors", "volatile")
    for metric, paths in SUMS:
        told = [volatile.words(*path.split("/")) for path in paths.split()] if volatile else []
        counts = [number(text) for text in told if text is not None]
        if counts:
            readings.sample(place, metric, _total(counts))
    _take_throttles(gpu, place, readings)
    _take_instances(gpu, place, readings)
    _take_processes(gpu, place, readings)


def _first(node: Node, paths: str) -> str | None:
    texts = (node.words(*path.split("/")) for path in paths.split())
    return next((text for text in texts if text is not None), None)


def _best(texts: list[str], unit: str) -> Reading:
    """The first known reading of several, else why the first one is unknown."""
    found = [number(text, unit) for text in texts]
    return next((reading for reading in found if reading.value is not None), found[0])


def _total(found: list[Reading]) -> Reading:
    known = [reading.value for reading in found if reading.value is not None]
    return Reading(sum(known), None) if known else found[0]


def flag(text: str) -> Reading:
    """1 for "Active", 0 for "Not Active", else unknown and why."""
    known = {"active": 1.0, "not active": 0.0}.get(text.strip().lower())
    return Reading(known, None) if known is not None else number(text)


def _take_throttles(gpu: Node, place: Place, readings: Readings) -> None:
    for tag in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = gpu.at(tag)
        if reasons is None:
            continue
        for ours, paths in THROTTLES:
            named = [
                f"{tag.removesuffix('s')}_{path}" for path in paths.split()[:1]
            ] + paths.split()
            text = _first(reasons, " ".join(named))
            if text:
                readings.sample(place, f"throttle_{ours}", flag(text))
                readings.setting(place, f"throttle.{ours}", text)


def _take_instances(gpu: Node, place: Place, readings: Readings) -> None:
    """Instances of a partitioned GPU: memory only, since -q shows no activity for them."""
    listed: list[Node] = list(gpu.all("mig_device"))
    inside = gpu.at("mig_devices")
    listed += list(inside.all("mig_device")) if inside else []
    for instance in listed:
        ids = [
            instance.words("gpu_instance_id") or "?",
            instance.words("compute_instance_id") or "?",
        ]
        part = place._replace(gpu=f"{place.gpu}/gi{ids[0]}/ci{ids[1]}", device=None)
        readings.setting(part, "mig_parent", place.gpu)
        for metric in ("total", "reserved", "used", "free"):
            text = _first(instance, f"fb_memory_usage/{metric} shared_fb_memory_usage/{metric}")
            if text is not None:
                readings.text(part, f"memory_{metric}", text, "MiB")


def _take_processes(gpu: Node, place: Place, readings: Readings) -> None:
    listed = gpu.at("processes")
    for pid, kind, name, memory in _processes(listed.children if listed else ()):
        process = whole_number(pid)
        if process is None:
            continue
        readings.setting(place, "process", " ".join((pid, kind or "?", name or "?")))
        reading = number(memory, "MiB") if memory is not None else Reading(None, NOT_AVAILABLE)
        readings.sample(place._replace(process=process), "memory_used", reading)


def _processes(nodes: Iterable[Node]) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    for node in nodes:
        if node.tag == "process_info":
            yield (node.words("pid") or "", node.words("type"), node.words("process_name"),
                   node.words("used_memory"))  # fmt: skip
        elif node.tag == "process_id":
            yield (node.text.strip(), node.words("type"), node.words("name"),
                   node.words("used_gpu_memory"))  # fmt: skip
