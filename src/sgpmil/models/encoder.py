"""Networks that are trained in front of a model, for instances that are not embeddings yet."""

from collections.abc import Callable

from torch import Tensor, nn

from sgpmil.errors import SettingsError
from sgpmil.shapes import Float

__all__ = ["DIGIT_SIDE", "ENCODERS", "DigitCNN", "build_encoder"]

DIGIT_SIDE = 28


class DigitCNN(nn.Module):
    """The network that reads MNIST digits in the ABMIL paper: 784 pixels to 500 features."""

    in_dim = DIGIT_SIDE**2
    out_dim = 500

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, DIGIT_SIDE, DIGIT_SIDE)),
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * 4 * 4, self.out_dim),
            nn.ReLU(),
        )

    def forward(self, pixels: Float[Tensor, "T D"]) -> Float[Tensor, "T E"]:
        """Encode images whose rows of pixels lie end to end."""
        return self.layers(pixels)


ENCODERS: dict[str, Callable[[], DigitCNN] | None] = {"none": None, "digit-cnn": DigitCNN}


def build_encoder(name: str, in_dim: int) -> tuple[nn.Module, int]:
    """Build an encoder by name and tell how many features it gives.

    Raises:
        SettingsError: Instances do not have the number of features that it takes.
    """
    build = ENCODERS[name]
    if build is None:
        return nn.Identity(), in_dim
    encoder = build()
    if in_dim != encoder.in_dim:
        raise SettingsError(
            f"Expected instances of {encoder.in_dim} pixels for the encoder '{name}', "
            f"but got {in_dim} features."
        )
    return encoder, encoder.out_dim
