from pathlib import Path

from sgpmil.slides.encoders import list_encoders

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "encoders.md"


def test_the_page_has_every_encoder():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for entry in list_encoders():
        (row,) = [line for line in lines if line.startswith(f"| `{entry.name}` | {entry.dim} |")]
        _, _, _, size, precision, pooling, weights, licence, _ = map(str.strip, row.split("|"))
        assert size.startswith(f"{entry.transform.size} px, {entry.transform.interpolation}")
        assert (precision, pooling) == (entry.precision, entry.pooling)
        assert (entry.repository or "embedded") in weights
        assert licence == entry.licence + (", gated" if entry.is_gated else "")
