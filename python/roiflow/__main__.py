"""`python -m roiflow` lists the devices of this machine."""

from roiflow import Core, get_version


def main() -> None:
    """Print the version and the devices."""
    core = Core()
    print(f"roiflow {get_version()}")
    for device in core.available_devices:
        print(f"{device}: {core.get_property(device, 'FULL_DEVICE_NAME')}")


if __name__ == "__main__":
    main()
