import csv

from sgpmil.experiments.bench_table import (
    HEADER,
    PAPER_TIMES,
    BenchRow,
    bench_cells,
    write_bench_table,
)
from sgpmil.models import build_model

ROWS = [
    BenchRow("sgpmil:paper", 1_209_686, 0.125, (0.1, 0.2), 0.0061, 3 * 2**29, 2**30),
    BenchRow("max-pool", 525_826, 0.05, (0.04, 0.06), 0.004, None, None),
    BenchRow("agp", error="Not today."),
]


def test_rows_stand_beside_the_papers(tmp_path):
    cells = dict(zip(HEADER, bench_cells(ROWS[0]), strict=False))
    assert cells["train s/epoch"] == "0.125"
    assert bench_cells(ROWS[0])[1:7] == ("0.125", "9", "0.0061", "1", "1.21", "1.21")
    assert bench_cells(ROWS[0])[7:] == ("1.50", "1.00")
    assert bench_cells(ROWS[1])[2:5] == ("–", "0.004", "–")
    markdown, sheet = write_bench_table(tmp_path, ROWS, "On a test.")
    text = markdown.read_text()
    assert "On a test." in text
    assert "| agp | Not today. |" in text
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["paper_train_seconds"] == "9.0"
    assert (rows[1]["paper_millions"], rows[1]["train_bytes"]) == ("", "")
    assert rows[2]["error"] == "Not today."


def test_the_papers_sizes_are_those_of_the_models():
    for name, paper in PAPER_TIMES.items():
        model, _, preset = name.partition(":")
        settings = {"preset": preset} if preset else {}
        count = build_model(model, in_dim=1024, num_classes=2, **settings).num_parameters()
        # The published DGR-MIL owns 131,072 weights more, which nothing uses.
        unused = 131_072 if model == "dgrmil" else 0
        assert round((count + unused) / 1e6, 2) == paper.millions, name
