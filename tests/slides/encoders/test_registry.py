from pathlib import Path

import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")
pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'sgpmil[encoders]'")

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders import encoder_rows, find_entry, list_encoders
from sgpmil.slides.encoders.published import Pooled, build_trunk

PUBLISHED_MILLIONS = {
    # As the model cards have them; CONCH's counts the captions' towers too and is left out.
    "efficientnet-lite0": 4.65 - 1.28,  # without its classifier
    "resnet50": 25.6 - 2.05,  # without its classifier
    "uni_v1": 303.4,
    "uni_v2": 681.4,
    "virchow": 631.2,
    "virchow2": 631.2,
    "gigapath": 1135.0,
    "hoptimus0": 1134.8,
    "hoptimus1": 1134.8,
    "phikon": 85.8,
    "phikon_v2": 303.4,
    "midnight12k": 1134.8,
    "kaiko-vits8": 21.7,
    "kaiko-vits16": 21.7,
    "kaiko-vitb8": 85.8,
    "kaiko-vitb16": 85.8,
    "kaiko-vitl14": 304.4,
}
DIMS = {
    # The table of features as they are in circulation.
    "resnet50": 1024,
    "uni_v1": 1024,
    "uni_v2": 1536,
    "conch_v1": 512,
    "virchow": 2560,
    "virchow2": 2560,
    "gigapath": 1536,
    "hoptimus0": 1536,
    "hoptimus1": 1536,
    "phikon": 768,
    "phikon_v2": 1024,
    "midnight12k": 3072,
    "kaiko-vits8": 384,
    "kaiko-vits16": 384,
    "kaiko-vitb8": 768,
    "kaiko-vitb16": 768,
    "kaiko-vitl14": 1024,
}


@pytest.mark.parametrize("entry", list_encoders(), ids=lambda entry: entry.name)
def test_networks_are_of_the_published_size(entry):
    trunk = build_trunk(entry)
    millions = sum(value.numel() for value in trunk.parameters()) / 1e6
    if entry.name in PUBLISHED_MILLIONS:
        assert millions == pytest.approx(PUBLISHED_MILLIONS[entry.name], rel=2e-3)
    side = entry.transform.size
    found = Pooled(trunk, entry)(torch.empty(2, 3, side, side, device="meta"))
    assert found.shape == (2, entry.dim)
    assert DIMS.get(entry.name, entry.dim) == entry.dim


def test_no_name_is_given_twice():
    plain = [
        {name.lower().replace("-", "").replace("_", "") for name in (entry.name, *entry.aliases)}
        for entry in list_encoders()
    ]
    assert sum(map(len, plain)) == len(set.union(*plain))
    assert list_encoders()[0].name == "efficientnet-lite0"
    assert not list_encoders()[0].repository


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("uni", "uni_v1"),
        ("UNI2-h", "uni_v2"),
        ("uni-v2", "uni_v2"),
        ("hoptimus", "hoptimus0"),
        ("H-optimus-1", "hoptimus1"),
        ("Virchow2", "virchow2"),
        ("phikon-v2", "phikon_v2"),
        ("kaiko_vits8", "kaiko-vits8"),
        ("efficientnet_lite0", "efficientnet-lite0"),
        ("prov-gigapath", "gigapath"),
    ],
)
def test_aliases(given, name):
    assert find_entry(given).name == name


def test_an_unknown_name():
    with pytest.raises(EncoderError, match=r"got 'unii_v2'\. Did you mean uni_v2.*timm:NAME"):
        find_entry("unii_v2")
    with pytest.raises(EncoderError, match=r"got 'zzzz'\. Known are efficientnet-lite0, resnet50"):
        find_entry("zzzz")


def test_table():
    heading, rows = encoder_rows()
    assert len(rows) == len(list_encoders())
    assert {len(row) for row in rows} == {len(heading)}
    assert rows[2] == (
        "uni_v1",
        "1024",
        "224 px",
        "float16",
        "MahmoodLab/UNI",
        "CC BY-NC-ND 4.0, to be accepted",
    )
    assert rows[0][4] == "embedded"


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
