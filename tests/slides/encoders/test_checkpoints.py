import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoints import load_weights, read_weights


def net(width=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


WEIGHTS = {name: value.detach().clone() for name, value in net().state_dict().items()}


def same(found):
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    "wrapped",
    [
        WEIGHTS,
        {"state_dict": WEIGHTS, "epoch": 3},
        {"model": {"state_dict": WEIGHTS}},
        {"module." + name: value for name, value in WEIGHTS.items()},
        {"state_dict": {"model._orig_mod." + name: value for name, value in WEIGHTS.items()}},
        {
            "teacher": {
                **{"backbone." + name: value for name, value in WEIGHTS.items()},
                "dino_head.mlp.0.weight": torch.zeros(2),
            }
        },
    ],
    ids=["plain", "nested", "twice", "parallel", "compiled", "teacher"],
)
def test_wrappers_are_taken_off(tmp_path, wrapped):
    torch.save(wrapped, tmp_path / "a.pth")
    same(read_weights(tmp_path / "a.pth"))


def test_safetensors_shards_and_folders(tmp_path):
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    same(read_weights(tmp_path / "a.safetensors"))
    same(read_weights(tmp_path))
    shards = tmp_path / "shards"
    shards.mkdir()
    names = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(WEIGHTS)}
    for file in set(names.values()):
        save_file({n: WEIGHTS[n] for n in names if names[n] == file}, shards / file)
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    same(read_weights(shards))
    torch.save(WEIGHTS, tmp_path / "b.pt")
    with pytest.raises(EncoderError, match=r"Expected one weight file .*but found 2"):
        read_weights(tmp_path)
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    same(read_weights(tmp_path))


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 cut off"])
def test_damaged(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(EncoderError, match=r"nothing but tensors in .*cannot be read"):
        read_weights(path)


def test_what_is_no_checkpoint(tmp_path):
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(EncoderError, match=r"cannot be read .*save the model's state_dict"):
        read_weights(tmp_path / "evil.pt")
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(EncoderError, match="nothing but tensors"):
        read_weights(tmp_path / "whole.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(EncoderError, match=r"Expected tensors by name .*but found none"):
        read_weights(tmp_path / "none.pt")
    with pytest.raises(EncoderError, match="no such file"):
        read_weights(tmp_path / "absent.pt")


def test_weights_are_loaded_as_float32_onto_a_network_without_memory():
    with torch.device("meta"):
        network = net()
    given = {
        name: value.half() if value.is_floating_point() else value
        for name, value in WEIGHTS.items()
    }
    load_weights(
        network, {**given, "head.weight": torch.zeros(2), "mask_token": torch.zeros(1)}, ""
    )
    found = network.state_dict()
    assert found["0.weight"].dtype == torch.float32
    assert torch.equal(found["0.weight"], WEIGHTS["0.weight"].half().float())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"0.weight": None},
            r"the net in 'a', but of its 7 tensors 1 are missing \(first: 0.weight",
        ),
        ({"extra": torch.zeros(1)}, r"1 are unknown \(first: extra\)"),
        ({"0.bias": torch.zeros(4)}, r"of another shape \(first: 0.bias is 4 instead of 3\)"),
        ({"1.num_batches_tracked": None, "2.x": torch.zeros(1)}, "1 are missing .*, 1 are unknown"),
    ],
)
def test_weights_of_something_else(changed, words):
    weights = {n: v for n, v in {**WEIGHTS, **changed}.items() if v is not None}
    with pytest.raises(EncoderError, match=words):
        load_weights(net(), weights, "the net in 'a'")
