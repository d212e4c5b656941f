"""Embeddings that are on disk already: whether they can be kept."""

from dataclasses import dataclass

import h5py

from sgpmil.errors import ExtractionError
from sgpmil.slides.encoders import Encoder
from sgpmil.slides.extraction.settings import ExtractionSettings
from sgpmil.slides.extraction.slide_job import SlideJob
from sgpmil.slides.extraction.slide_preparation import outdated, stored_record
from sgpmil.slides.patches import ExtractionFolder, read_coords, write_coords

__all__ = ["ENCODER_FINGERPRINT", "StoredFeatures", "read_stored", "restore_coords"]

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
    job: SlideJob, folder: ExtractionFolder, encoder: Encoder, settings: ExtractionSettings
) -> StoredFeatures | None:
    """Look at the embeddings of a slide; None where there are none.

    Files of other tools, which do not remember their encoder's weights, are kept.

    Args:
        job: The slide.
        folder: Where its files are.
        encoder: The encoder now.
        settings: The settings now.

    Raises:
        ExtractionError: They are of another encoder: in one folder they would be mixed.
    """
    path = folder.features(encoder.name, job.slide_id)
    if not path.exists():
        return None
    try:
        with h5py.File(path, "r", locking=False) as file:
            features, coords = file["features"], file["coords"]
            shape, fingerprint = features.shape, features.attrs.get(ENCODER_FINGERPRINT)
            dtype, num_coords = features.dtype.name, coords.shape[-2]
    except (OSError, RuntimeError, KeyError) as error:
        return StoredFeatures(0, f"its file was damaged ({' '.join(str(error).split())})")
    num_patches, record = int(num_coords), stored_record(path) or {}
    if num_patches and shape[-2:-1] != (num_patches,):
        return StoredFeatures(0, "its file was damaged (not an embedding for each patch)")
    if settings.overwrite:
        return StoredFeatures(num_patches, "asked for")
    other = num_patches > 0 and shape[-1] != encoder.dim
    if other or fingerprint not in (None, encoder.fingerprint):
        raise ExtractionError(
            f"Expected embeddings of this {encoder.name} in {path.parent}, but those of "
            f"'{path.stem}' come from other weights, another transform or another precision. "
            "Choose another --out, give the same --precision, or replace them with --overwrite."
        )
    if settings.resegment:
        return StoredFeatures(num_patches, "its tissue is found again")
    if fingerprint is not None and dtype != settings.dtype:
        return StoredFeatures(num_patches, f"its numbers were {dtype}")
    return StoredFeatures(num_patches, outdated(record, job, folder, settings))


def restore_coords(job: SlideJob, folder: ExtractionFolder, encoder: Encoder) -> None:
    """Let the coordinates on disk be those of the embeddings that are kept, where they are ours.

    Args:
        job: The slide.
        folder: Where its files are.
        encoder: The encoder.
    """
    features, coords = folder.features(encoder.name, job.slide_id), folder.coords(job.slide_id)
    wanted = stored_record(features)
    if wanted and stored_record(coords) != wanted:
        write_coords(coords, read_coords(features), attributes=wanted)
