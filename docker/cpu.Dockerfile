# mysglang on a machine without a GPU. From the top of the repository:
#   docker build -f docker/cpu.Dockerfile -t mysglang:cpu [--build-arg TORCH_INDEX=URL] .
#   docker run --init -p 127.0.0.1:30000:30000 mysglang:cpu [--model-path ...]
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home mysglang
WORKDIR /opt/mysglang
RUN chown mysglang:mysglang .
USER mysglang

# TORCH_INDEX: an index that has torch's CPU build, where neither pip's own nor PyTorch's can be reached.
ARG TORCH_INDEX=
COPY --chown=mysglang pyproject.toml setup.py README.md LICENSE ./
COPY --chown=mysglang constraints constraints
COPY --chown=mysglang scripts scripts
COPY --chown=mysglang python python
COPY --chown=mysglang sgl-kernel sgl-kernel
RUN PLATFORM=cpu EXTRAS= TORCH_INDEX="$TORCH_INDEX" PIP_NO_CACHE_DIR=1 scripts/setup
# For every processor that the image may come to.
RUN .venv/bin/python -m mysgl_kernel.cpu.build --arch all

EXPOSE 30000
HEALTHCHECK --start-period=120s --interval=10s --timeout=5s \
    CMD [".venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT [".venv/bin/python", "-m", "mysglang.launch_server", "--host", "0.0.0.0"]
