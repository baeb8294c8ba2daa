"""How parts of a machine are connected: matrices of nvidia-smi and the XML of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from whyidle.model import Evidence
from whyidle.readers import read

TABS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-51,104-155\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t52-103\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n\n  NIC0: mlx5_0\n"
)
SPACES = (
    "      GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity\n"
    "GPU0   X    NV18  PIX   0-51,104-155  0\n"
    "GPU1  NV18   X    SYS   52-103        1\n"
    "NIC0  PIX   SYS    X\n"
)


def given(folder: Path, text: str) -> Evidence:
    path = folder / "topo.txt"
    path.write_text(text)
    return read([path])


def links(evidence: Evidence, about: str) -> dict[tuple[str, str], str]:
    rows = evidence.table("links").select("one", "other", "kind", "about").rows()
    return {(one, other): kind for one, other, kind, told in rows if told == about}


@pytest.mark.parametrize("text", [TABS, SPACES], ids=["tabs and colours", "spaces"])
def test_a_matrix_says_how_each_pair_is_connected(tmp_path: Path, text: str) -> None:
    found = given(tmp_path, text)
    told = links(found, "topology")
    assert len(told) == 9
    assert told["GPU0", "GPU1"] == "NV18" and told["GPU1", "NIC0"] == "SYS"
    assert told["NIC0", "NIC0"] == "X"
    settings = found.table("settings").select("device", "key", "value").rows()
    assert (0, "cpu_affinity", "0-51,104-155") in settings
    assert (1, "numa_affinity", "1") in settings


@pytest.mark.parametrize(
    ("command", "about"),
    [("$ nvidia-smi topo -p2p r\n", "peer_read"), ("$ nvidia-smi topo -p2p w\n", "peer_write"),
     ("", "peer_access")],
)  # fmt: skip
def test_a_matrix_of_peer_access_has_its_own_words(
    tmp_path: Path, command: str, about: str
) -> None:
    text = command + "        GPU0    GPU1\n GPU0   X       CNS\n GPU1   OK      X\n"
    told = links(given(tmp_path, text), about)
    assert told["GPU0", "GPU1"] == "CNS" and told["GPU1", "GPU0"] == "OK"


def test_links_without_activity_or_right_are_facts_and_not_zeros(tmp_path: Path) -> None:
    text = (
        "GPU 0: NVIDIA H200 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: NVIDIA H100 (UUID: GPU-b)\n"
        "Nvlink queries are not supported for Devices in MIG mode\n"
    )
    found = given(tmp_path, text)
    assert links(found, "nvlink") == {
        ("GPU0", "NVLink0"): "26.562 GB/s", ("GPU0", "NVLink1"): "inactive"
    }  # fmt: skip
    rows = found.table("settings").select("gpu", "key", "value", "reason").rows()
    assert ("GPU-b", "nvlink", None, "not supported") in rows


SYSTEM = """<!-- made here -->
<system version="1">
  <cpu numaid="0">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:02:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
        <pci busid="0000:0a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="0"><nvlink target="0000:0b:00.0" count="4"/></gpu></pci>
        <pci busid="0000:0b:00.0" class="0x030200" link_speed="" link_width="0">
          <gpu dev="1"/></pci>
      </pci>
      <pci busid="0000:0c:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
        <gpu dev="2"/></pci>
    </pci>
    <pci busid="0000:0d:00.0" class="0x030200"><gpu dev="3"/></pci>
  </cpu>
  <cpu numaid="1"><pci busid="0000:0e:00.0" class="0x030200"><gpu dev="4"/></pci></cpu>
</system>
"""


def test_paths_between_gpus_follow_from_the_tree_of_nccl(tmp_path: Path) -> None:
    found = given(tmp_path, SYSTEM)
    told = links(found, "topology")
    assert told["GPU0", "GPU1"] == told["GPU1", "GPU0"] == "PIX"
    assert told["GPU0", "GPU2"] == "PXB"
    assert told["GPU0", "GPU3"] == "PHB"
    assert told["GPU0", "GPU4"] == "SYS"
    assert links(found, "nvlink") == {("GPU0", "GPU1"): "NV4"}
    pcie = links(found, "pcie")
    assert pcie["GPU0", "0000:02:00.0"] == "32.0 GT/s x16"
    assert pcie["GPU1", "0000:02:00.0"] == "unknown"


def test_a_graph_of_nccl_keeps_its_channels(tmp_path: Path) -> None:
    text = (
        '<graphs version="1"><graph id="0" pattern="4" typeintra="NVL" nchannels="1">'
        '<channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>'
    )
    found = given(tmp_path, text)
    assert links(found, "nccl_graph 0") == {("GPU0", "GPU1"): "NVL"}


def test_a_card_of_an_unknown_maker_keeps_its_own_column(tmp_path: Path) -> None:
    text = (
        "\tGPU0\tGPU1\thsn0\tmlx5_1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV18\tSYS\tPIX\t0-31\t0\n"
        "GPU1\tNV18\t X \tNODE\tPXB\t32-63\t1\n"
        "hsn0\tSYS\tNODE\t X \tSYS\t\t\n"
        "mlx5_1\tPIX\tPXB\tSYS\t X \t\t\n"
    )
    found = given(tmp_path, text)
    kinds = links(found, "topology")
    assert (kinds["GPU0", "hsn0"], kinds["GPU0", "mlx5_1"]) == ("SYS", "PIX")
    assert (kinds["GPU1", "hsn0"], kinds["GPU1", "mlx5_1"]) == ("NODE", "PXB")
    facts = found.table("settings").select("gpu", "key", "value").rows()
    assert ("GPU1", "cpu_affinity", "32-63") in facts
