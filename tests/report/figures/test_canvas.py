import matplotlib
import pytest

from sgpmil.report.figures.canvas import new_figure, save_figure, style_axes


def test_saved_figure_is_a_whole_png(tmp_path):
    figure = new_figure(2.0, 1.0)
    style_axes(figure.add_subplot(), title="t", x_label="x", y_label="y")
    path = tmp_path / "figures" / "a.png"
    save_figure(figure, path, dpi=50)
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]


def test_failure_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    figure = new_figure(2.0, 1.0)
    with pytest.raises(ValueError, match="dpi"):
        save_figure(figure, path, dpi=-1)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_no_global_state():
    before = dict(matplotlib.rcParams)
    new_figure(2.0, 1.0)
    assert dict(matplotlib.rcParams) == before
