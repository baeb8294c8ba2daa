"""A process of the pool: ``python -m whyidle.executor.worker FD`` judges batches until told to go.

Ctrl-C reaches every process of a terminal; a worker leaves it to the one that asked, which closes
the pipe.
"""

from __future__ import annotations

import gc
import signal
import sys
from multiprocessing.connection import Connection


def main() -> None:
    """Answer every (batch, steps) from the pipe with its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from whyidle.executor.work import sent

    gc.freeze()
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            batch, steps = pipe.recv()
            pipe.send(sent(batch, steps))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main()
