"""Programs in files of data: none runs, unless a user trusts it by name."""

import base64
import hashlib
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags import read_bags
from sgpmil.errors import BagError, CheckpointError, EncoderError, SgpmilError, SlideError
from tests.faults.fuzzing import _fit as fit_last
from tests.faults.fuzzing import _slide as write_slide


class Program:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def ran(tmp_path):
    """A file that a program would write."""
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists()


def saved(content, path):
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)
    return path


def test_the_program_works(tmp_path):
    pickle.loads(pickle.dumps(Program(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".pt", ".npy", ".npz"])
def test_no_bag_runs_a_program(tmp_path, ran, suffix):
    folder = tmp_path / "bags"
    folder.mkdir()
    content = np.array([Program(ran)], dtype=object)
    if suffix == ".pt":
        saved({"features": Program(ran)}, folder / "a.pt")
    else:
        (np.save if suffix == ".npy" else np.savez)(folder / f"a{suffix}", content)
    with pytest.raises(BagError):
        read_bags(folder)[0].features.sum()


def test_no_checkpoint_runs_a_program(tmp_path, ran):
    from sgpmil.slides.encoders.checkpoints import read_weights

    with pytest.raises(EncoderError):
        read_weights(saved({"fc.weight": Program(ran)}, tmp_path / "weights.pt"))
    fit_last(tmp_path / "fold", 1, False)
    saved({"format_version": 2, "model": Program(ran)}, tmp_path / "fold" / "last.ckpt")
    with pytest.raises(CheckpointError):
        fit_last(tmp_path / "fold", 2, True)
    from sgpmil.models.released import read_released_checkpoint

    with pytest.raises(SgpmilError):
        read_released_checkpoint(saved({"state_dict": Program(ran)}, tmp_path / "released.ckpt"))


class Writer(torch.nn.Module):
    """An encoder that writes a file, as TorchScript may."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, images):
        made = torch.from_file(self.path, shared=True, size=4)
        return images.mean(dim=(2, 3)) + 0 * made.sum()


def test_torchscript_runs_only_where_it_is_trusted(tmp_path, sgpmil, ran):
    pytest.importorskip("openslide", reason="pip install '.[slides]'")
    path, slides = tmp_path / "encoder.pt", tmp_path / "slides"
    torch.jit.script(Writer(str(ran))).save(str(path))
    slides.mkdir()
    write_slide("a.svs")(slides)
    words = ("extract", slides, "--out", tmp_path / "out", "--encoder", path)
    code, _, error = sgpmil(*words)
    assert code == 2
    assert "--trust" in error
    assert "safetensors" in error
    assert not (tmp_path / "out").exists()
    # It is a program indeed: trusted, it runs.
    from sgpmil.slides.encoders import load_encoder

    load_encoder(str(path), trust=True)
    assert ran.exists()
    ran.unlink()


def test_onnx_with_operators_of_others_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx", reason="pip install '.[export]'")
    pytest.importorskip("onnxruntime", reason="pip install '.[export]'")
    from onnx import TensorProto, helper

    from sgpmil.slides.encoders import load_encoder

    node = helper.make_node("Run", ["x"], ["y"], domain="own.library")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 3, 224, 224])
        for name in ("x", "y")
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own.library", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "a.onnx")
    with pytest.raises(EncoderError, match=r"a\.onnx"):
        load_encoder(str(tmp_path / "a.onnx"))


def test_pages_name_the_one_script_that_may_run():
    from sgpmil.report.pages import rendering

    environment = rendering._environment()
    script = str(environment.globals["script"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for name in ("run_report.html.j2", "case_report.html.j2"):
        source, *_ = environment.loader.get_source(environment, name)
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', source)
        assert "default-src 'none'" in policy
        scripts = re.search(r"script-src ([^;]+)", policy)
        assert scripts is None or "unsafe" not in scripts[1]
        assert not re.findall(r"\son[a-z]+=", source), "a handler in an attribute"
        if "<script" in source:
            assert scripts is not None
    assert environment.globals["script_hash"] == f"sha256-{digest}"


def test_a_resume_after_the_last_epoch_keeps_its_number(tmp_path):
    fit_last(tmp_path, 2, False)
    before = json.loads((tmp_path / "checkpoint.json").read_text())
    fit_last(tmp_path, 2, True)
    after = json.loads((tmp_path / "checkpoint.json").read_text())
    assert after["details"]["epoch"] == before["details"]["epoch"] == 1


@pytest.mark.parametrize("name", ["a.svs", "a.tiff"])
@pytest.mark.parametrize(("width", "height"), [(0, 256), (10**6, 10**6), (2**31, 2**31)])
def test_a_first_page_of_impossible_size_is_refused_and_no_other_taken(
    tmp_path, name, width, height
):
    pytest.importorskip("openslide", reason="pip install '.[slides]'")
    tifffile = pytest.importorskip("tifffile", reason="pip install '.[slides]'")
    from sgpmil.slides.reading import open_slide

    path = write_slide(name)(tmp_path)
    with tifffile.TiffFile(path) as file:
        tags = file.pages[0].tags
        places = [tags[key].valueoffset for key in ("ImageWidth", "ImageLength")]
    content = bytearray(path.read_bytes())
    for place, value in zip(places, (width, height), strict=True):
        content[place - 6 : place - 4] = (4).to_bytes(2, "little")
        content[place : place + 4] = value.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(SlideError, match=name):
        open_slide(path)


READERS = {
    "torch.load(": {"bags/readers/torch_files.py"},
    "np.load(": {"bags/readers/numpy_files.py", "bags/store.py"},
    "yaml.load(": {"yaml_values.py"},
    "yaml.safe_load(": set(),
    "pq.read_table(": set(),
    "pq.ParquetFile(": {"runs/prediction_files.py"},
}
"""Calls that unfold a file, and where they may be: behind the checks of its size."""


def test_files_are_unfolded_where_their_size_is_checked():
    import sgpmil

    root = Path(sgpmil.__file__).parent
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    for call, places in READERS.items():
        assert {name for name, text in texts.items() if call in text} == places, call
