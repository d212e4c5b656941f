import pytest

pytest.importorskip("fastapi", reason="pip install 'sgpmil[viewer]'")
pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")

from starlette.testclient import TestClient

from sgpmil.viewer.app import create_app
from sgpmil.viewer.server import ViewOptions, open_viewing
from tests.report.explained_run import write_annotations, write_features, write_run, write_slides


@pytest.fixture(scope="session")
def viewed(tmp_path_factory):
    """A folder with a run of four slides, a run of another model, slides and annotations."""
    folder = tmp_path_factory.mktemp("viewed")
    features = write_features(folder / "features")
    write_run(folder / "run", features)
    write_run(folder / "other", features, model="abmil", seed=1)
    write_slides(folder / "slides")
    write_annotations(folder / "annotations")
    return folder


@pytest.fixture(scope="session")
def options(viewed):
    return ViewOptions(
        run=viewed / "run",
        slides=viewed / "slides",
        annotations=viewed / "annotations",
        beside=(viewed / "other",),
        reviews=viewed / "reviews.sqlite",
    )


@pytest.fixture(scope="session")
def viewing(options):
    found = open_viewing(options)
    yield found
    found.close()


@pytest.fixture(scope="session")
def client(viewing):
    # Errors of the application fail the test, unlike an answer of 500.
    return TestClient(create_app(viewing))


@pytest.fixture
def case(viewing):
    """A slide with a tumour that is annotated."""
    return viewing.cohort.named("s.1")
