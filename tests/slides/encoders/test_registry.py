import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("timm", reason="pip install '.[encoders]'")
pytest.importorskip("efficientnet_lite_pytorch", reason="pip install '.[encoders]'")

from sgpmil.errors import EncoderError
from sgpmil.plugins import PluginWarning, load_plugins
from sgpmil.slides.encoders import (
    encoder_rows,
    find_entry,
    list_encoders,
    load_encoder,
    register_encoder,
)
from sgpmil.slides.encoders import registry as registry_module
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


MEAN_COLOUR = """
from sgpmil.slides.encoders import register_encoder

@register_encoder("mean-colour", aliases=("mean_rgb",), licence="MIT")
class MeanColour:
    dim, input_size, mean, std = 3, 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __init__(self, weights=None):
        self.factor = 1.0 if weights is None else float(weights.read_text())

    def __call__(self, images):
        return self.factor * images.mean((2, 3))
"""


@pytest.fixture
def registry(monkeypatch):
    """The registry, restored after the test; plug-ins are looked for again."""
    monkeypatch.setattr(registry_module, "_ENTRIES", dict(registry_module._ENTRIES))
    load_plugins.cache_clear()
    yield registry_module
    load_plugins.cache_clear()


def install(folder, monkeypatch, **modules):
    """Install a package whose entry points name the modules."""
    information = folder / "plug_in-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {name}" for name in modules)
    (information / "entry_points.txt").write_text(f"[sgpmil.encoders]\n{points}\n")
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)


def test_encoders_of_plug_ins(registry, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, mean_colour=MEAN_COLOUR)
    encoder = load_encoder("Mean_RGB", device="cpu")
    assert (encoder.name, encoder.dim, encoder.input_size) == ("mean-colour", 3, 32)
    patches = torch.full((2, 32, 32, 3), 51, dtype=torch.uint8)
    torch.testing.assert_close(encoder.encode(patches), torch.full((2, 3), 51 / 255))
    (tmp_path / "factor").write_text("2")
    doubled = load_encoder("mean-colour", device="cpu", weights=tmp_path / "factor")
    torch.testing.assert_close(doubled.encode(patches), torch.full((2, 3), 102 / 255))
    assert list_encoders()[-1].name == "mean-colour"
    assert encoder_rows()[1][-1] == ("mean-colour", "3", "32 px", "float32", "embedded", "MIT")


def test_a_broken_plug_in_is_left_out(registry, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, broken="1 / 0", mean_colour=MEAN_COLOUR)
    with pytest.warns(PluginWarning, match=r"'broken' of sgpmil\.encoders.*division by zero"):
        assert find_entry("mean-colour").dim == 3


def test_names_are_registered_once(registry):
    class Own:
        dim, input_size = 3, 8

    register_encoder("own", aliases=("mine",))(Own)
    register_encoder("own", aliases=("mine",))(Own)  # defined again, as in a notebook
    for name, more in (("UNI-v2", {}), ("other", {"aliases": ("uni",)}), ("mine", {})):
        with pytest.raises(EncoderError, match=r"new name for the encoder .*Own, but '.*' is reg"):
            register_encoder(name, **more)(Own)
    with pytest.raises(EncoderError, match="to have dim and input_size, but it lacks one"):
        register_encoder("new")(object)


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
