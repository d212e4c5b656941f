import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgpmil
from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models.embedding import (
    MAX_DEVIATIONS,
    DigitCNN,
    InstanceLinear,
    Standardise,
    build_encoder,
    relu_layers,
)

from .small import SMALL


def test_unfitted_changes_nothing():
    features = 1e6 * torch.randn(5, 3)
    assert torch.equal(Standardise(3)(features), features)


def test_training_instances_get_mean_0_and_deviation_1():
    torch.manual_seed(0)
    features = torch.tensor([1e-3, 1.0, 1e4]) * torch.randn(500, 3) + torch.tensor([5.0, 0, -1e5])
    layer = Standardise(3)
    layer.fit(features)
    result = layer(features).double()
    assert torch.allclose(result.mean(0), torch.zeros(3).double(), atol=2e-3)
    assert torch.allclose(result.std(0, correction=0), torch.ones(3).double(), atol=2e-3)


def test_outliers_are_cut_off_at_five_deviations():
    layer = Standardise(1)
    layer.fit(torch.tensor([[-1.0], [1.0]]))
    values = torch.tensor([[-99.0], [-4.9], [0.0], [4.9], [5.1], [1e9]])
    expected = torch.tensor([[-5.0], [-4.9], [0.0], [4.9], [5.0], [5.0]])
    assert torch.allclose(layer(values), expected)
    assert MAX_DEVIATIONS == 5


@pytest.mark.parametrize("value", [0.0, 3.0, -1e6, 1e-9])
def test_a_constant_feature_is_safe(value):
    layer = Standardise(2)
    features = torch.stack([torch.full((9,), value), torch.linspace(0, 1, 9)], dim=1)
    layer.fit(features)
    assert torch.allclose(layer(features)[:, 0], torch.zeros(9), atol=1e-6)
    other = torch.tensor([[value + 0.25, 0.5]])
    assert layer(other)[0, 0].abs() <= 0.25 + 1e-5  # not divided by a deviation near zero


def test_one_instance_is_safe():
    layer = Standardise(2)
    layer.fit(torch.tensor([[3.0, -2.0]]))
    assert torch.equal(layer(torch.tensor([[3.0, -2.0]])), torch.zeros(1, 2))


def test_half_precision_features_are_not_summed_in_half_precision():
    features = (100 + torch.rand(5000, 1, generator=torch.Generator().manual_seed(0))).half()
    layer = Standardise(1)
    layer.fit(features)
    assert layer.mean.item() == pytest.approx(features.double().mean().item(), rel=1e-6)
    expected = features.double().std(correction=0).item()
    assert layer.scale.item() == pytest.approx(expected, rel=1e-6)


def test_statistics_travel_with_the_state():
    layer = Standardise(2)
    layer.fit(torch.rand(9, 2))
    copy = Standardise(2)
    copy.load_state_dict(layer.state_dict())
    features = 100 * torch.randn(4, 2)
    assert torch.equal(copy(features), layer(features))
    assert not list(layer.parameters())


def test_relu_layers():
    torch.manual_seed(0)
    layers = relu_layers((3, 5, 2))
    assert [type(layer) for layer in layers] == [InstanceLinear, nn.ReLU] * 2
    x = torch.randn(7, 3)
    first = (x @ layers[0].weight.T + layers[0].bias).clamp(min=0)
    expected = (first @ layers[2].weight.T + layers[2].bias).clamp(min=0)
    assert torch.allclose(layers(x), expected)


def test_rows_that_are_taken_are_those_that_it_standardises():
    generator = torch.Generator().manual_seed(0)
    matrix = 3 * torch.randn(9, 2, generator=generator) + 1
    layer = Standardise(2)
    layer.fit(matrix)
    segments = Segments.of(torch.tensor([0, 2, 5]))
    taken = layer.take(matrix, torch.tensor([6, 1]), segments, torch.float32)
    expected = layer(matrix[[6, 7, 1, 2, 3]])
    assert torch.allclose(taken, expected)
    with layer.done_before():
        assert layer(taken) is taken
    assert not torch.equal(layer(taken), taken)


def test_the_digit_network_is_the_published():
    torch.manual_seed(0)
    network = DigitCNN()
    # Two convolutions of 5×5, 1 to 20 and 20 to 50 channels, and 800 to 500.
    count = (20 * 25 + 20) + (50 * 20 * 25 + 50) + (800 * 500 + 500)
    assert sum(p.numel() for p in network.parameters()) == count
    pixels = torch.randn(3, 784)
    weights = list(network.parameters())
    x = F.max_pool2d(F.relu(F.conv2d(pixels.view(3, 1, 28, 28), *weights[:2])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, *weights[2:4])), 2)
    expected = F.relu(F.linear(x.reshape(3, 800), *weights[4:]))
    assert torch.allclose(network(pixels), expected, atol=1e-6)


def test_without_an_encoder_features_stay():
    encoder, width = build_encoder("none", 7)
    features = torch.randn(2, 7)
    assert width == 7
    assert encoder(features) is features


def test_another_number_of_pixels_is_refused():
    with pytest.raises(SettingsError, match=r"Expected instances of 784 .* 100 features"):
        sgpmil.build_model("abmil", in_dim=100, num_classes=2, encoder="digit-cnn")


def test_an_unknown_encoder_is_refused():
    with pytest.raises(SettingsError, match="Expected encoder to be one of none, digit-cnn"):
        sgpmil.build_model("abmil", in_dim=784, num_classes=2, encoder="resnet")


@pytest.mark.parametrize("name", [n for n in sgpmil.list_models() if n != "bag-size"])
def test_every_model_trains_the_encoder_in_front_of_it(name):
    torch.manual_seed(0)
    model = sgpmil.build_model(
        name, in_dim=784, num_classes=2, encoder="digit-cnn", standardise=False, **SMALL[name]
    )
    coords = torch.tensor([[0, 0], [1, 0], [0, 1]])
    bags = [
        Bag(torch.randn(3, 784) + i % 2, f"b{i}", label=i % 2, coords=coords, patch_size=1)
        for i in range(4)
    ]
    batch = BagBatch.pack(bags)
    model.initialise(batch, seed=0)
    model.train()
    model.loss(model(batch), batch.labels, num_bags=4).total.backward()
    for key, parameter in model.encoder.named_parameters():
        assert parameter.grad.abs().max() > 0, key
