import pytest
import torch

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders import load_encoder

from .stand_ins import random_patches

MODULE = """
import torch

class MeanColour:
    dim, input_size = 3, 16
    mean, std = (0, 0, 0), (1, 1, 1)

    def __call__(self, images):
        return images.mean((2, 3))

class Weighted(torch.nn.Module):
    dim, input_size = 2, 16

    def __init__(self, weights=None):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        if weights is not None:
            self.load_state_dict(torch.load(weights))

    def forward(self, images):
        return self.scale * images.mean((2, 3))[:, :2]

class NoDim:
    input_size = 16
    def __call__(self, images):
        return images

class Needy(MeanColour):
    def __init__(self, size):
        pass

class BadMean(MeanColour):
    mean = (0, 0)

class BadPrecision(MeanColour):
    precision = "float8"

number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "my_encoders.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("class:")
    monkeypatch.chdir(tmp_path)
    yield
    __import__("sys").modules.pop("my_encoders", None)


def test_a_plain_class():
    encoder = load_encoder("my_encoders:MeanColour")
    assert (encoder.name, encoder.dim, encoder.input_size) == ("MeanColour", 3, 16)
    patches = random_patches(4, 16)
    torch.testing.assert_close(encoder.encode(patches), patches.float().mean((1, 2)) / 255)


def test_a_module_with_weights(tmp_path):
    torch.save({"scale": torch.tensor(3.0)}, tmp_path / "a.pt")
    patches = random_patches(2, 32)
    plain = load_encoder("my_encoders:Weighted")
    scaled = load_encoder("my_encoders:Weighted", weights=tmp_path / "a.pt")
    torch.testing.assert_close(scaled.encode(patches), 3 * plain.encode(patches))
    assert scaled.fingerprint != plain.fingerprint


def test_its_code_is_part_of_the_fingerprint(tmp_path):
    before = load_encoder("my_encoders:MeanColour").fingerprint
    __import__("sys").modules.pop("my_encoders")
    (tmp_path / "my_encoders.py").write_text(MODULE.replace("(2, 3))\n", "(2, 3)) + 1\n"))
    __import__("importlib").invalidate_caches()
    assert load_encoder("my_encoders:MeanColour").fingerprint != before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_encoders:Absent", "Expected a class 'Absent' in .*my_encoders.py', but there is none"),
        ("my_encoders:number", "Expected a class 'number'"),
        ("no_such_module:Class", "Expected a module 'no_such_module'.*start from its folder"),
        ("broken:Class", "Expected a module 'broken'.*cannot be imported .*invalid syntax"),
        ("my_encoders:NoDim", "Expected .* to have dim and input_size"),
        ("my_encoders:Needy", "constructed without arguments"),
        ("my_encoders:BadMean", "to make a transform"),
        ("my_encoders:BadPrecision", "precision 'float8'"),
    ],
)
def test_what_is_no_encoder(name, words):
    with pytest.raises(EncoderError, match=words):
        load_encoder(name)
