"""The package under the path that older programs for OpenVINO import: `from roiflow.runtime import Core`."""

from roiflow import *  # noqa: F403
from roiflow import __all__ as __all__
