"""Files of a run's report: the page of the run, and case reports of its slides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import SettingsError
from sgpmil.explanation.run_explanation import ExplanationProgress, SilentProgress
from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.report.pages.rendering import refuse_existing
from sgpmil.report.pages.run_report import ReportOptions, RunReport, run_report, write_run_report


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that was written.

    Args:
        page: The page of the run.
        report: Content of the page.
        cases: Slides with case reports.
        case_folder: Folder of the case reports.
    """

    page: Path
    report: RunReport
    cases: tuple[str, ...]
    case_folder: Path


def write_report(
    options: ReportOptions, progress: ExplanationProgress | None = None
) -> WrittenReport:
    """Write the page of a run, and case reports of its slides where they are asked for.

    Args:
        options: The run, its slides, and what to write.
        progress: Receives the progress.

    Raises:
        RunFolderError: A file exists already, and `overwrite` is not given.
        SgpmilError: The run cannot be read or measured, or a slide is not of it.
    """
    show = progress or SilentProgress()
    page, folder = options.page, options.page.parent / "cases"
    refuse_existing(page, overwrite=options.overwrite)
    material = options.read_material()
    cases: tuple[str, ...] = ()
    if options.case or options.cases == "all":
        reports = CaseReports(material, options.coverage)
        for slide_id in options.case:
            reports.check(slide_id)
        cases = reports.slide_ids if options.cases == "all" else tuple(dict.fromkeys(options.case))
        _check_case_files(folder, cases, overwrite=options.overwrite)
    show.begin("The run", 1)
    found = run_report(options, material, cases=frozenset(cases))
    write_run_report(page, found, overwrite=options.overwrite)
    if cases:
        show.begin("Case reports", len(cases))
        for slide_id in cases:
            write_case(folder, reports.of(slide_id), overwrite=options.overwrite)
            show.advance()
    return WrittenReport(page, found, cases, folder)


def _check_case_files(folder: Path, cases: Sequence[str], *, overwrite: bool) -> None:
    """Refuse files that cannot be written, before anything is drawn."""
    taken: dict[Path, str] = {}
    for slide_id in cases:
        for path in case_paths(folder, slide_id):
            refuse_existing(path, overwrite=overwrite)
            if path in taken:
                raise SettingsError(
                    f"Expected slides whose names make different files, but '{taken[path]}' and "
                    f"'{slide_id}' both make {path.name}. Report them one at a time (`case`)."
                )
            taken[path] = slide_id
