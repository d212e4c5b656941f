"""Records what is launched on a GPU, to launch it again all at once."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sgpmil.gpu.random_numbers import RandomNumbers
from sgpmil.gpu.streams import own_stream

__all__ = ["Recorder", "Recording"]


@dataclass(frozen=True)
class Recording:
    """Some work that was recorded.

    Args:
        replay: Does it again, with what its tensors hold now.
        result: Where it leaves its result, until any recording of the same recorder is replayed.
        work: The work, which keeps the tensors that it reads.
    """

    replay: Callable[[], None]
    result: Tensor
    work: Callable[[], Tensor]


class Recorder:
    """Records on a GPU. Recordings share memory, and are replayed one after another.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._owner = torch.cuda.current_stream(device).cuda_stream
        self._recorded_stream = own_stream(device, "recorded", self._owner)
        # Branches of a recording share parameters by intention.
        quiet = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if quiet is not None:
            quiet(False)

    def record(self, work: Callable[[], Tensor]) -> Recording:
        """Record some work without doing it.

        torch's own way waits for the GPU and collects garbage first, which takes longer than all
        the rest. What must not happen is that garbage is collected meanwhile: memory of a GPU
        would be freed.

        Args:
            work: What is recorded; it has been done before, since kernels are compiled at their
                first call.

        Raises:
            RuntimeError: It cannot be recorded. Earlier recordings must not be replayed then.
        """
        graph = torch.cuda.CUDAGraph()
        random_numbers = RandomNumbers(self.device)
        # All recordings read from one place how far random numbers were drawn, and torch writes to
        # it as a recording begins: not before replays that are under way have ended, and not after
        # the next has begun.
        here = torch.cuda.current_stream(self.device)
        self._recorded_stream.wait_stream(here)
        collects, has_ended = gc.isenabled(), False
        gc.disable()
        try:
            with torch.cuda.stream(self._recorded_stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
                try:
                    result = work()
                finally:
                    graph.capture_end()
                    has_ended = True
        except RuntimeError:
            # The random numbers in use believe for ever after that they are being recorded, and so
            # does what hands out memory, unless the end went well.
            random_numbers.take_up()
            if not has_ended:
                self._end_memory()
            raise
        finally:
            if collects:
                gc.enable()
        here.wait_stream(self._recorded_stream)
        return Recording(graph.replay, result, work)

    def _end_memory(self) -> None:
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        torch._C._cuda_endAllocateToPool(index, self._pool)
        torch._C._cuda_releasePool(index, self._pool)

    def begin_anew(self) -> None:
        """Give back the memory of what was recorded so far, which nobody holds any more."""
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def free_share(self) -> float:
        """Return the share of the GPU's memory that is free."""
        free, total = torch.cuda.mem_get_info(self.device)
        return free / total

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Compute on a stream of its own, and leave the epoch's random numbers as they are."""
        aside = own_stream(self.device, "aside", self._owner, priority=-1)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.random.fork_rng([self.device]), torch.cuda.stream(aside):
            yield
        torch.cuda.current_stream(self.device).wait_stream(aside)
