"""The files for deployments say what their pages say: flags exist, probes and timeouts fit, images run unprivileged."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mysglang.srt.args.cli import parse

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE = ROOT / "docker" / "compose.yaml"
KUBERNETES = ROOT / "examples" / "deployment" / "kubernetes.yaml"
UNIT = ROOT / "examples" / "deployment" / "mysglang.service"
PORT = 30000


def load(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's spec, and its one container."""
    deployment, _ = load(KUBERNETES)
    pod = deployment["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return pod, only


def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


def entrypoint(dockerfile: Path) -> list[str]:
    found = re.findall(r"^ENTRYPOINT (\[.*\])$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    (words,) = found
    return list(yaml.safe_load(words))


def flags_of(command: list[str]) -> dict[str, Any]:
    """The server's options in a command that starts it; raises for a flag that it does not have."""
    return parse(command[command.index("mysglang.launch_server") + 1 :])


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_the_server_unprivileged_and_checks_its_health(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users and users[-1] == "10001"
    assert re.search(rf"^HEALTHCHECK .*\\\n.*127\.0\.0\.1:{PORT}/ready", text, re.MULTILINE)
    assert flags_of(entrypoint(dockerfile)) == {"host": "0.0.0.0"}
    assert all("--no-install-recommends" in line for line in text.splitlines() if "apt-get install" in line)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert all(":" in base and not base.endswith(":latest") for base in bases)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_exists_and_reaches_the_build(dockerfile: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() for source in sources), line
        assert set(sources) <= kept, "each source needs a line in .dockerignore"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_no_complaint(dockerfile: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(dockerfile)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_starts_a_server_that_prometheus_finds() -> None:
    (compose,) = load(COMPOSE)
    server = compose["services"]["mysglang"]
    folder = COMPOSE.parent
    assert (folder / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    given = parse(server["command"])
    assert given["enable_metrics"] and float(server["stop_grace_period"].rstrip("s")) > given["drain_timeout"]
    mounts = [volume for service in compose["services"].values() for volume in service.get("volumes", [])]
    assert mounts and all((folder / mount.split(":")[0]).exists() for mount in mounts)
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    (prometheus,) = load(folder / "prometheus.yaml")
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"mysglang:{PORT}"]}]


def test_the_pod_drains_before_it_is_killed() -> None:
    pod, server = container()
    given = parse(server["args"])
    assert given["api_key_file"] and given["enable_metrics"]
    before = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before + given["drain_timeout"]


def test_the_pod_is_probed_where_the_server_answers() -> None:
    pod, server = container()
    (port,) = server["ports"]
    assert port["containerPort"] == PORT
    paths = {kind: server[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: get["path"] for kind, get in paths.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/health",
    }
    assert {get["port"] for get in paths.values()} == {port["name"]}
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert {mount["name"] for mount in server["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_service_reaches_the_pod() -> None:
    deployment, service = load(KUBERNETES)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_the_unit_drains_before_it_is_killed() -> None:
    settings = unit()
    given = flags_of(shlex.split(settings["ExecStart"]))
    assert given["api_key_file"] == "%d/keys" and settings["LoadCredential"].startswith("keys:")
    assert float(settings["TimeoutStopSec"]) > given["drain_timeout"]
    assert settings["RestartPreventExitStatus"] == "2" and settings["SuccessExitStatus"] == "5"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # The program of the unit is on no test machine: systemd must find some program to have no complaint.
    there = UNIT.read_text(encoding="utf-8").replace("/opt/mysglang/.venv/bin/python", "/bin/true")
    copy = tmp_path / UNIT.name
    copy.write_text(there, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0 and UNIT.name not in done.stderr, done.stderr
