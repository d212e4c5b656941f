import json
import subprocess
import sys

import pytest

import sgpmil

HEAVY = (
    "lightning",
    "lightning_fabric",
    "matplotlib",
    "openslide",
    "pandas",
    "sklearn",
    "gpytorch",
    "scipy",
    "h5py",
    "pyarrow",
)


def modules_after(code):
    code = f"import sys\n{code}\nimport json; print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(found.stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_heavy_library():
    loaded = modules_after("import sgpmil")
    assert "sgpmil" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_importing_settings_and_bags_loads_no_heavy_library():
    loaded = modules_after("import sgpmil; sgpmil.TrainingSettings; sgpmil.BagDataset; dir(sgpmil)")
    assert {"torch", "sgpmil.bags.dataset", "sgpmil.training.settings"} <= loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_check_would_see_a_heavy_library():
    assert "h5py" in modules_after("import sgpmil, h5py")


@pytest.mark.parametrize("name", sgpmil.__all__)
def test_every_public_name_resolves_to_the_thing_of_that_name(name):
    value = getattr(sgpmil, name)
    assert value.__name__ == name
    assert value.__module__.startswith("sgpmil.")
    assert value.__doc__


def test_the_names_others_rely_on_are_there():
    promised = {
        "build_model",
        "list_models",
        "read_bags",
        "cross_validate",
        "fit",
        "predict",
        "evaluate",
        "SGPMILClassifier",
    }
    assert promised <= set(sgpmil.__all__)
    assert len(sgpmil.__all__) == len(set(sgpmil.__all__))
    assert set(sgpmil.__all__) <= set(dir(sgpmil))


def test_rooms_are_reached_from_the_package():
    for room in ("bags", "evaluation", "gp", "models", "training"):
        assert getattr(sgpmil, room).__name__ == f"sgpmil.{room}"
    assert callable(sgpmil.models.import_released)
    assert callable(sgpmil.evaluation.adaptive_calibration_error)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'sgpmil' has no attribute 'fitt'"):
        _ = sgpmil.fitt


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert sgpmil.__version__ == version("sgpmil")
