"""Kernels for the CPU: bfloat16, on torch's own threads. Each module wraps one source of csrc/cpu."""
