"""The random numbers of torch, on the CPU and on the device that is trained on."""

import torch

__all__ = ["RandomNumbers", "seed_torch"]


def seed_torch(seed: int, device: torch.device) -> None:
    """Start the random numbers of the CPU and of a device anew.

    `torch.manual_seed` does so on every kind of device there is, and takes a millisecond to note
    down for each that it is not there.

    Args:
        seed: The seed.
        device: The device.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        _of_gpu(device).manual_seed(seed)


class RandomNumbers:
    """A state of the random numbers that can be put aside and taken up again.

    Recorded steps are bound to the state that was in use when they were recorded: on a GPU it is
    not copied but exchanged.

    Args:
        device: The device.
        shared: Whether this is the state in use now, rather than a copy of it.
    """

    def __init__(self, device: torch.device, *, shared: bool = False) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._gpu: torch.Generator | None = None
        if device.type == "cuda":
            used = _of_gpu(device)
            self._gpu = used.graphsafe_get_state() if shared else used.clone_state()

    def take_up(self) -> None:
        """Draw from this state from now on."""
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            _of_gpu(self._device).graphsafe_set_state(self._gpu)

    def put_aside(self) -> None:
        """Remember how far it was drawn from, before another state is taken up."""
        self._cpu = torch.get_rng_state()
        if self._gpu is not None:
            self._gpu = _of_gpu(self._device).graphsafe_get_state()


def _of_gpu(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
