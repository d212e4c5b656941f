"""Extraction of a folder of slides: tissue, patches, embeddings.

The command ``sgpmil extract`` calls `extract_folder`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sgpmil.options import Options
from sgpmil.processes import available_cores
from sgpmil.slides.encoders import load_encoder
from sgpmil.slides.encoders.registry import DEFAULT_ENCODER
from sgpmil.slides.extraction.encoding import Extraction, extract_slides
from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideOutcome, slide_jobs
from sgpmil.slides.extraction.placement import place_patches_of
from sgpmil.slides.extraction.progress import extraction_progress
from sgpmil.slides.patches import ExtractionFolder, PatchSettings

__all__ = ["ExtractOptions", "ExtractedFolder", "extract_folder"]


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(Options):
    """Options of `extract_folder`.

    Args:
        slides: Folder of slides (SVS, TIFF, NDPI, MRXS, OME-TIFF, PNG …), or one slide.
        out: Folder to write to, in TRIDENT's layout.
        mag: Magnification of the patches; 20 unless ``mpp`` is given.
        mpp: Microns per pixel of the patches, instead of ``mag``.
        patch_size: Side of a patch in pixels.
        overlap: Overlap of neighbouring patches in pixels.
        min_tissue: Least share of tissue in a patch, 0 to 1.
        encoder: Patch encoder: a name (see --list-encoders), timm:NAME, hf:OWNER/REPO, a
            TorchScript or ONNX file, or package.module:Class. The default is trained on
            photographs; encoders trained on pathology are better.
        weights: Checkpoint of the encoder, for machines that reach no hub.
        slide_list: Table of slides (.csv) with columns wsi and, where the files do not state it,
            mpp or mag.
        slide_mpp: Microns per pixel of slides that do not state it.
        slide_mag: Magnification of slides that do not state it.
        recursive: Look for slides in subfolders, too.
        encode: Encode the patches. Without, the extraction stops at contours, previews and
            coordinates, to look at and to edit in QuPath; the next extraction uses them.
        resegment: Find the tissue again; edited contours are lost.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        precision: Arithmetic of the encoder; its own by default.
        dtype: Number type of the embeddings on disk.
        batch_size: Patches that are encoded at once; 64 on a GPU and 8 on a CPU by default.
        workers: Processes that decode tiles; one for each core by default.
        overwrite: Extract existing slides again.
    """

    slides: Path
    out: Path = Path("extracted")
    mag: float | None = None
    mpp: float | None = None
    patch_size: int = 256
    overlap: int = 0
    min_tissue: float = 0.25
    encoder: str = DEFAULT_ENCODER
    weights: Path | None = None
    slide_list: Path | None = None
    slide_mpp: float | None = None
    slide_mag: float | None = None
    recursive: bool = False
    encode: bool = True
    resegment: bool = False
    device: str = "auto"
    precision: Literal["float32", "float16", "bfloat16"] | None = None
    dtype: Literal["float16", "float32"] = "float16"
    batch_size: int | None = None
    workers: int | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class ExtractedFolder:
    """Embeddings that `extract_folder` wrote.

    Args:
        outcomes: Outcome of each slide.
        folder: Folders of contours, previews and coordinates.
        features: Folder of the embeddings; None where nothing was encoded.
        timing: Times of the encoding; None where nothing was encoded.
    """

    outcomes: tuple[SlideOutcome, ...]
    folder: ExtractionFolder
    features: Path | None = None
    timing: Extraction | None = None


def extract_folder(options: ExtractOptions, *, show_progress: bool = False) -> ExtractedFolder:
    """Turn slides into patch embeddings. A stopped extraction resumes where it left off.

    Args:
        options: The slides, the patches and the encoder.
        show_progress: Whether to show a bar on standard error.

    Raises:
        SlideError: There are no slides, or the table of slides does not fit.
        EncoderError: There is no such encoder, or its weights are missing.
        SettingsError: A setting is out of range, or there is no such device.
    """
    settings = ExtractionSettings(
        patches=PatchSettings(
            size=options.patch_size,
            overlap=options.overlap,
            magnification=20.0 if options.mag is None and options.mpp is None else options.mag,
            mpp=options.mpp,
            min_tissue=options.min_tissue,
        ),
        batch_size=options.batch_size,
        num_workers=available_cores() if options.workers is None else options.workers,
        dtype=options.dtype,
        resegment=options.resegment,
        overwrite=options.overwrite,
    )
    folder = ExtractionFolder.of(options.out, settings.patches)
    jobs = slide_jobs(
        options.slides,
        slide_list=options.slide_list,
        recursive=options.recursive,
        mpp=options.slide_mpp,
        magnification=options.slide_mag,
    )
    with extraction_progress(len(jobs), show=show_progress) as bar:
        if not options.encode:
            return ExtractedFolder(tuple(place_patches_of(jobs, folder, settings, bar)), folder)
        encoder = load_encoder(
            options.encoder,
            weights=options.weights,
            device=options.device,
            precision=options.precision,
        )
        done = extract_slides(jobs, encoder, folder, settings, bar)
    return ExtractedFolder(done.outcomes, folder, folder.features_folder(encoder.name), done)
