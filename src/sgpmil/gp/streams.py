"""Streams of a GPU that are nobody else's.

torch hands out 32 streams in a circle. Recorded steps that were recorded on the same one also share
the memory that cuBLAS keeps for it, and when they run side by side they overwrite it for each
other.
"""

import torch

__all__ = ["own_stream"]

_CIRCLE = 32

_owned: dict[tuple[int | str, ...], torch.cuda.Stream] = {}


def own_stream(device: torch.device, *owner: int | str) -> torch.cuda.Stream:
    """Return the stream of an owner, always the same; no two have the same.

    Args:
        device: The GPU.
        owner: Who it is.

    Raises:
        RuntimeError: There are as many owners as streams.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (index, *owner)
    if key not in _owned:
        taken = {stream.cuda_stream for stream in _owned.values()}
        found = (torch.cuda.Stream(device) for _ in range(_CIRCLE))
        free = next((stream for stream in found if stream.cuda_stream not in taken), None)
        if free is None:
            raise RuntimeError(f"Expected a free stream, but {len(taken)} are taken.")
        _owned[key] = free
    return _owned[key]
