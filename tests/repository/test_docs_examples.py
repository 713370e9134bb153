"""What the pages show is what happens: their commands and programs are run, in order, against a whole system.

A reader of each page has a folder with the examples in it, the commands on their path, and what the page takes for
granted. Whatever is not run is listed in `documented_exceptions.py`, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.documented import BLOCKS, ROOT, Block, Step, steps_of, with_info
from support.documented_exceptions import GIVEN, NOT_RUN, ON_A_TERMINAL, TO_BE_READ, UNLIKE
from support.reading_along import Reader, Untrue, learned_from
from support.stacks import HASTY_PROGRAMS, Stack
from support.warm_commands import WarmCommands
from support.wheels import write_wheel


def is_listed(table: dict[str, str], step: Step) -> bool:
    return any(step.text.startswith(begin) or step.place.startswith(begin) for begin in table)


STEPS = [step for block in BLOCKS for step in steps_of(block)]
READ = [step for step in STEPS if not is_listed(NOT_RUN, step)]
#: The pages in stages, one stage after the other, each without the dead letters of those before it. A stage has lanes
#: that are read at the same time; the pages of a lane are read in order.
STAGES: Sequence[Sequence[Sequence[str]]] = (
    # Expects a system without problems.
    (["docs/guides/doctor.md"], ["docs/guides/wheels.md"]),
    # Expects no run without a worker, and one tenant with a budget. The others leave neither behind.
    (
        ["docs/guides/command-line.md"],
        ["docs/guides/use-from-an-agent.md", "docs/packs/inputs.md", "docs/packs/ocr.md"],
    ),
    # Counts its own dead letters. The others make none.
    (
        ["docs/tutorial.md"],
        ["docs/guides/first-run.md"],
        ["docs/guides/deploying.md", "docs/guides/priced-runs.md"],
    ),
    # Lists the newest runs. The other completes none.
    (["README.md"], ["docs/guides/operating-nats.md"]),
    # All other pages. Those of the first lane name the newest dead letter.
    (["docs/guides/working-with-runs.md", "docs/guides/operate-programs.md"],),
    # Their workers take runs of other pages, and lack their flows and programs.
    (["docs/guides/writing-a-flow.md", "docs/guides/run-programs.md"],),
    # Backs up what the other pages have made.
    (["docs/guides/recovery.md"],),
)
#: The stage of a page that is not listed.
OTHERS = 4
#: Stages that share a system. Each has a test, so that two test processes can read at the same time.
SYSTEMS = {"stages 1 to 3": range(3), "stages 4 to 7": range(3, len(STAGES))}
#: How many pages are read at once.
READERS = 4
#: A dead letter is named by a number that is another here.
LETTER = re.compile(r"dlq(/| redrive | requeue )\d+\b")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    # Readers find it as they would find theirs: by the file in the data directory.
    own = {"discovery": 1, "XDG_STATE_HOME": str(tmp_path / "state")}
    stack = Stack(tmp_path / "up", "--with-examples", "--frames-port", "0", priced_enabled=1, **own)
    yield stack.start()
    stack.stop()


@pytest.fixture
def commands() -> Iterator[WarmCommands]:
    with WarmCommands() as commands:
        yield commands


class Readers:
    """Makes the readers of pages."""

    def __init__(self, stack: Stack, folder: Path, commands: WarmCommands) -> None:
        self._stack, self._folder, self._commands = stack, folder, commands
        self._key = stack.make_key("acme")
        stack.credit("acme", "10.0000")
        told = re.search(r"TCP +(\S+):(\d+)", (stack.folder / "banner.txt").read_text())
        assert told is not None
        self._door = f'"{told[1]}", {told[2]}'

    def reader_of(self, page: str) -> Reader:
        folder = self._folder / page.replace("/", "-")
        (folder / ".home").mkdir(parents=True)
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / ".pyoco").symlink_to(self._stack.data_dir)
        reader = Reader(
            folder, self._environment(folder, page), self._meanings(folder), self._key, self._commands.functions
        )
        (folder / "dist").mkdir()
        write_wheel(folder / "dist", "nightly-tasks", "1.2.0")
        if page in GIVEN:
            assert reader.runs(GIVEN[page])[0] == 0, page
        return reader

    def _environment(self, folder: Path, page: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"HOME": str(folder / ".home"), "PATH": path, "LC_ALL": "C.UTF-8"}
        own |= {"PYOCO_SERVER_URL": self._stack.address, **HASTY_PROGRAMS}
        own |= {"XDG_STATE_HOME": str(folder / ".home" / "state")}
        needs_key = page.startswith("docs/packs/")
        return own | ({"PYOCO_API_KEY": self._key} if needs_key else {})

    def _meanings(self, folder: Path) -> dict[str, str]:
        """What pages say, and what it is here. Counting takes less time, too."""
        return {
            '"n": 20': '"n": 8',
            "http://127.0.0.1:8000": self._stack.address,
            "https://example.org/pyoco": self._stack.address,
            "nats://127.0.0.1:43659": self._stack.nats_url,
            "nats://n1:4222,nats://n2:4222,nats://n3:4222": self._stack.nats_url,
            "nats://n1:4222": self._stack.nats_url,
            '"127.0.0.1", 5000': self._door,
            "/var/backups/pyoco": str(folder / "backups"),
            "/srv/programs": str(folder / "programs"),
        }

    def discard_letters(self) -> None:
        while letters := self._stack.get("/dlq")["items"]:
            for letter in letters:
                assert self._stack.ask("DELETE", f"/dlq/{letter['id']}").status_code == 200

    def letter(self, *, of_program: bool) -> str:
        """The number of the newest dead letter of a program, or of a flow."""
        letters = self._stack.get("/dlq")["items"]
        return next((str(each["id"]) for each in letters if ("kind" in each) is of_program), "0")


@pytest.mark.timeout(1800)  # a hundred commands; a busy machine needs ten seconds for some
@pytest.mark.parametrize("places", SYSTEMS.values(), ids=SYSTEMS)
def test_what_the_pages_show_is_what_happens(
    stack: Stack, tmp_path: Path, commands: WarmCommands, places: range
) -> None:
    """Several pages at a time on one system."""
    readers = Readers(stack, tmp_path, commands)
    wrong: list[str] = []
    with ThreadPoolExecutor(READERS) as pool:
        for lanes in stages()[places.start : places.stop]:
            results = pool.map(lambda lane: read_all(readers, lane), lanes)
            wrong += [each for result in results for each in result]
            readers.discard_letters()
    assert not wrong, "\n\n\n".join(wrong)


def stages() -> list[list[Sequence[str]]]:
    listed = listed_pages()
    others = [[page] for page in dict.fromkeys(step.block.name for step in READ) if page not in listed]
    return [[*lanes, *(others if place == OTHERS else [])] for place, lanes in enumerate(STAGES)]


def listed_pages() -> set[str]:
    return {page for lanes in STAGES for lane in lanes for page in lane}


def read_all(readers: Readers, pages: Iterable[str]) -> list[str]:
    return [each for page in pages for each in read_along(readers, page)]


def read_along(readers: Readers, page: str) -> list[str]:
    """What is not true about a page."""
    wrong = []
    reader = readers.reader_of(page)
    for step in (step for step in READ if step.block.name == page):
        for letter in (found[0] for found in LETTER.finditer(step.text) if found[0] not in reader.meanings):
            reader.meanings[letter] = re.sub(r"\d+", readers.letter(of_program="requeue" in letter), letter)
        try:
            typed = next((typed for begin, typed in ON_A_TERMINAL.items() if is_listed({begin: ""}, step)), None)
            reader.does(step, is_compared=not is_listed(UNLIKE, step), typed=typed)
        except Untrue as error:
            wrong.append(str(error))
    return wrong + reader.ends()


def test_every_exception_is_needed() -> None:
    for table in (NOT_RUN, UNLIKE, ON_A_TERMINAL):
        assert [begin for begin in table if not any(is_listed({begin: ""}, step) for step in STEPS)] == []
    assert [place for places in SYSTEMS.values() for place in places] == [*range(len(STAGES))]
    assert {*GIVEN, *listed_pages()} <= {step.block.name for step in READ}
    assert [where for where in GIVEN if not (ROOT / where).is_file()] == []


@pytest.mark.parametrize("reason", sorted({*NOT_RUN.values(), *TO_BE_READ.values()}))
def test_a_reason_names_tests_that_are_there(reason: str) -> None:
    assert [path for path in re.findall(r"\b(?:tests|docs)/[\w./]+\w", reason) if not (ROOT / path).exists()] == []


def test_every_block_is_run_or_read() -> None:
    """Whoever adds a block of another kind says what is done with it."""
    languages = {block.info.split(" ")[0] for block in BLOCKS if not steps_of(block)}
    assert languages - set(TO_BE_READ) == set()


@pytest.mark.parametrize("block", with_info("json"), ids=str)
def test_documented_json_is_json(block: Block) -> None:
    """A part of an object, which begins with its name, is one within braces."""
    text = block.text.replace("…", "")
    json.loads(text if text.lstrip().startswith(("{", "[")) else f"{{{text}}}")


@pytest.mark.parametrize("block", with_info("toml"), ids=str)
def test_documented_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


_RUN = "11111111-2222-4333-8444-555555555555"
_KEY = "pyoco_0000000000000001_ab-C"


@pytest.mark.parametrize(
    ("shown", "answer", "learned"),
    [
        ('{"run_id":"8bb08e75-…","n":1}', f'{{"run_id": "{_RUN}", "n": 7.5}}', {"8bb08e75": _RUN}),
        ("id status\n8bb08e75-… DONE", f"id   status\n{_RUN}  DONE\n", {"8bb08e75": _RUN}),
        ('{…,"status":"COMPLETED",…}', '{"a":1,"status":"COMPLETED","b":2}', {}),
        ('{…,"status":"COMPLETED",…}', '{"a":1,"status":"FAILED","b":2}', None),
        ('{"status":"COMPLETED"}', '{"a":1,"status":"COMPLETED"}', None),
        ("HTTP 422 ERR-PYOCO-0017: no", "HTTP 422 ERR-PYOCO-0018: no", None),
        ('{"key": "pyoco_75615b1473922b3a_…"}', f'{{"key": "{_KEY}"}}', {"pyoco_75615b1473922b3a_": _KEY}),
        ('"next_cursor":"R3joqSOg…"', '"next_cursor":"Zz91"', {"R3joqSOg…": "Zz91"}),
    ],
)
def test_an_answer_is_compared_with_what_is_shown(shown: str, answer: str, learned: dict[str, str] | None) -> None:
    assert learned_from(shown, answer) == learned


def test_what_would_change_this_machine_is_not_run_though_nobody_lists_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"PATH": os.environ["PATH"]}, {})
    for line in ("sudo touch made", "touch made; systemctl stop nats", "pip install made && touch made"):
        with pytest.raises(Untrue, match="is not for this machine"):
            reader.does(Step(BLOCKS[0], "command", line))
    assert not (tmp_path / "made").exists()


def test_a_script_fails_with_its_first_line_that_fails_and_keeps_what_it_has_set(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"PATH": os.environ["PATH"]}, {})
    with pytest.raises(Untrue, match="it ended with 1"):
        reader.does(Step(BLOCKS[0], "script", "export WORD=kept\nfalse | cat\ntrue\n"))
    reader.does(Step(BLOCKS[0], "command", "echo $WORD; false; true", "kept"))


def test_a_command_has_the_variables_folder_and_streams_of_the_shell_and_leaves_with_its_code(
    tmp_path: Path, commands: WarmCommands
) -> None:
    reader = Reader(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, {}, functions=commands.functions)
    asked = "PYOCO_SERVER_URL=http://127.0.0.1:1 pyoco-client config | tee told; pyoco-client nonsense; echo $?"
    code, out, err = reader.runs(asked)
    assert code == 0
    assert "http://127.0.0.1:1" in (tmp_path / "told").read_text()
    assert out.endswith("\n1\n"), out
    assert "nonsense" in err


@pytest.mark.parametrize("saves", ["-s -o out.zip", "-sOJ"])
def test_a_refusal_that_was_saved_as_the_file_is_none(saves: str, tmp_path: Path) -> None:
    (tmp_path / "curl").write_text('#!/bin/sh\necho \'{"err_id": "ERR-PYOCO-0001"}\' > out.zip\n')
    (tmp_path / "curl").chmod(0o700)
    reader = Reader(tmp_path, {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}, {})
    with pytest.raises(Untrue, match="it was refused"):
        reader.does(Step(BLOCKS[0], "command", f"curl {saves} http://127.0.0.1:1/out.zip"))


def test_what_ends_by_itself_is_told_though_it_was_started_last(tmp_path: Path) -> None:
    (tmp_path / "pyoco-worker").write_text("#!/bin/sh\nsleep 0.5\n")
    (tmp_path / "pyoco-worker").chmod(0o700)
    reader = Reader(tmp_path, {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}, {})
    reader.does(Step(BLOCKS[0], "command", "pyoco-worker --slots 1"))
    assert [told for told in reader.ends() if told.startswith("it ended by itself: pyoco-worker")]


def test_blocks_within_lists_are_seen_without_their_indent() -> None:
    begun = [block.text for block in with_info("console") if block.name == "docs/guides/recovery.md"]
    assert [text for text in begun if text.startswith("$ PYOCO_PRICED_ENABLED=0 pyoco-server up")]
