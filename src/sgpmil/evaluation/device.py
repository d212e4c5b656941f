"""Where to compute."""

import torch

from sgpmil.errors import SettingsError

__all__ = ["compute_device"]


def compute_device(name: str = "auto") -> torch.device:
    """Return the device of a name.

    Args:
        name: ``cpu``, ``gpu`` (CUDA: the Gaussian process needs float64, which Apple's GPUs do
            not have) or ``auto``, a GPU where there is one.

    Raises:
        SettingsError: The name is none of these, or there is no such device.
    """
    if name not in ("auto", "cpu", "gpu"):
        raise SettingsError(f"Expected device to be auto, cpu or gpu, but got '{name}'.")
    has_gpu = torch.cuda.is_available()
    if name == "gpu" and not has_gpu:
        raise SettingsError("Expected a GPU for device 'gpu', but found none. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")
