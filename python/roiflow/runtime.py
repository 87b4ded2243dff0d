"""The names of the package under the path `roiflow.runtime`, because older programs import `Core` from `openvino.runtime`."""

from roiflow import *  # noqa: F403
from roiflow import __all__ as __all__
