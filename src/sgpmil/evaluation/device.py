"""The device to compute on."""

from sgpmil.processes import compute_device

__all__ = ["compute_device"]
