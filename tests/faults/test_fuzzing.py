"""A few inputs of every format; `benchmarks/fuzz.py` runs thousands."""

import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

from sgpmil.errors import SgpmilError
from tests.faults.fuzzing import FORMATS, Format, judge, run_inputs, summary, write_templates

EACH = 10
"""Inputs of each format."""


@pytest.mark.slow
def test_damaged_files_of_every_format_are_read_or_refused_in_a_sentence(tmp_path):
    write_templates(tmp_path)
    inputs = [(one.name, seed) for one in FORMATS for seed in range(EACH)]
    outcomes = list(run_inputs(tmp_path, inputs))
    assert len(outcomes) == EACH * len(FORMATS)
    assert [outcome for outcome in outcomes if outcome.is_fault] == []
    kinds = summary(outcomes)
    assert sum(counts["read"] for counts in kinds.values()) > len(FORMATS)
    assert sum(counts["refused"] for counts in kinds.values()) > len(FORMATS)


def _raise(error):
    raise error


def write_anything(folder):
    (folder / "a").write_bytes(b"anything at all")
    return folder / "a"


@pytest.mark.parametrize(
    ("attempt", "kind"),
    [
        (lambda path: None, "read"),
        (lambda path: _raise(SgpmilError("Expected a b. Do c.")), "refused"),
        (lambda path: _raise(SgpmilError("two\nlines")), "traceback"),
        (lambda path: _raise(ValueError("x")), "traceback"),
        (lambda path: (path.parents[1] / "else").write_text("x"), "outside"),
    ],
)
def test_the_judge_tells_them_apart(tmp_path, monkeypatch, attempt, kind):
    own = Format("own", write_anything, lambda path: None)
    monkeypatch.setattr("tests.faults.fuzzing.FORMATS", (own,))
    write_templates(tmp_path, (own,))
    changed = Format("own", write_anything, attempt)
    monkeypatch.setattr("tests.faults.fuzzing.FORMATS", (changed,))
    assert judge(changed, tmp_path / "own", 0).kind == kind
