"""Streams of a GPU that are nobody else's.

torch hands out 32 streams of a priority in a circle, and keeps some memory for cuBLAS with each.
Recorded steps have it written into them: two that were recorded on the same stream must not run
side by side. Nor must anything be computed on a stream that is recorded on, since torch frees its
memory when a recording ends.
"""

import torch

__all__ = ["own_stream"]

_CIRCLE = 32

_owned: dict[tuple[int | str, ...], torch.cuda.Stream] = {}


def own_stream(device: torch.device, *owner: int | str, priority: int = 0) -> torch.cuda.Stream:
    """Return the stream of an owner, always the same; no two have the same.

    Args:
        device: The GPU.
        owner: Who it is.
        priority: 0, or -1 for one whose kernels go first.

    Raises:
        RuntimeError: There are as many owners as streams.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    key = (index, *owner)
    if key not in _owned:
        taken = {stream.cuda_stream for stream in _owned.values()}
        found = (torch.cuda.Stream(device, priority=priority) for _ in range(_CIRCLE))
        free = next((stream for stream in found if stream.cuda_stream not in taken), None)
        if free is None:
            raise RuntimeError(f"Expected a free stream, but {len(taken)} are taken.")
        _owned[key] = free
    return _owned[key]
