"""Reads the table that plain ``nvidia-smi`` prints, as far as a table for people can be read.

It rounds (power to a watt) and cuts names off; ``nvidia-smi -q -x`` says more.
"""

from __future__ import annotations

import re

from whyidle.readers.readings import LOCAL_TIME, Place, Readings, naive_ns
from whyidle.readers.unknowns import number

_TITLE = re.compile(r"NVIDIA-SMI\s+\S+\s+(?:Driver|KMD) Version:\s*(\S+)")
_FIRST = re.compile(
    r"\|\s*(\d{1,9})\s{2,}(\S.*?)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s+\S+\s*\|(.*)\|"
)
_SECOND = re.compile(
    r"\|\s*(\S+)\s+(\S+)\s+(P\d+|N/A|\S+)\s+(\S+)\s*/\s*(\S+)\s*\|\s*(\S+)\s*/\s*(\S+)\s*\|\s*(\S+)\s+(.*?)\s*\|"
)
_MODE = re.compile(r"\s+(?:On|Off|N/A|WDDM|TCC|MCDM|WDDM\s+TCC)\s*$")
_DATE = re.compile(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3}\s+\d+ \d\d:\d\d:\d\d \d{4}\s*$", re.M)

LONGEST_LINE = 500
"""A longer line is none of this table, and is not looked at."""


def recognises(text: str) -> bool:
    """Whether the text holds the table of plain ``nvidia-smi``."""
    return "NVIDIA-SMI" in text and "GPU-Util" in text and "+--" in text


def take(text: str, readings: Readings) -> None:
    """Add every GPU of every table in the text."""
    t_ns = None
    first: re.Match[str] | None = None
    driver: str | None = None
    for line in text.splitlines():
        if len(line) > LONGEST_LINE:
            continue
        if _DATE.match(line):
            t_ns = naive_ns(line.strip(), "%a %b %d %H:%M:%S %Y")
            readings.note(LOCAL_TIME)
        elif title := _TITLE.search(line):
            driver = title[1]
        elif (found := _FIRST.match(line)) and "MiB" not in line:
            first = found
        elif first is not None and (second := _SECOND.match(line)):
            place = Place(first[3], int(first[1]), None, t_ns)
            readings.setting(place, "name", _MODE.sub("", first[2]))
            readings.setting(place, "bus_id", first[3])
            if driver:
                readings.setting(place, "driver", driver)
            _take_row(second, place, readings)
            first = None


def _take_row(row: re.Match[str], place: Place, readings: Readings) -> None:
    readings.text(place, "fan_speed", row[1], "%")
    readings.text(place, "temperature", row[2].rstrip("C"), "C")
    readings.setting(place, "pstate", row[3])
    readings.text(place, "power", row[4], "W")
    readings.text(place, "power_limit", row[5], "W")
    readings.text(place, "memory_used", row[6], "MiB")
    readings.text(place, "memory_total", row[7], "MiB")
    readings.sample(place, "gpu_utilization", number(row[8], "%"))
    readings.setting(place, "compute_mode", row[9])
