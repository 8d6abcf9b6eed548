"""GemmRates: the limits of a matrix product on one kind of GPU, and the speed of cuBLAS there. Figures, no arithmetic.

A device without measured figures is planned with those of an H200: its plans are valid there and compute the
same sums, but need not be the quickest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRates:
    """Microseconds, and bytes or operations of a microsecond."""

    measured_on: str
    """The vendor's name of the device that the figures were fitted on, or a part of it."""
    read: float
    """Bytes of a weight that come out of memory."""
    fill: float
    """Bytes that fill the stages of one processor from the cache."""
    stage: float
    """Microseconds that a stage takes at least, however many are under way."""
    latency: float
    """Microseconds until a stage has come, shared by those under way."""
    multiply: float
    """Columns of 64 rows and one stage's depth that one processor multiplies."""
    overlap: float
    """Exponent of the norm by which what happens side by side adds up: the larger, the less the quicker parts show."""
    start: float
    """Microseconds of a launch whose blocks have one warpgroup."""
    start_group: float
    """Additional microseconds for each further warpgroup."""
    start_pair: float
    """Additional microseconds if two blocks share their work."""
    start_shared: float
    """Less where blocks of two kernels share a processor."""
    tile_end: float
    """Microseconds for 128 results of a thread group at the end of a tile."""
    sums: float
    """Microseconds of adding up over a cluster, without what grows with it."""
    sums_block: float
    """Additional microseconds for each block of the cluster."""
    sums_byte: float
    """Additional microseconds for each byte of partial sums."""
    cublas_start: float
    cublas_inputs: float
    """Microseconds more for 1,024 inputs, up to 3,072 of them."""
    cublas_read: float
    cublas_multiply: float
    """Operations of the tensor cores."""
    cublas_share: float
    """Share of the multiplication time that is not hidden behind reading."""
    cublas_overlap: float
    cublas_streams: float
    """Factor of reading and multiplying."""
    cublas_many: float
    """Operations at the clocks that are left to the tensor cores after some time."""
    gate_start: float
    gate_bytes: float
    """Bytes that the kernel for a gate reads and writes."""


H200 = GemmRates(
    measured_on="H200",
    read=4.33e6,
    fill=1.49e5,
    stage=0.123,
    latency=1.32,
    multiply=1715,
    overlap=3.16,
    start=1.64,
    start_group=0.45,
    start_pair=0.22,
    start_shared=0.15,
    tile_end=0.0146,
    sums=0.07,
    sums_block=0.16,
    sums_byte=4.2e-5,
    cublas_start=1.84,
    cublas_inputs=1.32,
    cublas_read=4.6e6,
    cublas_multiply=8e8,
    cublas_share=0.865,
    cublas_overlap=2.23,
    cublas_streams=1.118,
    cublas_many=6.7e8,
    gate_start=1.4,
    gate_bytes=4.3e6,
)
"""Fitted to 2,500 timings: twenty weights of five models, 1 to 256 rows."""

MEASURED = (H200,)


def rates_for(device_name: str) -> GemmRates:
    """Returns the rates that were measured on such a device, or an H200's."""
    return next((rates for rates in MEASURED if rates.measured_on in device_name), H200)
