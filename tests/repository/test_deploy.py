"""What lies in `deploy/` is what the programs understand: units, compose file, image and the configuration of NATS. No
container is started here, and no unit; the cluster is, from the file as it is shipped."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from pyoco_server import config
from pyoco_server.doors.cli.admin import cli as admin
from pyoco_server.doors.cli.keeper import cli as keeper
from pyoco_server.doors.cli.server import cli as server
from pyoco_server.doors.cli.worker import cli as worker
from pyoco_server.ports.nats.permissions import Role, inbox_prefix

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DEV: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.dev.yaml").read_text())
PRICED_COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.priced.yaml").read_text())
PRICED: dict[str, dict[str, Any]] = PRICED_COMPOSE["services"]
OURS_PRICED = [name for name, service in PRICED.items() if service["image"] == "pyoco-server"]
NATS_SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"
COMMANDS: dict[str, click.Command] = {
    "pyoco-server": server,
    "pyoco-worker": worker,
    "pyoco-keeper": keeper,
    "pyoco-server-admin": admin,
}
KNOWN = {each.variable for kind in config._DECLARED for each in config.settings(kind)}
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "KillMode": "mixed",
    "Restart": "always",
    "CapabilityBoundingSet": "",
}


def of_unit(path: Path) -> dict[str, list[str]]:
    """Every value of every key: a unit may have a key several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def check_command(words: list[str]) -> None:
    """Every option is one that the program has."""
    program, *rest = words
    if program == "nats-server":
        helped = subprocess.run([NATS_SERVER, "--help"], capture_output=True, text=True, check=True)
        assert all(word in helped.stdout for word in rest if word.startswith("-")), rest
        return
    command = COMMANDS[program]
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    command.make_context(program, rest, resilient_parsing=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
class TestUnits:
    def test_starts_a_program_with_options_that_it_has(self, unit: Path) -> None:
        path, *rest = shlex.split(of_unit(unit)["ExecStart"][0].replace("%l", "host"))
        assert path.startswith("/opt/pyoco/.venv/bin/")
        check_command([Path(path).name, *rest])

    def test_has_no_more_rights_than_it_needs(self, unit: Path) -> None:
        found = of_unit(unit)
        assert {key: found[key] for key in HARDENED} == {key: [value] for key, value in HARDENED.items()}
        assert found["User"] not in ([], ["root"])

    def test_is_the_user_of_its_role_with_a_password_that_only_it_sees(self, unit: Path) -> None:
        found = of_unit(unit)
        if "nats" in unit.stem:
            return
        role = unit.stem.removeprefix("pyoco-")
        variables = dict(line.split("=", 1) for line in found["Environment"])
        assert set(variables) <= KNOWN | {"PYTHONPATH"}
        assert variables["PYOCO_NATS_USER"] == role
        assert variables["PYOCO_NATS_INBOX_PREFIX"] == inbox_prefix(Role(role))
        assert variables["PYOCO_NATS_PASSWORD_FILE"] == "%d/nats-password"
        assert found["LoadCredential"] == [f"nats-password:/etc/pyoco/secrets/{role}.password"]
        assert variables["PYOCO_DATA_DIR"] == f"/var/lib/{found['StateDirectory'][0]}"
        drain = float(variables.get("PYOCO_DRAIN_TIMEOUT_SEC", 0))
        assert int(found["TimeoutStopSec"][0]) >= drain + 30

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="a machine without systemd")
    def test_is_a_unit_that_systemd_understands(self, unit: Path, tmp_path: Path) -> None:
        """With a program in the place of ours, which is not installed there."""
        copy = tmp_path / unit.name
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE))
        done = subprocess.run(
            ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_examples_of_settings_are_settings() -> None:
    for path in DEPLOY.glob("systemd/*.env.example"):
        names = [line.partition("=")[0] for line in path.read_text().splitlines() if line]
        assert set(names) <= KNOWN, path.name


@pytest.mark.parametrize("name", SERVICES)
class TestCompose:
    def test_starts_a_program_with_options_that_it_has(self, name: str) -> None:
        check_command(list(SERVICES[name]["command"]))

    def test_has_settings_and_secrets_that_are_there(self, name: str) -> None:
        service = SERVICES[name]
        variables: dict[str, str] = service["environment"]
        assert set(variables) <= KNOWN | {"NODE_NAME", "ROUTES", "PYTHONPATH"}
        secrets = service.get("secrets", [])
        assert set(secrets) <= set(COMPOSE["secrets"])
        role = variables.get("PYOCO_NATS_USER")
        if role is not None:
            assert variables["PYOCO_NATS_INBOX_PREFIX"] == inbox_prefix(Role(role))
            assert variables["PYOCO_NATS_PASSWORD_FILE"] == f"/run/secrets/{role}"
            assert set(secrets) == {"ca", role}

    def test_is_watched_and_comes_after_what_it_needs(self, name: str) -> None:
        service = SERVICES[name]
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert "healthcheck" in service or service["restart"] == "no"
        drain = float(service["environment"].get("PYOCO_DRAIN_TIMEOUT_SEC", 0))
        assert float(service.get("stop_grace_period", "10s").removesuffix("s")) >= drain


def _mounted(service: dict[str, Any]) -> dict[str, str]:
    """Place in the container, and what of the host is there. Volumes have no path of the host."""
    configs = {each["target"]: COMPOSE["configs"][each["source"]]["file"] for each in service.get("configs", [])}
    secrets = {f"/run/secrets/{name}": COMPOSE["secrets"][name]["file"] for name in service.get("secrets", [])}
    volumes = dict(reversed(each.split(":")[:2]) for each in service.get("volumes", []))
    return configs | secrets | volumes


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_finds_what_it_is_told_to_read(name: str) -> None:
    """Each place can be made, and what lies there comes from us or is made by the guide's commands."""
    mounted = _mounted(SERVICES[name])
    for place in mounted:
        above = [other for other in mounted if place != other and Path(place).is_relative_to(other)]
        assert not above, f"{place} cannot be made in {above}"
    files = [source for source in mounted.values() if source.startswith(".")] + SERVICES[name].get("env_file", [])
    guide = (ROOT / "docs" / "guides" / "three-machines.md").read_text()
    (section,) = re.findall(r"## On one machine, in containers\n(.*?)\n## ", guide, re.DOTALL)
    made = set(re.findall(r"> ([\w.]+)$", section, re.MULTILINE)) | {"tls/ca.crt"}
    (nodes,) = re.findall(r"make-certificates\.sh tls (.*)", section)
    (roles,) = re.findall(r"for role in (.*);", section)
    made |= {f"tls/{node}" for node in nodes.split()} | {f"{role}.password" for role in roles.split()}
    for file in files:
        assert file.removeprefix("./private/") in made or (DEPLOY / file).exists(), file


def test_workers_of_a_deployment_find_the_operators_flows() -> None:
    """Units and containers name a resolver, and the folder it comes from is on the module path."""
    (dev,) = DEV["services"].values()
    for service in (dev, SERVICES["worker-1"], SERVICES["worker-2"]):
        variables = service["environment"]
        folder = next(source for source, place in map(_source_and_place, service["volumes"]) if place == "/srv/flows")
        assert variables["PYTHONPATH"] == "/srv/flows"
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                f"from {variables['PYOCO_FLOW_RESOLVER'].replace(':', ' import ')} as r; r('hello')",
            ],
            env={**os.environ, "PYTHONPATH": str(DEPLOY / folder)},
            capture_output=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
    unit = of_unit(DEPLOY / "systemd" / "pyoco-worker.service")
    assert "PYTHONPATH=/opt/pyoco/flows" in unit["Environment"]
    assert "PYOCO_FLOW_RESOLVER=" in (DEPLOY / "systemd" / "worker.env.example").read_text()


def _source_and_place(volume: str) -> tuple[str, str]:
    source, place = volume.split(":")[:2]
    return source, place


def test_the_container_for_development_is_open_to_this_machine_alone() -> None:
    (service,) = DEV["services"].values()
    check_command(list(service["command"]))
    assert set(service["environment"]) <= KNOWN | {"PYTHONPATH"}
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["environment"]["PYOCO_HTTP_HOSTS"] == "localhost"


class TestPricedCompose:
    """`compose.priced.yaml`: everything that priced runs need, on one machine."""

    @pytest.mark.parametrize("name", OURS_PRICED)
    def test_starts_a_program_with_options_that_it_has(self, name: str) -> None:
        command = [str(word) for word in PRICED[name]["command"]]
        commands = [command]
        if command[0] == "sh":
            script = DEPLOY / Path(command[1]).name
            subprocess.run(["sh", "-n", script], check=True)
            lines = re.findall(r"^ *(pyoco-server-admin [^>\n]+)", script.read_text(), re.MULTILINE)
            assert len(lines) == 2
            commands = [shlex.split(line) for line in lines]
        for each in commands:
            check_command(each)

    @pytest.mark.parametrize("name", sorted(set(OURS_PRICED) - {"nats"}))
    def test_has_settings_that_there_are_and_the_same_stores(self, name: str) -> None:
        variables = PRICED[name]["environment"]
        foreign = {"PGPASSWORD", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
        assert set(variables) <= KNOWN | foreign
        shared = PRICED_COMPOSE["x-settings"]
        assert {key: variables[key] for key in shared} == shared
        own = {key: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for key, value in variables.items()}
        settings, aws = config.priced_from_env({"PYOCO_LOAD_DOTENV": "0", **own})
        assert (settings.is_split, settings.pack_queue_url, settings.results_url) == (
            True,
            "sqs://dpp-runs",
            "s3://dpp-results",
        )
        assert aws.endpoint_url == "http://127.0.0.1:5000"
        assert PRICED[name]["network_mode"] == "service:aws", "there that address leads to the emulator"

    def test_an_address_leads_to_a_service_and_its_port(self) -> None:
        shared = PRICED_COMPOSE["x-settings"]
        hosts = {name: urlsplit(shared[name]) for name in ("PYOCO_NATS_URL", "PYOCO_LEDGER_URL", "PYOCO_BUDGET_URL")}
        assert {each.hostname for each in hosts.values()} <= set(PRICED)
        emulator, address = PRICED["aws"], urlsplit(shared["AWS_ENDPOINT_URL"])
        assert f"{address.hostname}:{address.port}:{address.port}" in emulator["ports"]
        assert PRICED["postgres"]["environment"]["POSTGRES_PASSWORD"] == shared["PGPASSWORD"]
        assert urlsplit(shared["PYOCO_LEDGER_URL"]).username == PRICED["postgres"]["environment"]["POSTGRES_USER"]

    @pytest.mark.parametrize("name", PRICED)
    def test_is_watched_comes_after_what_it_needs_and_is_open_to_this_machine_alone(self, name: str) -> None:
        service = PRICED[name]
        assert set(service.get("depends_on", {})) <= set(PRICED)
        assert "healthcheck" in service or service["restart"] == "no"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        volumes = {each.partition(":")[0] for each in service.get("volumes", [])}
        assert volumes <= set(PRICED_COMPOSE["volumes"])
        for each in service.get("configs", []):
            assert (DEPLOY / PRICED_COMPOSE["configs"][each["source"]]["file"]).is_file()

    def test_redis_keeps_budgets_and_the_emulator_is_the_one_of_the_tests(self) -> None:
        """PRICED-42"""
        assert PRICED["valkey"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
        (version,) = re.findall(r"^moto==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
        assert PRICED["aws"]["image"] == f"motoserver/moto:{version}"


def test_nodes_are_called_by_the_names_in_their_certificates() -> None:
    nodes = {name for name, service in SERVICES.items() if service["command"][0] == "nats-server"}
    for name in nodes:
        service = SERVICES[name]
        assert service["environment"]["NODE_NAME"] == name
        assert _mounted(service)["/etc/nats/tls"] == f"./private/tls/{name}"
        assert set(re.findall(r"//([\w-]+):6222", service["environment"]["ROUTES"])) == nodes
        configured = re.findall(r'"(/etc/nats/[^"]+)"', (DEPLOY / "nats" / "nats.conf").read_text())
        assert {str(Path(path).parent) for path in configured} == {"/etc/nats/tls"}
    for name in SERVICES.keys() - nodes:
        assert set(re.findall(r"//([\w-]+):4222", SERVICES[name]["environment"]["PYOCO_NATS_URL"])) == nodes
    assert "deploy/private/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_image_is_made_of_what_is_here() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if re.match(r"COPY [^-]", line) for word in line.split()[1:-1]]
    assert copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    locked = (ROOT / "requirements" / "runtime.txt").read_text().lower().replace("_", "-")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split(r"[<>=\[; ]", each)[0].lower() for each in needed]
    assert [name for name in names if f"{name}==" not in locked] == []
    tested = (ROOT / "requirements" / "dev.txt").read_text()  # the same versions, the same files
    for file, packages in {
        "postgres.txt": ("psycopg-binary",),
        "stores.txt": ("redis", "hiredis", "aiobotocore"),
    }.items():
        pinned = (ROOT / "requirements" / file).read_text()
        assert [name for name in packages if f"\n{name}==" not in f"\n{pinned}"] == []
        assert [line for line in pinned.splitlines() if line.rstrip(" \\") not in tested] == []


def test_no_page_shows_a_secret_on_a_command_line_or_in_a_file_for_all() -> None:
    guide = (ROOT / "docs" / "guides" / "three-machines.md").read_text()
    example = (DEPLOY / "nats" / "passwords.conf.example").read_text()
    assert re.findall(r"htpasswd -(\w+)", guide + example) == ["niBC"] * 3  # -i: from its input
    for script in re.findall(r"```bash\n(.*?)```", guide, re.DOTALL):
        writes = re.search(r"> \"\$role\.password\"|> [\w.]+\.(?:conf|env)$", script, re.MULTILINE)
        assert not writes or "umask 077" in script or "nats-permissions" in script
        for line in script.splitlines():
            assert "install" not in line or not re.search(r"\.(?:env|password|conf)\b", line) or "-m 0600" in line


@pytest.mark.parametrize("name", ["nats/nats.env.example", "systemd/pyoco.env.example"])
def test_the_guide_shows_the_examples_as_they_are(name: str) -> None:
    guide = (ROOT / "docs" / "guides" / "three-machines.md").read_text()
    assert f"```text\n{(DEPLOY / name).read_text()}```" in guide


def test_the_guide_tells_of_every_file() -> None:
    pages = ("three-machines.md", "priced-stack.md")
    guide = "".join((ROOT / "docs" / "guides" / page).read_text() for page in pages)
    named = set(re.findall(r"`((?:nats|systemd)/[\w.*-]+|[\w.-]+\.(?:sh|yaml)|Dockerfile)`", guide))
    told = {path for pattern in named for path in DEPLOY.glob(pattern)}
    there = {path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name not in {"flows", "__pycache__"}}
    assert {path.name for path in there - told} <= {"worker.env.example"}
    assert [name for name in named if not list(DEPLOY.glob(name)) and "/" in name] == []
