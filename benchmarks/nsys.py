"""Speed of reading a large Nsight Systems export, beside plain ``sqlite3`` over the same columns.

``python benchmarks/nsys.py [--steps 200000] [--rounds 3] [--json FILE]``

The export is made here: per step one launch call, one kernel, one wait and one operator range with
its shapes in the text, as ``emit_nvtx`` writes it. Plain ``sqlite3`` fetches the same columns into
Python and throws them away: no reader in Python that goes through SQLite can be faster.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.measure import medians  # noqa: E402

CALL, KERNEL, RANGE = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
TABLES = {
    KERNEL: "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, "
    "shortName, mangledName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ",
    CALL: "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    RANGE: "start, end, eventType, globalTid, text, textId, domainId",
}
PLAIN = """
import sqlite3, sys
database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro&immutable=1", uri=True)
for query in (
    "SELECT start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName, "
    "mangledName, gridX*gridY*gridZ, blockX*blockY*blockZ FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    "SELECT start, end, globalTid, eventType, textId, text FROM NVTX_EVENTS",
):
    rows = database.execute(query)
    while rows.fetchmany(20_000):
        pass
"""
READ = """
import sys
from pathlib import Path
from whyidle.readers import nsys
nsys.read(Path(sys.argv[1]))
"""


def made(path: str, steps: int) -> None:
    """Write the export: four records a step."""
    process = (1 << 48) | (4242 << 24)
    thread = process | 4242
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        texts = ["cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020"]
        texts += [f"void kernel_{n}<float>(int)" for n in range(400)]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts, 1))
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        for table, rows in (
            (KERNEL, ((n * 40_000 + 9000, n * 40_000 + 29_000, 0, 1, 7, n, process, 3 + n % 400, 1,
                       1, 32, 64, 2, 1, 128, 1, 1) for n in range(steps))),
            (CALL, ((n // 2 * 40_000 + 4000 * (1 + n % 2), n // 2 * 40_000 + 7000 * (1 + n % 2), 0,
                     thread, n // 2 if n % 2 == 0 else steps + n, 1 + n % 2, 0)
                    for n in range(2 * steps))),
            (RANGE, ((n * 40_000 + 1000, n * 40_000 + 7500, 59, thread,
                      f"aten::mm, seq = {n}, op_id = {n + 9}, sizes = [[64, 64], [64, {n % 9}]]",
                      None, 0) for n in range(steps))),
        ):  # fmt: skip
            holes = ", ".join("?" * len(TABLES[table].split(",")))
            database.executemany(f"INSERT INTO {table} VALUES ({holes})", rows)


def main() -> None:
    """Make the export, measure both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/report.sqlite"
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.nsys import made; "
        subprocess.run([sys.executable, "-c", f"{code}made({path!r}, {asked.steps})"], check=True)
        size_mb = Path(path).stat().st_size / 1e6
        found = medians(
            {
                "plain sqlite3": [sys.executable, "-c", PLAIN, path],
                "whyidle": [sys.executable, "-c", READ, path],
            },
            asked.rounds,
            {"PYTHONPATH": str(ROOT / "src")},
        )
    records = 4 * asked.steps
    print(f"{records:,} records, {size_mb:.0f} MB")
    for name, cost in found.items():
        rate = records / cost.cpu_s / 1e3
        print(f"{name:14} {cost.cpu_s:6.2f} CPU s {cost.wall_s:6.2f} s {cost.peak_mib:6.0f} MiB "
              f"{rate:6.0f} k records per CPU s")  # fmt: skip
    if asked.json:
        figures = {name: cost.as_dict() for name, cost in found.items()}
        asked.json.write_text(json.dumps({"records": records, "mb": size_mb, **figures}))


if __name__ == "__main__":
    main()
