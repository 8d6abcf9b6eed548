# mysglang on a machine without a GPU. From the top of the repository:
#   docker build -f docker/cpu.Dockerfile -t mysglang:cpu [--build-arg TORCH_INDEX=URL] .
#   docker run -p 127.0.0.1:30000:30000 mysglang:cpu [--model-path ...]
FROM python:3.11-slim-bookworm AS build

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# TORCH_INDEX: an index that has torch's CPU build, where neither pip's own nor PyTorch's can be reached.
ARG TORCH_INDEX=
WORKDIR /opt/mysglang
COPY pyproject.toml setup.py README.md LICENSE ./
COPY constraints constraints
COPY scripts scripts
COPY python python
COPY sgl-kernel sgl-kernel
# The kernels are compiled for every processor on which the image may run.
RUN PLATFORM=cpu EXTRAS="" TORCH_INDEX="$TORCH_INDEX" PIP_NO_CACHE_DIR=1 scripts/setup \
    && .venv/bin/python -m mysgl_kernel.cpu.build --arch all

# The final image has no compiler.
FROM python:3.11-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mysglang
COPY --from=build /opt/mysglang /opt/mysglang
WORKDIR /opt/mysglang
USER 10001

EXPOSE 30000
# The server answers /ready with 200 once it takes requests.
HEALTHCHECK --start-period=120s --interval=10s --timeout=5s \
    CMD [".venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/ready', timeout=4)"]
# tini passes signals on, and reaps what a killed process leaves behind.
ENTRYPOINT ["/usr/bin/tini", "--", ".venv/bin/python", "-m", "mysglang.launch_server", "--host", "0.0.0.0"]
