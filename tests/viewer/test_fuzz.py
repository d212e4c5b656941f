"""Random requests by the OpenAPI description: no internal error, no file from outside."""

import os
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("schemathesis", reason="pip install 'sgpmil[dev]'")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from sgpmil.viewer.app import create_app
from sgpmil.viewer.safety import Guard
from sgpmil.viewer.server import open_viewing

pytestmark = pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"  # of schemathesis
)
REQUESTS = int(os.environ.get("SGPMIL_FUZZ_REQUESTS", "80"))
"""Requests for each address, and a tenth of those for odd paths: 2,000 at least in all."""

BOUNDED = settings(
    max_examples=REQUESTS,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def application(options, tmp_path_factory):
    # Verdicts at random are not for the other tests.
    own = replace(options, reviews=tmp_path_factory.mktemp("fuzz") / "reviews.sqlite")
    return create_app(open_viewing(own))


@pytest.fixture(scope="module")
def fuzzed(application):
    # Entered, it has one event loop for all requests instead of one each.
    with TestClient(Guard(application, hosts=("testserver",), writes_a_minute=10**9)) as client:
        yield client


def check(response):
    assert response.status_code < 500 or "Could not save" in response.text, response.text
    assert "root:" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def below(most, values):
    """Bring numbers, of which most are of no slide, to where slides, classes and tiles are."""
    return {name: one % most if type(one) is int else one for name, one in (values or {}).items()}


@pytest.mark.slow
def test_no_request_of_the_description_is_an_internal_error(application, fuzzed):
    schema = schemathesis.openapi.from_dict(application.openapi())
    statuses: Counter[int] = Counter()
    for operation in schema.get_all_operations():
        found = operation.ok()

        @BOUNDED
        @given(case=found.as_strategy(), most=st.sampled_from([None, 2, 12]))
        def ask(case, most):
            if most is not None:
                case.path_parameters = below(most, case.path_parameters)
                case.query = below(most, case.query)
            arguments = case.as_transport_kwargs(base_url="http://testserver")
            headers = {"x-sgpmil": "1"}
            for name, value in (arguments.pop("headers", None) or {}).items():
                headers[name] = str(value).encode("latin-1", "replace").decode("latin-1")
            arguments.pop("cookies", None)
            response = fuzzed.request(headers=headers, **arguments)
            statuses[response.status_code] += 1
            check(response)

        ask()
    assert statuses.total() >= 15 * REQUESTS
    assert statuses[200] >= 3 * REQUESTS  # not only numbers that there are not


PARTS = st.sampled_from(
    [
        *("..", ".", "%2e%2e", "..%2f", "%00", "etc", "passwd", "slides", "0", "-1", "1e9"),
        *("0_files", "maps", "attention", "static", "js", "C:", "\\..\\", "%252e%252e"),
        *("a" * 300, "٣", "💥", "NaN"),
    ]
)
HEADERS = st.dictionaries(
    st.sampled_from(["host", "origin", "cookie", "range", "content-length", "accept", "x-sgpmil"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    max_size=3,
)


@settings(BOUNDED, max_examples=10 * REQUESTS)
@given(parts=st.lists(PARTS, max_size=7), headers=HEADERS, query=st.text(max_size=30))
def test_no_path_or_header_is_an_internal_error(fuzzed, parts, headers, query):
    from urllib.parse import quote

    path = "/" + "/".join(quote(part, safe="%.\\") for part in parts)
    check(fuzzed.get(f"{path}?{quote(query)}", headers=headers))
