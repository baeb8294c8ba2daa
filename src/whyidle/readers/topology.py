"""Reads how the parts of a machine are connected, into ``links`` (and affinities into settings).

- ``nvidia-smi topo -m`` and ``topo -p2p``: matrices, with tabs or spaces, colours or none;
- ``nvidia-smi nvlink -s``: speed per link;
- the XML that NCCL and RCCL take and dump: ``NCCL_TOPO_FILE`` (root ``system``) and
  ``NCCL_GRAPH_FILE`` (root ``graphs``). From the tree of PCI devices the kind of path between two
  GPUs is worked out with the words of the matrix: PIX below one switch, PXB across switches, PHB
  at one CPU, SYS across CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from whyidle.errors import UnknownEvidence
from whyidle.model import Evidence
from whyidle.readers.printed_text import decoded, printed
from whyidle.readers.readings import Place, Readings
from whyidle.readers.xml_tree import Node, parsed

NAME = "topology"

PEER = {
    "r": "peer_read",
    "w": "peer_write",
    "n": "peer_nvlink",
    "a": "peer_atomics",
    "p": "peer_pcie",
}
_BESIDE = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
"""Columns of a matrix that are no parts of the machine, and come after all that are."""
_HEADER = re.compile(r"^[ \t]*GPU\d+(?:[ \t]+\S.*)?$", re.M)
_GPU = re.compile(r"GPU(\d{1,9})")
_KIND = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|NV\d+|OK|CNS|GNS|TNS|NS|DR|U|N/A")
_PEER_KIND = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U")
_P2P = re.compile(r"topo\s+(?:--?p2p|-p2pstatus)[ =]*(\w)")
_NIC = re.compile(r"^[ \t]*+(NIC\d+): (\S+)[ \t]*$", re.M)
_LINK_GPU = re.compile(r"^GPU (\d{1,9}): (.+?) \(UUID: (\S+)\)[ \t]*$", re.M)
_LINK = re.compile(r"^[ \t]*+Link (\d+): (\S.*)$", re.M)
_XML = re.compile(r"<(system|graphs)[\s>]")
GPU_CLASSES, NIC_CLASSES = ("0x0300", "0x0302", "0x0380"), ("0x0200", "0x0207")


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes are a matrix, a list of links, or the XML of NCCL."""
    text = decoded(head)
    return xml_kind(text) is not None or recognises(text)


def recognises(text: str) -> bool:
    """Whether the text holds a matrix of ``topo`` or the list of ``nvlink -s``."""
    return _matrix_start(text) is not None or is_nvlink(text)


def is_nvlink(text: str) -> bool:
    """Whether the text is output of ``nvidia-smi nvlink -s``."""
    return (
        _LINK_GPU.search(text) is not None
        and re.search(r"^[ \t]*+Link \d+:|nvlink", text, re.I | re.M) is not None
    )


def xml_kind(text: str) -> str | None:
    """``system`` or ``graphs`` for the XML of NCCL, comments before it aside."""
    bare = re.sub(r"^\s*(?:<\?xml[^>]*\?>|<!--.*?-->|\s)+", "", text, count=1, flags=re.S)
    found = _XML.match(bare)
    return found[1] if found else None


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The links in one file."""
    found = printed(path, progress)
    readings = Readings()
    readings.notes += found.notes
    kind = xml_kind(found.text)
    if kind == "graphs":
        _take_graphs(parsed(path, found.text.strip()), readings)
    elif kind == "system":
        _take_system(parsed(path, found.text.strip()), readings)
    else:
        take(found.text, readings)
    if not len(readings):
        raise UnknownEvidence(
            str(path), "a topology without any connection", "Give the output of nvidia-smi topo -m."
        )
    return readings.evidence(path, NAME, found.digest)


def take(text: str, readings: Readings, command: str = "") -> None:
    """Add every matrix and list of links in a text."""
    if is_nvlink(text):
        _take_nvlink(text, readings)
    if _matrix_start(text) is not None:
        _take_matrix(text, readings, command or text)


def _matrix_start(text: str) -> int | None:
    """Where the header of a matrix begins: part names, then a row of as many kinds."""
    for found in _HEADER.finditer(text):
        names = _parts(found.group())
        row = text[found.end() : found.end() + 4000].lstrip("\n").split("\n", 1)[0]
        cells = row.split()
        if (
            cells
            and cells[0] == names[0]
            and len(cells) > len(names)
            and all(_KIND.fullmatch(cell) for cell in cells[1 : len(names) + 1])
        ):
            return found.start()
    return None


def _take_matrix(text: str, readings: Readings, command: str) -> None:
    start = _matrix_start(text)
    assert start is not None
    header, *lines = text[start:].splitlines()
    names = _parts(header)
    columns = _BESIDE.findall(header)
    asked = _P2P.search(command)
    peer_about = PEER.get(asked[1], "peer_access") if asked else "peer_access"
    for line in lines:
        name, *kinds = line.split() or [""]
        kinds = kinds[: len(names)]
        if name not in names or not kinds or not all(map(_KIND.fullmatch, kinds)):
            continue
        for other, kind in zip(names, kinds, strict=False):
            about = peer_about if asked or _PEER_KIND.fullmatch(kind) else "topology"
            readings.link(name, other, kind, about)
        if gpu := _GPU.fullmatch(name):
            _take_affinity(name, int(gpu[1]), line, len(names), columns, readings)
    for nic, name in _NIC.findall(text):
        readings.setting(Place(), "nic", f"{nic} {name}")


def _parts(header: str) -> list[str]:
    """The parts of the machine that a header names, of whatever maker: GPUs and NICs."""
    return _BESIDE.split(header)[0].split()


def _take_affinity(
    gpu: str, index: int, line: str, parts: int, columns: list[str], readings: Readings
) -> None:
    cells = line.split("\t")[parts + 1 :] if "\t" in line.strip() else line.split()[parts + 1 :]
    cells = [cell.strip() for cell in cells if cell.strip()]
    if len(cells) != len(columns):
        return
    place = Place(gpu, index)
    keys = {
        "CPU Affinity": "cpu_affinity",
        "NUMA Affinity": "numa_affinity",
        "GPU NUMA ID": "gpu_numa",
    }
    for column, cell in zip(columns, cells, strict=True):
        readings.setting(place, keys[column], cell)


def _take_nvlink(text: str, readings: Readings) -> None:
    starts = list(_LINK_GPU.finditer(text))
    for found, after in zip(starts, [*starts[1:], None], strict=False):
        body = text[found.end() : after.start() if after else len(text)]
        place = Place(found[3], int(found[1]))
        readings.setting(place, "name", found[2])
        readings.setting(place, "uuid", found[3])
        links = _LINK.findall(body)
        for number, speed in links:
            readings.link(f"GPU{found[1]}", f"NVLink{number}", speed.strip(" \t<>"), "nvlink")
        if links:
            continue
        if "not supported" in body.lower():
            readings.setting(place, "nvlink", "Not Supported")
        elif "inactive" in body.lower():
            readings.setting(place, "nvlink", "inactive")
        else:
            readings.setting(place, "nvlink", "N/A")


class _Part(NamedTuple):
    """A PCI device of the XML, and the names of what lies above it, the CPU last."""

    name: str
    above: tuple[str, ...]


def _take_system(system: Node, readings: Readings) -> None:
    gpus: list[_Part] = []
    names = {
        pci.attributes.get("busid"): f"GPU{gpu.attributes['dev']}"
        for pci in system.below()
        if (gpu := pci.at("gpu")) is not None and _GPU.fullmatch(f"GPU{gpu.attributes.get('dev')}")
    }
    for number, cpu in enumerate(system.all("cpu")):
        top = f"CPU{cpu.attributes.get('numaid', number)}"
        for pci, above in _devices(cpu, (top,)):
            bus = pci.attributes.get("busid", "?")
            name = names.get(bus, bus)
            readings.link(name, above[0], _speed(pci), "pcie")
            gpu = pci.at("gpu")
            if gpu is not None or pci.attributes.get("class", "").startswith(GPU_CLASSES):
                gpus.append(_Part(name, above))
                numbered = _GPU.fullmatch(name)
                place = Place(name, int(numbered[1]) if numbered else None)
                readings.setting(place, "bus_id", bus)
                readings.setting(place, "numa_affinity", top.removeprefix("CPU"))
            _take_gpu_links(gpu, name, names, readings)
    for one, other in combinations(gpus, 2):
        kind = _path(one, other)
        readings.link(one.name, other.name, kind, "topology")
        readings.link(other.name, one.name, kind, "topology")
    if not gpus:
        readings.note("the file marks no device as a GPU, so only PCI links are known")


def _take_gpu_links(
    gpu: Node | None, name: str, names: dict[str | None, str], readings: Readings
) -> None:
    for link in gpu.children if gpu else ():
        if link.tag in ("nvlink", "xgmi"):
            target = link.attributes.get("target", "?")
            short = "NV" if link.tag == "nvlink" else "XGMI"
            count = link.attributes.get("count", "?")
            readings.link(name, names.get(target, target), f"{short}{count}", "nvlink")


def _devices(node: Node, above: tuple[str, ...]) -> Iterator[tuple[Node, tuple[str, ...]]]:
    for pci in node.all("pci"):
        yield pci, above
        yield from _devices(pci, (pci.attributes.get("busid", "?"), *above))


def _speed(pci: Node) -> str:
    speed, width = pci.attributes.get("link_speed"), pci.attributes.get("link_width")
    if not speed or not width or width == "0":
        return "unknown"
    return f"{speed.removesuffix(' PCIe')} x{width}"


def _path(one: _Part, other: _Part) -> str:
    if one.above[0] == other.above[0] and not one.above[0].startswith("CPU"):
        return "PIX"
    if one.above[-1] != other.above[-1]:
        return "SYS"
    return "PXB" if set(one.above[:-1]) & set(other.above[:-1]) else "PHB"


def _take_graphs(graphs: Node, readings: Readings) -> None:
    for graph in graphs.all("graph"):
        told = graph.attributes
        about = f"nccl_graph {told.get('id', '?')}"
        for channel in graph.all("channel"):
            gpus = [f"GPU{gpu.attributes.get('dev', '?')}" for gpu in channel.all("gpu")]
            for one, other in zip(gpus, gpus[1:], strict=False):
                readings.link(one, other, told.get("typeintra", "unknown"), about)
        words = " ".join(f"{key} {value}" for key, value in told.items())
        readings.setting(Place(), "nccl_graph", words)
