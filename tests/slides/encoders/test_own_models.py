import json

import numpy as np
import pytest
import torch
from torch import nn

from sgpmil.errors import EncoderError, MissingPartError
from sgpmil.slides.encoders import load_encoder

from .stand_ins import random_patches


class Pooling(nn.Module):
    def __init__(self):
        super().__init__()
        source = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 3, 2, 2, generator=source))

    def forward(self, images):
        return nn.functional.conv2d(images, self.weight).mean((2, 3))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my model.pt"
    torch.jit.trace(Pooling(), torch.zeros(1, 3, 8, 8)).save(str(path))
    return path


def test_torchscript(script):
    encoder = load_encoder(str(script), trust=True)
    assert (encoder.name, encoder.dim, encoder.input_size) == ("my-model", 6, 224)
    patches = random_patches(3, 224)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = ((patches / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        wanted = Pooling()(images)
    torch.testing.assert_close(encoder.encode(patches), wanted, atol=1e-5, rtol=1e-4)


def test_a_file_beside_it_says_what_it_takes(script):
    plain = load_encoder(str(script), trust=True)
    said = {"input_size": 16, "mean": [0, 0, 0], "std": [1, 1, 1], "precision": "bfloat16"}
    script.with_suffix(".json").write_text(json.dumps(said))
    encoder = load_encoder(str(script), trust=True)
    assert encoder.input_size == 16
    assert encoder.precision == "float32"  # on a CPU
    patches = random_patches(2, 16)
    with torch.inference_mode():
        wanted = Pooling()(patches.permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(encoder.encode(patches), wanted, atol=1e-5, rtol=1e-4)
    assert encoder.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    "said",
    ['{"size": 3}', '{"input_size": "large"}', "[", '{"std": [0, 1, 1]}', '{"mean": [1]}', "[1]"],
)
def test_a_file_beside_it_that_is_wrong(script, said):
    script.with_suffix(".json").write_text(said)
    with pytest.raises(EncoderError, match=r"Expected input_size, mean, std.*my model\.json"):
        load_encoder(str(script), trust=True)


def test_what_is_no_model(tmp_path, script):
    torch.save(Pooling().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(EncoderError, match=r"Expected a TorchScript model .*`weights`"):
        load_encoder(str(tmp_path / "weights.pt"))
    (tmp_path / "empty.pt").touch()
    with pytest.raises(EncoderError, match="Expected a TorchScript model"):
        load_encoder(str(tmp_path / "empty.pt"))
    with pytest.raises(EncoderError, match=r"absent.pt', but there is no such file"):
        load_encoder(str(tmp_path / "absent.pt"))
    with pytest.raises(EncoderError, match="Expected no other weights"):
        load_encoder(str(script), weights=tmp_path / "weights.pt")


def test_what_gives_no_embedding(tmp_path):
    for name, network, words in (
        ("map", nn.Conv2d(3, 2, 1), r"one embedding for each image .*got \(2, 2, 224, 224\)"),
        ("size", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), "fails on them"),
    ):
        size = 2 if name == "size" else 224
        torch.jit.trace(network, torch.zeros(1, 3, size, size)).save(str(tmp_path / f"{name}.pt"))
        with pytest.raises(EncoderError, match=words):
            load_encoder(str(tmp_path / f"{name}.pt"), trust=True)


def write_onnx(path, batch, size):
    onnx = pytest.importorskip("onnx")
    weight = Pooling().weight.detach().numpy()
    values = [
        onnx.helper.make_tensor_value_info("images", 1, [batch, 3, size, size]),
        onnx.helper.make_tensor_value_info("features", 1, [batch, 6]),
    ]
    nodes = [
        onnx.helper.make_node("Conv", ["images", "weight"], ["map"]),
        onnx.helper.make_node("GlobalAveragePool", ["map"], ["pooled"]),
        onnx.helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.ascontiguousarray(weight), "weight")]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_onnx(tmp_path, batch):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "a.onnx"
    write_onnx(path, batch, 16)
    encoder = load_encoder(str(path))
    assert (encoder.name, encoder.dim, encoder.input_size) == ("a", 6, 16)
    patches = random_patches(3, 16)
    with torch.inference_mode():
        wanted = Pooling()(encoder.transform(patches))
    torch.testing.assert_close(encoder.encode(patches), wanted, atol=1e-5, rtol=1e-4)
    assert encoder.fingerprint == load_encoder(str(path)).fingerprint


def test_onnx_that_is_none(tmp_path, monkeypatch):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"nothing")
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "onnxruntime", None)
        with pytest.raises(MissingPartError, match=r"'onnxruntime' .*pip install onnxruntime"):
            load_encoder(str(path))
    pytest.importorskip("onnxruntime")
    with pytest.raises(EncoderError, match="Expected an ONNX model"):
        load_encoder(str(path))


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
