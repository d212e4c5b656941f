"""What a notebook shows of the objects that users meet."""

from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.evaluation.summary import evaluate, summarise
from sgpmil.models import build_model
from sgpmil.notebook import html_table
from sgpmil.training.cross_validation import CrossValidation
from tests.evaluation.tables import random_scores, random_table, table_of

EVIL = "<script>alert('x')</script>&"


class Cells(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.tags, self.open = [], set(), []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def evil_bags():
    arrays = {"a": np.ones((3, 2)), "b": np.ones((1, 2)), "c": np.ones((2, 2))}
    return BagDataset.from_arrays(arrays, {"a": EVIL, "b": "x", "c": "x"})


def shown():
    table = table_of([[0.25, 0.75], [0.5, 0.5]], [1, None], (EVIL, "x"))
    folds = [evaluate(random_table(seed=k), str(k)) for k in range(3)]
    model = build_model("abmil", in_dim=4, num_classes=2)
    model.target = table.target
    return [
        evil_bags(),
        table,
        table.predictions[0],
        folds[0],
        summarise(folds),
        CrossValidation(tuple(folds), ()),
        model,
    ]


@pytest.mark.parametrize("one", shown(), ids=lambda one: type(one).__name__)
def test_html_is_whole_and_escaped(one):
    page = Cells(one._repr_html_())
    assert page.tags == {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert not [text for text in page.texts if len(text) > 120]


def test_html_says_what_there_is():
    bags, table, prediction, fold, summary, *_ = (Cells(one._repr_html_()).texts for one in shown())
    assert bags[0] == "3 slides of 3 patients, 2 features an instance"
    assert bags[5:] == [EVIL, "1", "1", "3, 3 – 3", "x", "2", "2", "1.5, 1 – 2"]
    assert table[7:13] == ["slide-000", "x", "x", "0.250", "0.750", "0.562"]
    assert table[13:16] == ["slide-001", "–", EVIL]
    assert "Prediction of slide-000, label 1" in prediction
    expected = evaluate(random_table(seed=0)).slide
    assert fold[fold.index("balanced accuracy") + 1] == f"{expected.balanced_accuracy:.3f}"
    means = np.array([evaluate(random_table(seed=k)).slide.accuracy for k in range(3)])
    at = summary.index("accuracy")
    assert summary[at + 1] == f"{means.mean():.3f} ± {means.std(ddof=1):.3f}"


def test_only_the_first_rows_are_shown():
    page = Cells(random_table(40)._repr_html_())
    assert "… 30 more" in page.texts
    assert "0009" in page.texts
    assert "0010" not in page.texts
    assert Cells(html_table("t", ["a"], [[1]], "note")).texts == ["t", "a", "1", "note"]


def test_short_descriptions():
    bag = Bag(torch.ones(3, 2), "a", "p", 1, torch.zeros(3, 2, dtype=torch.long), 224)
    assert repr(bag) == (
        "Bag('a', 3 instances × 2 features, patient 'p', label 1, coordinates, patches of 224 px)"
    )
    assert repr(BagBatch.pack([bag])) == "BagBatch(1 bag, 3 instances × 2 features, cpu)"
    bags = evil_bags()
    assert repr(bags) == (
        f"BagDataset(3 slides of 3 patients, 1 to 3 instances of 2 features; {EVIL} 1, x 2)"
    )
    unlabelled = BagDataset.from_arrays([np.ones((1, 2))])
    assert repr(unlabelled).endswith("1 to 1 instances of 2 features; no label 1)")
    table = table_of([[0.25, 0.75], [0.5, 0.5]], [1, None])
    assert repr(table) == "PredictionTable(2 slides, 1 with a label; c0, c1)"
    assert repr(table.predictions[0]) == (
        "Prediction('slide-000': class 1 0.750, label 1, entropy 0.562)"
    )
    assert repr(random_scores()) == "InstanceScores(30 instances: attention, evidence)"
    folds = [evaluate(table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1]), str(k)) for k in range(2)]
    assert repr(folds[0]).startswith("FoldMetrics(fold 0, 2 slides: balanced_accuracy 1.000")
    auc = next(s for s in summarise(folds) if s.name == "auc")
    assert repr(auc) == "MetricSummary(auc 1.000 ± 0.000 over 2 folds)"
    assert repr(CrossValidation(tuple(folds), ())).startswith("CrossValidation(2 folds: ")
    model = build_model("abmil", in_dim=4, num_classes=2)
    assert f"4 features → 0, 1, {model.num_parameters():,} parameters" in repr(model)
    assert len(repr(model)) < 1500
    output = model.eval()(BagBatch.pack([Bag(torch.ones(3, 4), "a")]))
    assert repr(output) == "ModelOutput(1 bag, 3 instances, 1 sample, 2 outputs)"
