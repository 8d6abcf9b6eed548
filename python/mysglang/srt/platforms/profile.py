"""DeviceProfile: figures of one kind of device that decide how steps are run, and never what they compute.

The kernels' package has a table of its own for matrix products, `mysgl_kernel/gemm_rates.py`, by the same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The figures of one kind of device."""

    measured_on: str
    """The vendor's name of the device that they were measured on, or a part of it."""
    layer_products: int
    """Multiplications with additions that the device does while the host queues one layer's kernels: what decides how
    long a step must be not to need a graph."""


HOST = DeviceProfile(measured_on="host", layer_products=0)
"""A device that executes each operation at once, so nothing is queued."""

H200 = DeviceProfile(measured_on="H200", layer_products=200_000_000_000)
"""Queueing a layer takes the host 0.45 ms and more."""

MEASURED = (H200,)


def profile_of(device_name: str) -> DeviceProfile:
    """The figures that were measured on such a device; else an H200's."""
    return next((profile for profile in MEASURED if profile.measured_on in device_name), H200)


def described(profile: DeviceProfile, device_name: str) -> str:
    """Name of the device whose figures are used, for `/server_info`."""
    if profile is HOST or profile.measured_on in device_name:
        return profile.measured_on
    return f"{profile.measured_on} (nothing was measured on this device)"
