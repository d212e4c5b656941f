"""Files of a run's report: the page of the run, and case reports of its slides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.files import remove_leftovers
from sgpmil.errors import SettingsError
from sgpmil.explanation.run_explanation import ExplanationProgress, SilentProgress
from sgpmil.report.pages.case_links import FOLDER, refresh_case_links
from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.report.pages.rendering import refuse_existing
from sgpmil.report.pages.run_report import ReportOptions, RunReport, run_report, write_run_report


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that was written.

    Args:
        page: The page of the run.
        report: Content of the page; None where the page existed and only got links.
        cases: Slides whose case reports were written.
        kept: Slides that were asked for, but had a case report already.
        case_folder: Folder of the case reports.
    """

    page: Path
    report: RunReport | None
    cases: tuple[str, ...]
    kept: tuple[str, ...]
    case_folder: Path


def write_report(
    options: ReportOptions, progress: ExplanationProgress | None = None
) -> WrittenReport:
    """Write the page of a run, and case reports of its slides where they are asked for.

    Case reports are added to a page that exists: it gets links to them and stays as it is
    otherwise. With ``overwrite`` the page and all its case reports are written again.

    Args:
        options: The run, its slides, and what to write.
        progress: Receives the progress.

    Raises:
        RunFolderError: The page exists already, and neither a case nor `overwrite` is given.
        SgpmilError: The run cannot be read or measured, or a slide is not of it.
    """
    show = progress or SilentProgress()
    page, folder = options.page, options.page.parent / FOLDER
    adds_cases = bool(options.case) or options.cases == "all"
    refuse_existing(page, overwrite=options.overwrite or adds_cases)
    has_page = page.exists() and not options.overwrite
    material = options.read_material()
    asked: tuple[str, ...] = ()
    there: frozenset[str] = frozenset()
    if adds_cases or (options.overwrite and folder.is_dir()):
        reports = CaseReports(material, options.coverage)
        for slide_id in options.case:
            reports.check(slide_id)
        asked = reports.slide_ids if options.cases == "all" else tuple(dict.fromkeys(options.case))
        there = _reported(folder, reports.slide_ids)
    kept = () if options.overwrite else tuple(one for one in asked if one in there)
    cases = tuple(one for one in asked if one not in kept)
    if options.overwrite:
        cases = tuple(dict.fromkeys((*asked, *sorted(there))))
    _check_case_files(folder, cases)
    remove_leftovers(folder)
    found = None
    if not has_page:
        show.begin("The run", 1)
        found = run_report(options, material)
        write_run_report(page, found, overwrite=options.overwrite)
    if cases:
        show.begin("Case reports", len(cases))
        for slide_id in cases:
            write_case(folder, reports.of(slide_id), overwrite=True)
            show.advance()
    refresh_case_links(page)
    return WrittenReport(page, found, cases, kept, folder)


def _reported(folder: Path, slide_ids: Sequence[str]) -> frozenset[str]:
    """Find the slides that have a whole case report."""
    return frozenset(
        slide_id
        for slide_id in slide_ids
        if all(path.is_file() for path in case_paths(folder, slide_id))
    )


def _check_case_files(folder: Path, cases: Sequence[str]) -> None:
    """Refuse files that cannot be written, before anything is drawn."""
    taken: dict[Path, str] = {}
    for slide_id in cases:
        for path in case_paths(folder, slide_id):
            refuse_existing(path, overwrite=True)  # a folder of that name
            if path in taken:
                raise SettingsError(
                    f"Expected slides whose names make different files, but '{taken[path]}' and "
                    f"'{slide_id}' both make {path.name}. Report them one at a time (`case`)."
                )
            taken[path] = slide_id
