import numpy as np
import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.report.figures.run_figures import write_run_figures


def _table(rng, fold, *, labelled=True, with_coords=True):
    predictions = []
    for number in range(8):
        p = rng.uniform(size=(5, 1))
        scores = InstanceScores(
            rng.uniform(size=6),
            rng.uniform(size=6),
            coords=np.arange(12).reshape(6, 2) if with_coords else None,
        )
        predictions.append(
            Prediction.from_samples(
                f"{fold}-{number}",
                "case",
                number % 2 if labelled else None,
                np.hstack([1 - p, p]),
                scores,
            )
        )
    return PredictionTable(tuple(predictions), ClassTarget(("normal", "tumor")))


def test_a_map_shows_the_surest_slide_of_each_fold(tmp_path, rng):
    tables = [_table(rng, fold) for fold in range(2)]
    written = write_run_figures(tmp_path, tables)
    surest = [max(t.predictions, key=lambda p: p.probs[1]).slide_id for t in tables]
    assert [path.name for path in written] == [
        "reliability.png",
        "roc.png",
        *(f"attention-{slide}.png" for slide in surest),
    ]
    assert all(path.stat().st_size > 10_000 for path in written)


@pytest.mark.parametrize("labelled", [True, False])
def test_only_what_the_data_allow(tmp_path, rng, labelled):
    written = write_run_figures(tmp_path, [_table(rng, 0, labelled=labelled, with_coords=False)])
    assert [path.name for path in written] == (["reliability.png", "roc.png"] if labelled else [])
