import sgpmil
import sgpmil.models as room
from sgpmil.models import checkpoint, registry, released


def test_the_room_exports_the_objects_of_its_files():
    assert room.build_model is registry.build_model
    assert room.load_model is checkpoint.load_model
    assert room.import_released is released.import_released
    assert all(hasattr(room, name) for name in room.__all__)


def test_the_package_exports_the_rooms_objects():
    assert sgpmil.build_model is room.build_model
    assert sgpmil.list_models is room.list_models
    assert sgpmil.load_model is room.load_model
    assert sgpmil.MILModel is room.MILModel
