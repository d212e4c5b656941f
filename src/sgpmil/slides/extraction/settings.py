"""How slides become embeddings."""

from dataclasses import dataclass, field
from typing import Literal

from sgpmil.errors import SettingsError
from sgpmil.slides.patches import PatchSettings
from sgpmil.slides.tissue import TissueSettings

__all__ = ["ExtractionSettings", "FeatureType"]

FeatureType = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True)
class ExtractionSettings:
    """How slides become embeddings.

    Args:
        patches: Size, magnification and overlap of the patches.
        tissue: How tissue is told from background.
        batch_size: Patches that the encoder sees at once; None for what suits its device.
        num_workers: Processes that decode tiles.
        dtype: Number type of the embeddings on disk.
        resegment: Find the tissue again, though contours are there.
        overwrite: Extract again what is there.
    """

    patches: PatchSettings = field(default_factory=PatchSettings)
    tissue: TissueSettings = field(default_factory=TissueSettings)
    batch_size: int | None = None
    num_workers: int = 2
    dtype: FeatureType = "float16"
    resegment: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"Expected `{name}` to be at least 1, but got {value}.")

    def batch_size_on(self, device: str) -> int:
        """Give the batch size for a type of device.

        A CPU is fastest with the few images whose activations its caches hold (EfficientNet-lite0
        on one core: 41 patches a second in batches of 4, 21 in batches of 64).

        Args:
            device: ``cuda`` or ``cpu``, for instance.
        """
        return self.batch_size or (64 if device == "cuda" else 8)
