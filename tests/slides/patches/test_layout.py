import pickle
from pathlib import Path

import pytest

from sgpmil.slides.patches import ExtractionFolder, PatchSettings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (PatchSettings(), "20x_256px_0px_overlap"),
        (PatchSettings(magnification=2.5), "2.5x_256px_0px_overlap"),
        (PatchSettings(magnification=1.25, size=224, overlap=32), "1.25x_224px_32px_overlap"),
        (PatchSettings(magnification=40.0, size=512), "40x_512px_0px_overlap"),
        (PatchSettings(magnification=None, mpp=0.5), "0.5mpp_256px_0px_overlap"),
        (PatchSettings(magnification=None, mpp=1.0), "1mpp_256px_0px_overlap"),
    ],
)
def test_names_of_the_patches_folder(settings, name):
    assert ExtractionFolder.of("job", settings).patches_folder == Path("job") / name


@pytest.mark.parametrize("slide", ["a", "TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF", "Präparat 1.2 (b)"])
def test_where_the_files_of_a_slide_are(slide):
    folder = ExtractionFolder.of("job", PatchSettings())
    files = {
        "contours_geojson/{}.geojson": folder.contours(slide),
        "contours/{}.png": folder.preview(slide),
        "thumbnails/{}.jpg": folder.thumbnail(slide),
        "20x_256px_0px_overlap/patches/{}_patches.h5": folder.coords(slide),
        "20x_256px_0px_overlap/features_uni_v1/{}.h5": folder.features("uni_v1", slide),
    }
    for expected, found in files.items():
        assert found == Path("job") / expected.format(slide)
    assert folder.contours(slide).parent == folder.contours_folder
    assert folder.preview(slide).parent == folder.previews_folder
    assert folder.coords(slide).parent == folder.coords_folder
    assert folder.features("uni_v1", slide).parent == folder.features_folder("uni_v1")


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ("h0-mini", "features_h0-mini"),
        ("hf-hub:MahmoodLab/UNI", "features_hf-hub-MahmoodLab-UNI"),
        ("../../elsewhere", "features_..-..-elsewhere"),
        ("resnet50.a1_in1k", "features_resnet50.a1_in1k"),
    ],
)
def test_an_encoder_of_any_name_has_one_folder(encoder, name):
    folder = ExtractionFolder.of("job", PatchSettings())
    assert folder.features_folder(encoder) == folder.patches_folder / name


def test_travels_to_other_processes():
    folder = ExtractionFolder.of("job", PatchSettings())
    assert pickle.loads(pickle.dumps(folder)) == folder  # noqa: S301
