# mysglang on an NVIDIA GPU (a driver for CUDA 13 and the NVIDIA container toolkit on the host). From the top of the repository:
#   docker build -f docker/cuda.Dockerfile -t mysglang:cuda .
#   docker run --gpus all --ipc=host -p 127.0.0.1:30000:30000 -v /srv/models:/models:ro \
#     -v mysglang-kernels:/home/mysglang/.cache mysglang:cuda --model-path /models/...
# The devel image, because FlashInfer and mysglang compile the kernels that a model needs at its first start; the second volume keeps them.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mysglang \
    && install -d -o mysglang -g mysglang /home/mysglang/.cache /opt/mysglang
WORKDIR /opt/mysglang
USER 10001

COPY --chown=10001 pyproject.toml setup.py README.md LICENSE ./
COPY --chown=10001 constraints constraints
COPY --chown=10001 scripts scripts
COPY --chown=10001 python python
COPY --chown=10001 sgl-kernel sgl-kernel
# No GPU is visible while an image is built, so the platform and the architecture are given.
RUN PLATFORM=cuda EXTRAS="" PIP_NO_CACHE_DIR=1 scripts/setup \
    && .venv/bin/python -m mysgl_kernel.build --arch 90a

EXPOSE 30000
# The server answers /ready with 200 once it takes requests.
HEALTHCHECK --start-period=600s --interval=10s --timeout=5s \
    CMD [".venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/ready', timeout=4)"]
# tini passes signals on, and reaps what a killed process leaves behind.
ENTRYPOINT ["/usr/bin/tini", "--", ".venv/bin/python", "-m", "mysglang.launch_server", "--host", "0.0.0.0"]
