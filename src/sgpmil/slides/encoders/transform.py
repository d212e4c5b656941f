r"""What is done to a patch before an encoder sees it.

A patch of whole grey levels is resized with antialiasing, along its rows and then along its
columns, each time rounded to whole grey levels again (so does Pillow, which the encoders were
trained with), cut to its centre where the encoder asks for it, and normalised channel by channel:

$$ z_c = \frac{x_c / 255 - \mu_c}{\sigma_c}. $$
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from sgpmil.shapes import Float, UInt8

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Interpolation", "PatchTransform"]

Interpolation = Literal["bilinear", "bicubic"]
Channels = tuple[float, float, float]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class PatchTransform:
    """Resize, crop and normalise a batch of patches.

    Args:
        size: Side that the encoder takes, in pixels.
        resize: Side that patches are resized to before they are cut to `size`; `size` itself where
            not given, so that nothing is cut off.
        mean: Mean of each channel, of values in 0 to 1.
        std: Standard deviation of each channel, likewise.
        interpolation: How to resize.
    """

    size: int
    resize: int | None = None
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if not 0 < self.size <= (self.resize or self.size):
            raise ValueError(f"A crop of {self.size} px does not fit into {self.resize} px.")
        if min(self.std) <= 0:
            raise ValueError(f"Standard deviations are positive, not {self.std}.")

    def __call__(self, patches: UInt8[torch.Tensor, "B H W 3"]) -> Float[torch.Tensor, "B 3 S S"]:
        """Transform a batch, on the device it is on.

        Args:
            patches: Square patches.
        """
        images = patches.permute(0, 3, 1, 2).float()
        side = self.resize or self.size
        if images.shape[-1] != side:
            images = self._resized(self._resized(images, images.shape[-2], side), side, side)
        start = round((side - self.size) / 2)
        images = images[..., start : start + self.size, start : start + self.size]
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (self.mean, self.std))
        return (images - 255 * mean) / (255 * std)

    def _resized(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        found = functional.interpolate(
            images, size=(height, width), mode=self.interpolation, antialias=True
        )
        # Cubic weights overshoot.
        return found.add_(0.5).floor_().clamp_(0, 255)
