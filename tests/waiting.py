"""Waits for other processes and threads, as long as it takes."""

import time

HANGS_S = 1200.0
"""Seconds after which something hangs; no machine is so slow. It decides nothing else."""


def wait_until(condition, process=None):
    """Wait until a condition holds, while a process that could bring it about is alive."""
    end = time.monotonic() + HANGS_S
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            raise AssertionError(f"it ended before: {process.communicate()}")
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.01)
