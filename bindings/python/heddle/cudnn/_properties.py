"""What is known of a GPU without it: the frontend's device properties."""

import ctypes
import json

from heddle import _checks
from heddle.cudnn._handle import missing_gpu

# CUdevice_attribute of the driver's interface.
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


class DeviceProperties:
    """A GPU's SM version (90) and its number of multiprocessors."""

    def __init__(self, sm_version: int, sm_count: int) -> None:
        self.sm_version, self.sm_count = sm_version, sm_count

    def __repr__(self):
        return f"<cudnn device properties of SM {self.sm_version}, {self.sm_count} multiprocessors>"

    def serialize(self) -> str:
        """As text, for create_device_properties on another machine."""
        return json.dumps({"sm_version": self.sm_version, "sm_count": self.sm_count})


def create_device_properties(device: int | str) -> DeviceProperties:
    """Of the GPU with this number, or of the text that `serialize` gave. Raises RuntimeError where there is no such GPU."""
    if isinstance(device, (str, bytes)):
        try:
            form = json.loads(device)
            return DeviceProperties(_checks.whole("sm_version", form["sm_version"]), _checks.whole("sm_count", form["sm_count"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError("The text is that of no device properties, expected what serialize gave.") from None
    ordinal = _checks.whole("device", device)
    if not 0 <= ordinal < 2**31:
        raise ValueError(f"device is {ordinal}, expected a GPU's number, from 0.")
    if missing_gpu():
        raise RuntimeError(f"There is no NVIDIA GPU whose properties could be asked: {missing_gpu()}.")
    driver, number, values = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
    if driver.cuDeviceGet(ctypes.byref(number), ctypes.c_int(ordinal)):
        raise ValueError(f"There is no GPU number {ordinal}.")
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, number)
        values.append(value.value)
    return DeviceProperties(10 * values[0] + values[1], values[2])
