"""Extraction of a folder of slides: tissue, patches, embeddings.

The command ``sgpmil extract`` calls `extract_folder`.
"""

from collections.abc import Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sgpmil.bags.files import remove_leftovers, write_text
from sgpmil.bags.tables import sheet_text
from sgpmil.errors import SgpmilError
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.slides.encoders import DEFAULT_ENCODER, Precision, load_encoder
from sgpmil.slides.extraction.elsewhere import ExtractionWork, extract_elsewhere
from sgpmil.slides.extraction.encoding import Extraction, extract_slides
from sgpmil.slides.extraction.jobs import (
    PROCESS_DIED,
    ExtractionSettings,
    FeatureType,
    SlideJob,
    SlideOutcome,
    Status,
    cannot_write,
    is_write_failure,
    slide_jobs,
)
from sgpmil.slides.extraction.progress import ExtractionProgress, extraction_progress
from sgpmil.slides.extraction.tile_workers import TileWorkers
from sgpmil.slides.patches import ExtractionFolder, PatchSettings

SKIPPED = "skipped.csv"
"""Table of the slides that were left out, in the folder of an extraction."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(PlaceOptions):
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
        weights: Checkpoint of the encoder, for machines without internet.
        trust: Run an encoder in TorchScript, a program that can read and write your files.
        slide_list: Table of slides (.csv) with columns wsi and, where the files do not state it,
            mpp or mag.
        slide_mpp: Microns per pixel of slides that do not state it.
        slide_mag: Magnification of slides that do not state it.
        recursive: Search subfolders for slides, too.
        encode: Encode the patches. Without, the extraction stops at contours, previews and
            coordinates, to look at and to edit in QuPath; the next extraction uses them.
        resegment: Segment the tissue again; edited contours are lost.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        precision: Precision of the encoder; by default its own.
        dtype: Number type of the embeddings on disk.
        batch_size: Patches in a batch of the encoder; by default 64 on a GPU and 8 on a CPU.
        workers: Processes that decode tiles; by default one for each core.
        skip_bad: Leave out slides that cannot be read, instead of failing in the end; skipped.csv
            in the folder lists them with the reasons.
        overwrite: Extract existing embeddings again.
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
    trust: bool = False
    slide_list: Path | None = None
    slide_mpp: float | None = None
    slide_mag: float | None = None
    recursive: bool = False
    encode: bool = True
    resegment: bool = False
    device: str = "auto"
    precision: Precision | None = None
    dtype: FeatureType = "float16"
    batch_size: int | None = None
    workers: int | None = None
    skip_bad: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class ExtractedFolder:
    """Embeddings that `extract_folder` wrote.

    Args:
        outcomes: Outcome of each slide.
        folder: Folders of contours, previews and coordinates.
        features: Folder of the embeddings; None if nothing was encoded.
        timing: Times of the encoding; None if nothing was encoded.
        skipped: Table of the slides that were left out, if any were.
    """

    outcomes: tuple[SlideOutcome, ...]
    folder: ExtractionFolder
    features: Path | None = None
    timing: Extraction | None = None
    skipped: Path | None = None

    @property
    def failed(self) -> tuple[SlideOutcome, ...]:
        """Slides that could not be extracted."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")


def extract_folder(options: ExtractOptions, *, show_progress: bool = False) -> ExtractedFolder:
    """Turn slides into patch embeddings. A stopped extraction resumes where it left off.

    Worker processes are spawned, so a script that calls this needs ``if __name__ == "__main__"``.

    Args:
        options: The slides, the patches and the encoder.
        show_progress: Whether to show a progress bar on standard error.

    Raises:
        SlideError: There are no slides, or the table of slides does not fit.
        EncoderError: There is no such encoder, or its weights are not available or do not fit.
        ExtractionError: The folder holds embeddings of another encoder, or cannot be written.
        SettingsError: An option is out of range, or there is no such device.
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
        num_workers=options.workers,
        dtype=options.dtype,
        resegment=options.resegment,
        overwrite=options.overwrite,
    )
    executor = options.executor(needs_shared_folder=True)
    place = options.out if options.is_local else options.out.absolute()
    folder = ExtractionFolder.of(place, settings.patches)
    jobs = slide_jobs(
        options.slides if options.is_local else options.slides.absolute(),
        slide_list=options.slide_list,
        recursive=options.recursive,
        mpp=options.slide_mpp,
        magnification=options.slide_mag,
    )
    with extraction_progress(len(jobs), show=show_progress) as bar:
        if not options.encode:
            placed = place_patches_of(jobs, folder, settings, bar)
            return _listing_skipped(ExtractedFolder(placed, folder), options)
        load = partial(
            load_encoder,
            options.encoder,
            weights=options.weights
            if options.is_local or options.weights is None
            else options.weights.absolute(),
            device=options.device,
            precision=options.precision,
            trust=options.trust,
        )
        encoder = load()  # here too: what would fail in every worker fails once
        if options.is_local:
            done = extract_slides(jobs, encoder, folder, settings, bar)
        else:
            cores = max(1, int(options.cpus_per_job))
            each = replace(settings, num_workers=options.workers or cores)
            work = ExtractionWork(load, folder, each)
            done = extract_elsewhere(executor, work, jobs, bar)
    features = folder.features_folder(encoder.name)
    return _listing_skipped(ExtractedFolder(done.outcomes, folder, features, done), options)


def _listing_skipped(done: ExtractedFolder, options: ExtractOptions) -> ExtractedFolder:
    """Write the slides that were left out into a table; remove that of an earlier extraction."""
    # At the end: workers of a killed extraction may have outlived it for a moment.
    remove_leftovers(options.out)
    path = options.out / SKIPPED
    if not (options.skip_bad and done.failed):
        path.unlink(missing_ok=True)
        return done
    rows = [(outcome.slide_id, outcome.reason) for outcome in done.failed]
    try:
        write_text(path, sheet_text(("slide_id", "reason"), rows))
    except OSError as error:
        raise cannot_write(options.out, error) from error
    return replace(done, skipped=path)


def place_patches_of(
    jobs: Sequence[SlideJob],
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    progress: ExtractionProgress,
) -> tuple[SlideOutcome, ...]:
    """Write the contours, previews and coordinates of slides.

    Raises:
        ExtractionError: The folder cannot be written.
    """
    outcomes = _place(jobs, folder, settings, progress)
    for job in [job for job in jobs if job.slide_id not in outcomes]:
        # A process died. Each slide that was under way runs alone, which shows the one to blame.
        outcomes |= _place([job], folder, settings, progress)
        if job.slide_id not in outcomes:
            outcomes[job.slide_id] = SlideOutcome(job.slide_id, "failed", reason=PROCESS_DIED)
            progress.end(outcomes[job.slide_id])
    return tuple(outcomes[job.slide_id] for job in jobs)


def _place(
    jobs: Sequence[SlideJob],
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    progress: ExtractionProgress,
) -> dict[str, SlideOutcome]:
    """Return the outcomes by slide, without those that were under way when a process died."""
    outcomes = {}
    with TileWorkers(settings.num_workers, settings.patches.size, batch_size=1) as workers:
        placing = {workers.prepare(job, folder, settings): job for job in jobs}
        for future in as_completed(placing):
            job = placing[future]
            try:
                found = future.result()
                count = len(found.patches.coords)
                status: Status = "done" if count else "empty"
                outcome = SlideOutcome(job.slide_id, status, count, notes=found.notes)
            except BrokenProcessPool:
                continue
            except (SgpmilError, OSError) as error:
                if isinstance(error, OSError) and is_write_failure(error):
                    raise cannot_write(folder.root, error) from error
                outcome = SlideOutcome(job.slide_id, "failed", reason=str(error))
            progress.end(outcome)
            outcomes[job.slide_id] = outcome
    return outcomes
