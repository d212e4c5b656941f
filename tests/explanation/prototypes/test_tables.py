import pandas as pd
import pytest

from sgpmil.explanation.prototypes import Nuclei, explain_prototypes, write_prototype_table
from tests.explanation.prototypes.explained import attention_scores, labelled_bags, spread_model


@pytest.fixture(scope="module")
def explanation():
    import numpy as np

    bags = labelled_bags()
    rng = np.random.default_rng(0)
    nuclei = Nuclei(rng.uniform(0, 40, (50, 2)), rng.integers(0, 2, 50), ("Dead", "Connective"))
    return explain_prototypes(
        spread_model(), bags, scores=attention_scores(bags), nuclei=lambda _: nuclei
    )


def test_pandas_reads_what_was_found(explanation, tmp_path):
    write_prototype_table(tmp_path / "a" / "prototypes.csv", explanation)
    table = pd.read_csv(tmp_path / "a" / "prototypes.csv")
    assert table["prototype"].tolist() == [p.index for p in explanation.prototypes]
    assert table["rank"].tolist() == list(range(1, 10))
    assert table["colour"].tolist() == [
        explanation.colour_of(p.index) for p in explanation.prototypes
    ]
    for row, summary in zip(table.itertuples(), explanation.prototypes, strict=True):
        assert row.patches == summary.num_patches
        assert row.cancer_share == pytest.approx(summary.cancer_share(), abs=1e-5, nan_ok=True)
        assert row.logit_at_prototype == pytest.approx(summary.logit_at, rel=1e-5)
        assert row.relative_attention == pytest.approx(
            summary.relative_attention, rel=1e-5, nan_ok=True
        )
        assert (row.nuclei_Dead, row.nuclei_Connective) == summary.nuclei
    best = explanation.used[0].examples[0]
    assert table["examples"][0].split()[0] == f"{best.slide_id}:{best.instance}"


def test_shares_of_few_labels_are_left_empty(explanation, tmp_path):
    write_prototype_table(tmp_path / "p.csv", explanation, fewest_labelled=10**6)
    assert pd.read_csv(tmp_path / "p.csv")["cancer_share"].isna().all()


def test_nothing_is_left_of_a_file_that_cannot_be_written(explanation, tmp_path):
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(OSError, match=r"p\.csv"):
        write_prototype_table(tmp_path / "p.csv", explanation)
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
