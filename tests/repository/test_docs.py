"""The docs are complete, and true: what the code has is in them, what they show works. No server is started here: what
needs one is in `test_docs_examples.py`."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import shlex
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from examples import flows

import pyoco_server
from pyoco_server import config, errors
from pyoco_server.config.removed import REMOVED
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Completed, Failed, Outcome
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.states import FLOW_MOVES, PROGRAM_MOVES, RunState
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.doors.cli.banner import BannerFacts, banner
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.operations import Operation
from pyoco_server.errors import InvalidFlow
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.paths import forget_modules, place_wheels, remove_wheels
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.ports.ledger.migrate import service_rights
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.resources import priced_resources, resources_of
from support.documented import BLOCKS, PAGES, ROOT, Block, with_info
from support.wheels import build_wheel

FILES = YamlFlowFiles(262_144)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
GENERATED: dict[str, str] = GENERATOR.pages()
COMMANDS: dict[str, click.Command] = GENERATOR.commands()


def everything() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


# What the code writes


@pytest.mark.parametrize("path", GENERATED)
def test_a_generated_page_is_not_stale(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
    assert written == GENERATED[path], f"{path} is stale: run python docs/generate.py"


# What the code has


def test_every_setting_is_in_the_docs() -> None:
    text = everything()
    names = [each.variable for kind in config._DECLARED for each in config.settings(kind) if each.has_variable]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    known = {each.variable for kind in config._DECLARED for each in config.settings(kind)} | set(config._ELSEWHERE)
    known |= set(REMOVED)  # in the changelog and in the reference
    prefixes = {"PYOCO_LOG_", "PYOCO_WHEEL_", "PYOCO_DASHBOARD_", "PYOCO_"}
    streams = {"PYOCO_WORK", "PYOCO_DLQ", "PYOCO_ADVISORIES", "PYOCO_CLOCK", "PYOCO_EXEC", "PYOCO_EXEC_EVENTS"} | {
        "PYOCO_LOGS"
    }
    named = set(re.findall(r"\bPYOCO_[A-Z_]*", everything()))
    assert named - known - prefixes - streams == set()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_every_route_is_in_the_docs(operation: Operation) -> None:
    assert f"## {operation.method} {operation.path}\n" in GENERATED["docs/reference/routes.md"]


def test_every_error_is_in_the_docs_in_both_languages() -> None:
    page = GENERATED["docs/reference/errors.md"]
    missing = [text.err_id for text in errors.CATALOGUE.values() if text.err_id not in page or text.ja not in page]
    assert missing == []
    named = {int(number) for number in re.findall(r"(?:ERR|MSG)-PYOCO-(\d{4})", everything())}
    assert named <= set(errors.CATALOGUE)


def test_every_command_is_in_the_docs() -> None:
    page = GENERATED["docs/reference/cli.md"]
    for name, command in COMMANDS.items():
        assert f"## {name}\n" in page
        if isinstance(command, click.Group):  # an old spelling is not listed
            for inner in command.list_commands(click.Context(command)):
                assert f"### {name} {inner}\n" in page


def test_every_public_name_is_in_the_docs() -> None:
    page = GENERATED["docs/reference/python.md"]
    assert [name for name in pyoco_server.__all__ if f"## {name}\n" not in page] == []


def test_every_state_and_move_is_in_the_docs() -> None:
    page = GENERATED["docs/STATES.md"]
    assert [word for word in (*RunState, *FLOW_MOVES, *PROGRAM_MOVES) if f"| `{word}` |" not in page] == []


def test_every_state_and_reason_of_a_priced_run_is_in_the_docs() -> None:
    page = GENERATED["docs/STATES.md"]
    assert [word for word in (*Status, *Money) if f"| `{word}` |" not in page] == []
    told, guide = GENERATED["docs/reference/errors.md"], (ROOT / "docs" / "guides" / "priced-runs.md").read_text()
    assert [reason for reason in Reason if f"| `{reason}` |" not in told or f"`{reason}`" not in guide] == []


def test_every_alarm_is_in_the_guide() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    guide = (ROOT / "docs" / "guides" / "operating-priced-runs.md").read_text()
    alarms = set(re.findall(r'alarm="(\w+)"', source))
    assert alarms
    assert [alarm for alarm in alarms if f"| `{alarm}` |" not in guide] == []


def test_the_rights_of_the_service_are_those_the_guide_grants() -> None:
    guide = (ROOT / "docs" / "guides" / "operating-priced-runs.md").read_text()
    assert [right for right in service_rights("x") if right.removesuffix('"x"') not in guide] == []


def test_every_test_that_the_guarantees_name_is_there() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert named
    assert missing == []


def test_the_guarantees_say_which_tests_are_in_the_long_proofs_alone() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    for path, name, is_said in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(`make proofs`\))?", page):
        above = (ROOT / path).read_text().split(f"def {name}(")[0].rpartition("\n\n\n")[2]
        assert ("@full_only" in above) == bool(is_said), name


def test_every_kind_of_run_survives_something_in_every_row_of_the_guarantees() -> None:
    """A row of the matrix has a section of its own, with the same three kinds, and every claim in it names its test."""
    page = (ROOT / "docs" / "guarantees.md").read_text().split("## The experiments")[0]
    rows = re.findall(r"^\| \[([^]]+)\]\(#[^)]+\) \|", page, re.MULTILINE)
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert rows == [*sections]
    for title, text in sections.items():
        lines = re.findall(r"^\| (flow|pack|program) \| (.+?) \| (.*?) \|$", text, re.MULTILINE)
        assert [kind for kind, _, _ in lines] == ["flow", "pack", "program"], title
        assert [what for _, what, tests in lines if "::" not in tests and what != "Not concerned"] == [], title


def test_the_guide_names_every_variable_that_flows_do_not_see() -> None:
    page = (ROOT / "docs" / "guides" / "writing-a-flow.md").read_text()
    told = page.split("### Variables")[1].split("A run that asks")[0]
    assert set(re.findall(r"`((?:PYOCO|EXEC)_\w+)`", told)) == config.secret_variables()


def test_every_decision_is_listed() -> None:
    pages = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    row = r"^\| (\d+) \| \[(.+?)\]\((.+?)\)(?: \(superseded by \d+\))? \|$"
    listed = re.findall(row, (ROOT / "docs" / "adr" / "README.md").read_text(), re.MULTILINE)
    assert [name for _, _, name in listed] == pages
    for number, title, name in listed:
        assert (ROOT / "docs" / "adr" / name).read_text().startswith(f"# {number}. {title}\n")


def test_every_stream_and_bucket_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    settings = config.NatsBackendConfig()
    stores = (
        *resources_of(settings),
        *priced_resources(settings, config.PricedConfig()),
        *grid_resources(settings, config.GridConfig()),
    )
    names = [each.name.removeprefix("KV_").removeprefix("OBJ_") for each in stores]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_files_of_a_change_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Which files a change has")[2].partition("\n## ")[0]
    places = re.findall(r"`((?:core|config|client|doors|errors|loops|ports|wiring|tests)/[\w/.]+)`", text)
    assert places
    roots = (ROOT, ROOT / "src" / "pyoco_server")
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []


def test_every_room_is_in_the_architecture() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rooms = [path.parent.name for path in (ROOT / "src" / "pyoco_server").glob("*/__init__.py")]
    assert rooms
    assert [room for room in rooms if f"| `{room}` |" not in page] == []


# fmt: on


#: Messages of the log that a page quotes.
QUOTED = {
    "operating": ("queue is silent",),
    "operate-programs": (
        "granting no more credits",
        "worker reported another worker's job",
        "waiting for a second node of the cluster",
    ),
    "three-machines": ("NATS does not permit this",),
    "simulation": ("the run has a new owner; stopping its execution",),
}


@pytest.mark.parametrize(("page", "messages"), QUOTED.items(), ids=QUOTED)
def test_a_message_that_a_page_quotes_is_logged(page: str, messages: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "guides" / f"{page}.md").read_text()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    logged = "\n".join(re.findall(r'\blog\.\w+\(\s*"([^"]*)"', source))
    assert [message for message in messages if message not in text or message not in logged] == []


# What the docs show


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {GENERATOR._slug(heading) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors_of(found), f"{page}: {target}"


def execute(text: str) -> Outcome:
    return EngineRun(job_of(text), FlowBuilder(flows.resolve, FILES)).execute()


def job_of(text: str) -> Job:
    file = FILES.read(text.encode())
    return Job(
        run_id="00000000-0000-4000-8000-000000000001",
        flow_name="documented",
        tag="default",
        submitted_at=0.0,
        params=file.defaults,
        workflow_yaml=file.text,
    )


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes a folder `artifacts` where it runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_the_package_of_the_guide_runs_by_name_and_by_module(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guides" / "wheels.md"
    blocks = [block for block in BLOCKS if block.page == page]
    [project], [flow] = ([b.text for b in blocks if b.info == info] for info in ("toml", "yaml of the wheel above"))
    code, plug_in = [block.text for block in blocks if block.info == "python"][:2]
    points = tomllib.loads(project)["project"]["entry-points"]
    _, content = build_wheel(modules={"my_tasks/__init__.py": code, "my_tasks/plugin.py": plug_in}, entry_points=points)
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path / "wheel")
    paths = (str(tmp_path / "wheel"),)
    place_wheels(paths)
    try:
        builder = FlowBuilder(None, FILES, environment=Environment(paths, ("my_tasks",)))
        builder.warm()
        outcome = EngineRun(job_of(flow), builder).execute()
        assert isinstance(outcome, Completed), outcome
        assert [record["output"] for record in outcome.progress.task_records.values()] == ["a b", "c d"]
    finally:
        remove_wheels(paths)
        forget_modules(paths)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("block", with_info("yaml"), ids=str)
def test_a_documented_flow_is_accepted_and_runs(block: Block) -> None:
    outcome = execute(block.text)
    assert isinstance(outcome, Completed), outcome.error


def said_after(block: Block) -> str:
    """The text block that follows: what the server says."""
    return next(each for each in BLOCKS if each.page == block.page and each.line > block.line).text


@pytest.mark.parametrize("block", with_info("yaml refused"), ids=str)
def test_a_documented_refusal_is_what_the_gateway_says(block: Block) -> None:
    with pytest.raises(InvalidFlow) as caught:
        FILES.read(block.text.encode())
    places = ((".".join(map(str, problem.loc[1:])), problem.msg) for problem in caught.value.problems)
    assert said_after(block).splitlines() == [f"{place}: {msg}" if place else msg for place, msg in places]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("block", with_info("yaml refused-by-worker"), ids=str)
def test_a_documented_refusal_is_what_the_worker_says(block: Block) -> None:
    outcome = execute(block.text)
    assert isinstance(outcome, Failed)
    assert outcome.why == "flow_not_found"
    assert said_after(block).strip() == outcome.message


@pytest.mark.parametrize("block", with_info("python"), ids=str)
def test_documented_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec", dont_inherit=True)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every line of a console block that calls one of our commands: where, and its words."""
    for block in with_info("console"):
        for line in block.text.splitlines():
            if not line.startswith("$ "):
                continue
            words = shlex.split(line[2:], comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0] in COMMANDS:
                yield f"{block}: {line}", words


@pytest.mark.parametrize(("where", "words"), list(command_lines()), ids=lambda each: str(each)[:60])
def test_a_documented_command_line_is_understood(where: str, words: list[str]) -> None:
    """Nothing is run: the arguments are only read."""
    command: click.Command | None = COMMANDS[words[0]]
    context: click.Context | None = None
    rest = words[1:]
    while isinstance(command, click.Group):
        context = command.make_context(words[0], list(rest), parent=context)
        if command.invoke_without_command and not [*context._protected_args, *context.args]:
            return
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None, where
    if "--help" not in rest:
        command.make_context(words[0], list(rest), parent=context)


def test_the_first_run_shows_what_up_prints() -> None:
    """The lines to paste are the banner's own."""
    facts = BannerFacts(
        config=config.NatsBackendConfig(),
        address="http://127.0.0.1:8000",
        data_dir=Path("…/.pyoco"),
        nats_url="nats://127.0.0.1:43659",
        has_examples=True,
        has_workers=True,
        is_open_to_everyone=False,
    )
    page = ROOT / "docs" / "guides" / "first-run.md"
    shown = next(block.text for block in with_info("console") if block.page == page)
    lines = [line for line in banner(facts).splitlines() if not line.endswith("is up")]  # that one tells the version
    assert [line for line in lines if line not in shown] == []


# How the docs speak

#: Places of one machine, and where packages come from: neither is the reader's.
FOREIGN = re.compile(
    r"/(root|home|tmp)/(?!jobs\b)|--index-url|https?://(?!127\.0\.0\.1|localhost|example\.)|\bnotes/|\b(FLOW|ENG|PRICED|GRID)-\d+"
)
TEXTS = [*PAGES, *sorted((ROOT / "examples").iterdir())]


@pytest.mark.parametrize("page", [page for page in TEXTS if page.is_file()], ids=lambda page: page.name)
def test_a_page_speaks_of_this_project_alone(page: Path) -> None:
    found = FOREIGN.search(page.read_text(encoding="utf-8"))
    assert found is None, f"{page}: {found and found[0]}"


def test_fragments_of_the_changelog_are_one_sentence_each() -> None:
    kinds = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "changelog.d" / "README.md").read_text(), re.MULTILINE))
    for fragment in (ROOT / "changelog.d").iterdir():
        if fragment.name == "README.md":
            continue
        name = re.fullmatch(r"(\d+)\.(\w+)(\.[\w-]+)?\.md", fragment.name)
        assert name is not None, fragment.name
        assert name[2] in kinds, fragment.name
        text = fragment.read_text(encoding="utf-8")
        assert text.endswith(".\n"), fragment.name
        assert text.count("\n") == 1, fragment.name
        assert text.startswith("**Breaking:** ") or not re.match(r"\W*breaking\b", text, re.IGNORECASE), fragment.name
