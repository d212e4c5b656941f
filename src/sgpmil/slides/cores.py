"""How many processes are worth starting."""

import os

__all__ = ["available_cores"]


def available_cores() -> int:
    """Count the cores that this process may use: in a container or a job, not all there are."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
