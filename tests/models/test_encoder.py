import pytest
import torch
import torch.nn.functional as F

import sgpmil
from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models.encoder import DigitCNN, build_encoder

from .small import SMALL


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
