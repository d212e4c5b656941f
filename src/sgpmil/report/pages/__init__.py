"""Pages: a run as one HTML file, and a slide as a case report in HTML and PDF.

================  ==============================================================================
file              holds
================  ==============================================================================
run_report        the page of a run: summary, data, and all sections
checks            checks of the data and the results
performance       sections of results: folds, errors, calibration, uncertainty, localisation
slides            sections of slides: examples with maps, the list of all, prototypes
provenance        sections of settings, environment, and commands that reproduce the run
case_report       a case report as data
confidence        confidence of the model in words; prediction sets
case_page         a case report as blocks, written as HTML and PDF
case_links        links of the page to the case reports that exist beside it
blocks            the blocks that pages are made of, and their pictures
rendering         blocks as HTML, by templates
pdf               blocks as PDF
texts             numbers, metrics and settings as text
================  ==============================================================================
"""

from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_report import CaseReport, CaseReports
from sgpmil.report.pages.run_report import ReportOptions, RunReport, run_report, write_run_report

__all__ = [
    "CaseReport",
    "CaseReports",
    "ReportOptions",
    "RunReport",
    "case_paths",
    "run_report",
    "write_case",
    "write_run_report",
]
