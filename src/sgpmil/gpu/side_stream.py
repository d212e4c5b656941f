"""Work that a GPU does beside other work, in a recorded step.

The factor of the inducing points' covariance is a long chain of tiny kernels, which leaves a GPU
idle; the dense layers do not need it. In a recording the two become branches that run at the same
time, and so do their gradients. Where steps are not recorded nothing happens: the GPU is then
busy waiting for the next call anyway.
"""

from types import TracebackType

import torch

from sgpmil.gpu.streams import own_stream

__all__ = ["SideStream"]


class SideStream:
    """A branch of what is recorded; the block is recorded there until `join`.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        recording = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._side: torch.cuda.Stream | None = None
        if recording:
            self._side = own_stream(device, "beside", torch.cuda.current_stream(device).cuda_stream)
        self._block = torch.cuda.stream(self._side)

    @property
    def is_branch(self) -> bool:
        """Whether the block is recorded as a branch of its own."""
        return self._side is not None

    def __enter__(self) -> "SideStream":
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        self._block.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, trace)

    def join(self) -> None:
        """Let what is recorded from here on see what the block computed."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
