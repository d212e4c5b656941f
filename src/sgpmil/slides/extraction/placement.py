"""Contours, previews and coordinates of many slides, without an encoder."""

from collections.abc import Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool

from sgpmil.errors import SgpmilError
from sgpmil.slides.extraction.jobs import (
    PROCESS_DIED,
    ExtractionSettings,
    SlideJob,
    SlideOutcome,
    Status,
    cannot_write,
    is_write_failure,
)
from sgpmil.slides.extraction.progress import ExtractionProgress
from sgpmil.slides.extraction.tile_workers import TileWorkers
from sgpmil.slides.patches import ExtractionFolder

__all__ = ["place_patches_of"]


def place_patches_of(
    jobs: Sequence[SlideJob],
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    progress: ExtractionProgress,
) -> tuple[SlideOutcome, ...]:
    """Write the contours, previews and coordinates of slides.

    Args:
        jobs: The slides.
        folder: Where the files go.
        settings: Patches and tissue.
        progress: Is told how far it is.

    Raises:
        ExtractionError: Nothing can be written there.
    """
    outcomes = _place(jobs, folder, settings, progress)
    for job in [job for job in jobs if job.slide_id not in outcomes]:
        # A process died. Alone, a slide shows whether it was to blame.
        alone = _place([job], folder, settings, progress)
        outcomes[job.slide_id] = alone.get(job.slide_id) or _died(job, progress)
    return tuple(outcomes[job.slide_id] for job in jobs)


def _place(
    jobs: Sequence[SlideJob],
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    progress: ExtractionProgress,
) -> dict[str, SlideOutcome]:
    """Give the outcomes by slide, without those that were under way when a process died."""
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
            progress.ended(outcome)
            outcomes[job.slide_id] = outcome
    return outcomes


def _died(job: SlideJob, progress: ExtractionProgress) -> SlideOutcome:
    outcome = SlideOutcome(job.slide_id, "failed", reason=PROCESS_DIED)
    progress.ended(outcome)
    return outcome
