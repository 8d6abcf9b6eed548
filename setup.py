"""What pyproject.toml cannot say: the kernels and their sources, which are in sgl-kernel/, go into the same wheel."""

from setuptools import find_packages, setup

KERNELS = {
    "mysgl_kernel": "sgl-kernel/python/mysgl_kernel",
    "mysgl_kernel.cpu": "sgl-kernel/python/mysgl_kernel/cpu",
    # Sources are beside the Python package in the repository and inside it in an installation.
    "mysgl_kernel.csrc": "sgl-kernel/csrc",
    "mysgl_kernel.include": "sgl-kernel/include",
    "mysgl_kernel.lib": "sgl-kernel/lib",
}

setup(packages=[*find_packages("python"), *KERNELS], package_dir={"": "python", **KERNELS})
