"""Random requests by the OpenAPI description: no internal error, no file from outside."""

import os

import pytest

pytest.importorskip("schemathesis", reason="pip install 'sgpmil[dev]'")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from sgpmil.viewer.app import create_app
from sgpmil.viewer.safety import Guard

pytestmark = pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"  # of schemathesis
)
REQUESTS = int(os.environ.get("SGPMIL_FUZZ_REQUESTS", "15"))
"""Requests for each address; the figure in the docs was measured with 150."""

BOUNDED = settings(
    max_examples=REQUESTS,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def description(viewing):
    return create_app(viewing).openapi()


@pytest.fixture(scope="module")
def fuzzed(viewing):
    app = Guard(create_app(viewing), hosts=("testserver",), writes_a_minute=10**9)
    return TestClient(app)


def check(response):
    assert response.status_code < 500 or "Could not save" in response.text, response.text
    assert "root:" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_no_request_of_the_description_is_an_internal_error(description, fuzzed):
    schema = schemathesis.openapi.from_dict(description)
    sent = 0
    for operation in schema.get_all_operations():
        found = operation.ok()

        @BOUNDED
        @given(case=found.as_strategy())
        def ask(case):
            nonlocal sent
            arguments = case.as_transport_kwargs(base_url="http://testserver")
            headers = {"x-sgpmil": "1"}
            for name, value in (arguments.pop("headers", None) or {}).items():
                headers[name] = str(value).encode("latin-1", "replace").decode("latin-1")
            arguments.pop("cookies", None)
            sent += 1
            check(fuzzed.request(headers=headers, **arguments))

        ask()
    assert sent >= 15 * REQUESTS


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
