"""Kernels for the CPU in bfloat16, each module of which wraps one source of csrc/cpu, and recordings of their calls."""
