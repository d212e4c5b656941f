"""Embeddings that are on disk already: whether they can be kept."""

from dataclasses import dataclass
from pathlib import Path

import h5py

from sgpmil.errors import ExtractionError
from sgpmil.slides.encoders import Encoder
from sgpmil.slides.extraction.settings import ExtractionSettings
from sgpmil.slides.extraction.slide_preparation import outdated

__all__ = ["ENCODER_FINGERPRINT", "StoredFeatures", "read_stored"]

ENCODER_FINGERPRINT = "encoder_fingerprint"


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """A file of embeddings.

    Args:
        num_patches: Its patches.
        redo: Why it must be made again; empty where it can be kept.
    """

    num_patches: int
    redo: str = ""


def read_stored(
    path: Path, contours: Path, encoder: Encoder, settings: ExtractionSettings
) -> StoredFeatures | None:
    """Look at the embeddings of a slide; None where there are none.

    Files of other tools, which do not remember their encoder's weights, are kept.

    Args:
        path: File of the embeddings.
        contours: File of the slide's contours.
        encoder: The encoder now.
        settings: The settings now.

    Raises:
        ExtractionError: They are of another encoder: in one folder they would be mixed.
    """
    if not path.exists():
        return None
    try:
        with h5py.File(path, "r", locking=False) as file:
            features, coords = file["features"], file["coords"]
            shape, fingerprint = features.shape, features.attrs.get(ENCODER_FINGERPRINT)
            record = dict(coords.attrs)
    except (OSError, RuntimeError, KeyError) as error:
        return StoredFeatures(0, f"its file was damaged ({' '.join(str(error).split())})")
    num_patches = int(shape[0])
    if settings.overwrite:
        return StoredFeatures(num_patches, "asked for")
    other = num_patches > 0 and shape[-1] != encoder.dim
    if other or fingerprint not in (None, encoder.fingerprint):
        raise ExtractionError(
            f"Expected embeddings of this {encoder.name} in {path.parent}, but those of "
            f"'{path.stem}' come from other weights or another transform. Choose another --out, or "
            "replace them with --overwrite."
        )
    if settings.resegment:
        return StoredFeatures(num_patches, "its tissue is found again")
    return StoredFeatures(num_patches, outdated(record, contours, settings))
