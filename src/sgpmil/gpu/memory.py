"""How much of a GPU's memory is free."""

import torch

__all__ = ["free_memory"]


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that are free, after torch has given back what it keeps for later.

    To give it back takes some milliseconds, and as many to take it again: not for every step.

    Args:
        device: The GPU.
    """
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free
