"""DeviceProfile: figures of one kind of device that decide how steps are run, and never what they compute.

The kernels' package has a table of its own for matrix products, `mysgl_kernel/gemm_rates.py`, by the same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Rates that a device reaches in the steps of a model."""

    products: float
    """Multiplications with additions, in sixteen bits."""
    bytes_read: float
    layer_s: float
    """Seconds in which the kernels of one layer begin and end, besides what they compute and read."""
    layer_queued_s: float
    """Seconds in which the host queues the kernels of one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The figures of one kind of device."""

    measured_on: str
    """The vendor's name of the device that they were measured on, or a part of it."""
    layer_products: int
    """Multiplications with additions that the device does while the host queues one layer's kernels: what decides how
    long a step must be not to need a graph."""
    rates: DeviceRates | None
    """How fast it works; None: that depends on the machine, and was not measured."""


HOST = DeviceProfile(measured_on="host", layer_products=0, rates=None)
"""A device that executes each operation at once, so nothing is queued."""

H200 = DeviceProfile(
    measured_on="H200",
    layer_products=200_000_000_000,
    rates=DeviceRates(products=3.2e14, bytes_read=4.4e12, layer_s=33e-6, layer_queued_s=0.8e-3),
)
"""Queueing a layer takes the host 0.45 ms at best, and 0.5 to 1.2 ms in most steps of 2026-11-23. Steps of Llama-8B
with 512 to 8,192 tokens took 22 to 23 us a token, which is 7.0e9 products. One row decoded in 3.6 ms, in which 16 GB of
weights are read. Beside 256 rows of 860 tokens, reading a token's 131 kB of keys and values took 29 ns. A
captured prompt of 128 tokens took 1.0 ms more than its weights (benchmark/serving/README.md).
"""

MEASURED = (H200,)


def profile_of(device_name: str) -> DeviceProfile:
    """Returns the figures that were measured on such a device; else an H200's."""
    return next((profile for profile in MEASURED if profile.measured_on in device_name), H200)


def described(profile: DeviceProfile, device_name: str) -> str:
    """Returns the name of the device whose figures are used, for `/server_info`."""
    if profile is HOST or profile.measured_on in device_name:
        return profile.measured_on
    return f"{profile.measured_on} (nothing was measured on this device)"
