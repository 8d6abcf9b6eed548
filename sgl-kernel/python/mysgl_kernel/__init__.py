"""CUDA kernels of mysglang. One module per source, each a thin wrapper; `library` compiles and loads.

Not called `sgl_kernel`: SGLang's own kernel wheel is, and both may be installed side by side. Imports nothing of
mysglang, and importing this package compiles nothing.
"""
