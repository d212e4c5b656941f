import numpy as np
import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import ExplanationError
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.explanation.folder import open_explanation, predictions_digest


def test_it_is_gone_on_with_only_as_it_began(tmp_path):
    place = tmp_path / "a" / "explanation"
    folder = open_explanation(place, {"scale": "rank", "mpp": 0.5})
    kept = folder.map("s")
    kept.parent.mkdir()
    kept.write_text("a map")
    open_explanation(place, {"scale": "rank", "mpp": 0.5})
    with pytest.raises(ExplanationError, match=r"mpp is 0\.5 there, and 0\.25 here"):
        open_explanation(place, {"scale": "rank", "mpp": 0.25})
    assert kept.read_text() == "a map"
    open_explanation(place, {"scale": "rank", "mpp": 0.25}, overwrite=True)
    assert not kept.exists()
    with pytest.raises(ExplanationError, match="`overwrite=True`"):
        open_explanation(place, {"scale": "rank", "mpp": 0.5})


def test_overwriting_removes_what_it_wrote_and_nothing_else(tmp_path):
    folder = open_explanation(tmp_path / "e", {"a": 1})
    notes = folder.path / "notes.txt"
    notes.write_text("mine")
    open_explanation(folder.path, {"a": 2}, overwrite=True)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_never_taken(tmp_path, overwrite):
    (tmp_path / "thesis.doc").write_text("x")
    with pytest.raises(ExplanationError, match="something else"):
        open_explanation(tmp_path, {}, overwrite=overwrite)
    with pytest.raises(ExplanationError, match="is a file"):
        open_explanation(tmp_path / "thesis.doc", {}, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_record_is_said_to_be(tmp_path, content):
    open_explanation(tmp_path / "e", {"a": 1})
    (tmp_path / "e" / "explanation.json").write_text(content)
    with pytest.raises(ExplanationError, match=r"explanation\.json"):
        open_explanation(tmp_path / "e", {"a": 1})
    open_explanation(tmp_path / "e", {"a": 1}, overwrite=True)
    open_explanation(tmp_path / "e", {"a": 1})


def test_the_digest_changes_with_what_is_explained():
    def table(p=0.6, label=1, attention=0.5, name="a"):
        scores = InstanceScores(np.array([attention, 1 - attention]), np.zeros(2))
        one = Prediction.from_samples(name, "c", label, np.array([[1 - p, p]]), scores)
        return PredictionTable((one,), ClassTarget(("n", "t")))

    same = predictions_digest([table()])
    assert predictions_digest([table()]) == same
    others = [table(p=0.61), table(label=0), table(attention=0.51), table(name="b")]
    found = {predictions_digest([other]) for other in others} | {predictions_digest([])}
    assert len(found | {same}) == 6


def test_a_run_that_changed_is_not_mixed_with_what_it_was(tmp_path):
    open_explanation(tmp_path / "e", {"predictions": "1", "scale": "rank"})
    with pytest.raises(ExplanationError, match="the run has changed"):
        open_explanation(tmp_path / "e", {"predictions": "2", "scale": "absolute"})
