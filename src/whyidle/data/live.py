"""The loader of a job that already runs: ``whyidle attach`` answers it, so this calls that.

``attach`` reads, from outside, what the training thread waits for (the loader, by line), the CPU
time, states and bytes read of every worker from ``/proc``, and how often the CPU quota ran out.
"""

from __future__ import annotations

import argparse

from whyidle.errors import UsageError
from whyidle.observe import attach


def run(options: argparse.Namespace) -> int:
    """Watch the job as ``whyidle attach PID`` does, and report."""
    if options.step_ms is not None or options.batch_size is not None:
        raise UsageError(
            "--step-ms and --batch-size are for a SPEC; a running job shows both itself.\n"
            f"Write: whyidle data probe --pid {options.pid}"
        )
    asked = argparse.Namespace(
        pid=options.pid,
        seconds=options.seconds or attach.DEFAULT_S,
        pause=False,
        output=None,
        format=options.format,
        report=options.output,
        fail_on=[],
        quiet=getattr(options, "quiet", False),
    )
    attach.run(asked, ())
    return 0
