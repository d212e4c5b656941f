"""Learned positions of a vision transformer, on another grid."""

from typing import Literal

import torch
from torch.nn import functional

__all__ = ["positions_on_grid"]


def positions_on_grid(
    positions: torch.Tensor, grid: int, interpolation: Literal["bilinear", "bicubic"]
) -> torch.Tensor:
    """Interpolate positions learned on one square grid to another, without antialiasing.

    Args:
        positions: Positions (1×(1 + side²)×D), that of the class token first.
        grid: Tokens on a side of the image.
        interpolation: How.

    Returns:
        Positions (1×(1 + grid²)×D); as they were where they fit, or are not of a square.
    """
    num = positions.shape[1] - 1
    side = round(num**0.5)
    if side == grid or side * side != num:
        return positions
    square = positions[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = functional.interpolate(square, (grid, grid), mode=interpolation, align_corners=False)
    return torch.cat([positions[:, :1].float(), square.flatten(2).transpose(1, 2)], dim=1)
