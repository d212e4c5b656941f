# timm imports torchvision, which may need mending first.
from sgpmil.torchvision_import import mend_torchvision

mend_torchvision()
