from dataclasses import replace

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from sgpmil.report.pages.case_maps import MARK_COLOURS, case_map_figure
from sgpmil.report.pages.case_patches import CasePatch, PatchGroup
from sgpmil.report.pages.case_report import CaseReports

from .reported_run import SIDE


def test_a_patch_of_several_groups_has_one_frame_with_all_its_marks(run_material):
    twice, once = (64, 128), (192, 0)
    groups = (
        PatchGroup("for", "For", (CasePatch("F1", 9, twice, "1"),)),
        PatchGroup(
            "unsure", "Unsure", (CasePatch("U1", 3, once, "1"), CasePatch("U2", 9, twice, "1"))
        ),
    )
    case = replace(CaseReports(run_material).of("f0 s00"), patches=groups)
    slide = case_map_figure(case).axes[0]
    marks = {text.get_text(): text.get_position() for text in slide.texts}
    middle = SIDE / 2
    assert marks["F1 U2"] == (twice[0] + middle, twice[1] + middle)
    assert marks["U1"] == (once[0] + middle, once[1] + middle)
    assert not {"F1", "U2"} & set(marks)
    frames = [
        (patch.get_xy(), to_hex(patch.get_edgecolor()))
        for patch in slide.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_edgecolor()) != "#ffffff"
    ]
    assert sorted(frames) == [
        (twice, MARK_COLOURS["for"]),
        (once, MARK_COLOURS["unsure"].lower()),
    ]
