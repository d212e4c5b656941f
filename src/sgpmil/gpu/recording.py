"""CUDA graphs: work that a GPU records once and replays, with its streams and random numbers.

To start a recording takes one call, whatever it holds. Three rules of CUDA graphs are easily
broken. Nothing else may be computed on a stream that is recorded on, since torch frees the cuBLAS
workspace of that stream when a recording ends. Two recordings that run at the same time must come
from different streams, since that workspace is written into them. A recording may begin only after
replays under way have ended, since torch then writes to the place from which all of them read how
far random numbers were drawn.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

_NUM_STREAMS = 32
"""Streams of a priority that torch hands out, in a circle."""

_owned: dict[tuple[int | str, ...], torch.cuda.Stream] = {}

_Small = TypeVar("_Small")
_Large = TypeVar("_Large")


def own_stream(device: torch.device, *owner: int | str, priority: int = 0) -> torch.cuda.Stream:
    """Return the stream of an owner, always the same; no two owners share one.

    Args:
        device: The GPU.
        owner: Key of the owner.
        priority: 0, or -1 for a stream whose kernels go first.

    Raises:
        RuntimeError: There are as many owners as streams.
    """
    key = (_index(device), *owner)
    if key not in _owned:
        taken = {stream.cuda_stream for stream in _owned.values()}
        found = (torch.cuda.Stream(device, priority=priority) for _ in range(_NUM_STREAMS))
        free = next((stream for stream in found if stream.cuda_stream not in taken), None)
        if free is None:
            raise RuntimeError(f"Expected a free stream, but {len(taken)} are taken.")
        _owned[key] = free
    return _owned[key]


def side_by_side(
    device: torch.device, small: Callable[[], _Small], large: Callable[[], _Large]
) -> tuple[_Small, _Large]:
    """Call two functions that do not depend on each other.

    In a recording they become branches that the GPU runs at the same time, as do their gradients.
    Otherwise the large one is launched first, and keeps the GPU busy while the small one is
    launched.

    Args:
        device: Device that computes.
        small: A chain of small kernels, which would leave a GPU idle.
        large: Kernels that fill a GPU.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        of_large = large()
        return small(), of_large
    here = torch.cuda.current_stream(device)
    side = own_stream(device, "beside", here.cuda_stream)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        of_small = small()
    of_large = large()
    here.wait_stream(side)
    return of_small, of_large


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the random numbers of the CPU and of a device.

    `torch.manual_seed` seeds every kind of device, and takes a millisecond to find that most are
    absent.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        _generator(device).manual_seed(seed)


class RandomNumbers:
    """A state of torch's random numbers, on the CPU and on the device that is trained on.

    A recording is bound to the state that was in use when it was made. So on a GPU states are
    exchanged, not copied.

    Args:
        device: The device.
        shared: Whether this is the state in use now, rather than a copy of it.
    """

    def __init__(self, device: torch.device, *, shared: bool = False) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._gpu: torch.Generator | None = None
        if device.type == "cuda":
            used = _generator(device)
            self._gpu = used.graphsafe_get_state() if shared else used.clone_state()

    def take_up(self) -> None:
        """Draw from this state from now on."""
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            _generator(self._device).graphsafe_set_state(self._gpu)

    def put_aside(self) -> None:
        """Remember how far it was drawn from, before another state is taken up."""
        self._cpu = torch.get_rng_state()
        if self._gpu is not None:
            self._gpu = _generator(self._device).graphsafe_get_state()


@dataclass(frozen=True)
class Recording:
    """Recorded work.

    Args:
        replay: Repeats the work on what its tensors hold now.
        result: Memory of its result, which lasts until the recorder's next replay.
        work: The function that was recorded; it keeps the tensors that the work reads.
    """

    replay: Callable[[], None]
    result: Tensor
    work: Callable[[], Tensor]


class Recorder:
    """Records work on a GPU. Recordings share memory, and are replayed one after another.

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

        `torch.cuda.graph` waits for the GPU and collects garbage first, which takes longer than
        all the rest. It is enough that no garbage is collected meanwhile, which would free memory
        of the GPU.

        Args:
            work: The work. It was done before, since kernels are compiled at their first call.

        Raises:
            RuntimeError: It cannot be recorded. Earlier recordings must not be replayed then.
        """
        graph = torch.cuda.CUDAGraph()
        random_numbers = RandomNumbers(self.device)
        # As a recording begins, torch writes how far random numbers were drawn: after replays that
        # are under way have ended, and before the next begins.
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
            # The random numbers in use would for ever after believe that they are recorded, and so
            # would the allocator of memory, unless the recording ended well.
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
        index = _index(self.device)
        torch._C._cuda_endAllocateToPool(index, self._pool)
        torch._C._cuda_releasePool(index, self._pool)

    def begin_anew(self) -> None:
        """Give back the memory of all recordings so far, which nobody holds any more."""
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def free_share(self) -> float:
        """Return the share of the GPU's memory that is free."""
        free, total = torch.cuda.mem_get_info(self.device)
        return free / total

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Compute on a separate stream, and leave the epoch's random numbers as they are."""
        aside = own_stream(self.device, "aside", self._owner, priority=-1)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.random.fork_rng([self.device]), torch.cuda.stream(aside):
            yield
        torch.cuda.current_stream(self.device).wait_stream(aside)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _generator(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[_index(device)]
