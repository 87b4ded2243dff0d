"""`python -m roiflow` lists the devices of this machine. With arguments, it is the command: `python -m roiflow run ...`."""

import os
import signal
import sys

from roiflow import Core, get_version
from roiflow._pipeline import PipelineError, find_command


def main() -> None:
    """Print the version and the devices. With arguments, replace this process by the command `roiflow`."""
    if len(sys.argv) > 1:
        try:
            command = find_command()
            # Python ignores SIGPIPE, and the command would inherit this setting.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            # The command replaces this process, so it gets the signals and sets the exit code.
            os.execv(command, [command, *sys.argv[1:]])
        except (PipelineError, OSError) as error:
            sys.exit(f"error: {error}")
    core = Core()
    print(f"roiflow {get_version()}")
    for device in core.available_devices:
        print(f"{device}: {core.get_property(device, 'FULL_DEVICE_NAME')}")


if __name__ == "__main__":
    main()
