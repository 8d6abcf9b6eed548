# mysglang on an NVIDIA GPU (a driver for CUDA 13 and the NVIDIA container toolkit on the host). From the top of the repository:
#   docker build -f docker/cuda.Dockerfile -t mysglang:cuda .
#   docker run --init --gpus all --ipc=host -p 127.0.0.1:30000:30000 -v /srv/models:/models:ro \
#     -v mysglang-kernels:/home/mysglang/.cache mysglang:cuda --model-path /models/...
# The devel image, because FlashInfer and mysglang compile the kernels that a model needs at its first start; the second volume keeps them.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home mysglang \
    && install -d -o mysglang -g mysglang /home/mysglang/.cache
WORKDIR /opt/mysglang
RUN chown mysglang:mysglang .
USER mysglang

COPY --chown=mysglang pyproject.toml setup.py README.md LICENSE ./
COPY --chown=mysglang constraints constraints
COPY --chown=mysglang scripts scripts
COPY --chown=mysglang python python
COPY --chown=mysglang sgl-kernel sgl-kernel
# No GPU is visible while an image is built, so the platform is said.
RUN PLATFORM=cuda EXTRAS= PIP_NO_CACHE_DIR=1 scripts/setup
RUN .venv/bin/python -m mysgl_kernel.build --arch 90a

EXPOSE 30000
HEALTHCHECK --start-period=600s --interval=10s --timeout=5s \
    CMD [".venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT [".venv/bin/python", "-m", "mysglang.launch_server", "--host", "0.0.0.0"]
