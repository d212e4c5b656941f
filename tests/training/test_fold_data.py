from sgpmil.training.batches import draw_epoch
from sgpmil.training.lightning_module import LightningModel

from .conftest import toy_bags, train


def test_each_epoch_draws_its_own_bags(monkeypatch):
    drawn = []
    original = LightningModel.training_step

    def training_step(self, batches, batch_idx):
        drawn.append([bag for group in batches.groups for bag in group])
        original(self, batches, batch_idx)

    monkeypatch.setattr(LightningModel, "training_step", training_step)
    train(epochs=3, seed=5)
    labels = list(toy_bags().labels)
    expected = [draw_epoch(labels, seed=5, epoch=e, balanced=True) for e in range(3)]
    assert drawn == expected
    assert expected[0] != expected[1] != expected[2]
