"""Lightning Fabric: devices and processes.

This is the only module that imports Fabric, and it does so when a training starts: the import is
slow. Fabric chooses the devices, starts the processes and lets them exchange tensors. Precision
stays with `sgpmil.models.precision`, which keeps the Gaussian process at 32 bits or more and is
the same in prediction.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch

from sgpmil.errors import SettingsError
from sgpmil.processes import compute_device, handle_signal

if TYPE_CHECKING:
    from lightning_fabric import Fabric as Fabric
else:
    Fabric = Any  # not imported before a training starts

_Result = TypeVar("_Result")


@runtime_checkable
class Logger(Protocol):
    """Anything that records metrics, such as every logger of Lightning."""

    def log_metrics(self, metrics: dict[str, int | float], step: int | None = None) -> None:
        """Record the metrics of an epoch."""
        ...

    def finalize(self, status: str) -> None:
        """End the record with ``success`` or ``failed``."""
        ...


def start_fabric(
    device: str = "auto", *, devices: int = 1, num_nodes: int = 1, strategy: str = "auto"
) -> Fabric:
    """Return Fabric for a training; its `launch` starts the other processes.

    Raises:
        SettingsError: A GPU is asked for and there is none, or Fabric refuses the combination.
    """
    kind = compute_device(device)
    if num_nodes > 1 and not {"MASTER_ADDR", "SLURM_JOB_ID"} & os.environ.keys():
        raise SettingsError(
            f"Expected the address of the first of {num_nodes} machines in the environment, "
            "but MASTER_ADDR is not set. Set MASTER_ADDR and MASTER_PORT alike on all "
            "machines, and NODE_RANK to 0, 1 and so on; under Slurm, start with srun."
        )
    chosen: list[int] | int = devices
    if devices == 1 and kind.type == "cuda":
        chosen = [torch.cuda.current_device() if kind.index is None else kind.index]
    with quiet_lightning():
        try:
            return _fabric_package("").Fabric(
                accelerator=kind.type, devices=chosen, num_nodes=num_nodes, strategy=strategy
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise SettingsError(
                f"Expected devices, num_nodes and strategy that Lightning Fabric accepts, but got "
                f"{devices}, {num_nodes} and '{strategy}': {' '.join(str(error).split())}"
            ) from error


def _fabric_package(module: str) -> Any:
    try:
        return import_module(f"lightning_fabric{module}")
    except ModuleNotFoundError:
        # The package `lightning` contains Fabric too, and imports torchvision in passing.
        _allow_torchvision()
        return import_module(f"lightning.fabric{module}")


def _allow_torchvision() -> None:
    from sgpmil.torchvision_import import mend_torchvision

    mend_torchvision()


@contextmanager
def deterministic() -> Iterator[None]:
    """Make torch deterministic, and Lightning quiet, while the block runs.

    Both are settings of the whole process: trainings that take turns need one block around them.
    """
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    # Attributes of this module are not known to type checkers.
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    with quiet_lightning():
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling memory that nobody wrote finds bugs, at the price of a pass over all memory.
        memory.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=only_warned)
            memory.fill_uninitialized_memory = filled


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's advice to its own users while the block runs."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def launch(fabric: Fabric, work: Callable[[Fabric], _Result], *, num_nodes: int = 1) -> _Result:
    """Do some work in every process; a request to terminate (SIGTERM) is Ctrl-C.

    Args:
        fabric: Fabric, which starts the other processes.
        work: The work.
        num_nodes: Number of machines.
    """

    def begin(started: Fabric) -> _Result:
        waiting.close()
        return work(started)

    with termination_interrupts(), ExitStack() as waiting:
        if num_nodes > 1:
            # Native code waits for the other machines, and Python would not hear a signal.
            for number in (signal.SIGINT, signal.SIGTERM):
                waiting.enter_context(handle_signal(number, signal.SIG_DFL))
        result: _Result = fabric.launch(begin)
    return result


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Treat a request to terminate (SIGTERM) as Ctrl-C while the block runs."""
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt

    with handle_signal(signal.SIGTERM, interrupt):
        yield
