import pytest

from sgpmil.report.pages.run_report import ReportOptions, run_report, write_run_report
from sgpmil.runs.material import read_material

from .reported_run import write_run


@pytest.fixture(scope="session")
def run_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    return write_run(folder / "run", folder / "features", folder / "slides")


@pytest.fixture(scope="session")
def run_material(run_path):
    return read_material(run_path, slides=run_path.parent / "slides", mpp=0.5)


@pytest.fixture(scope="session")
def run_page(run_path, run_material):
    """The page of a run with everything: written once, looked at from many sides."""
    path = run_path.parent / "page" / "report.html"
    options = ReportOptions(run=run_material.path, bootstrap=50)
    write_run_report(path, run_report(options, run_material, num_slides=2))
    return path
