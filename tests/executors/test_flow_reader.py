"""Reading a flow.yaml: every file is either a flow or is refused, with a place, in little time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyoco_server.core.flow_file import FlowFile, TaskSpec
from pyoco_server.errors import InvalidFlow, Problem, WorkflowTooLarge
from pyoco_server.executors.flow import yaml_document
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.flow.yaml_document import read_document
from pyoco_server.ports.flow_files import FlowFiles

BYTES_MAX = 262_144
FILES: FlowFiles = YamlFlowFiles(BYTES_MAX)
#: Measured: 0.2 s for the slowest file of the largest size. The machine may be busy; a bomb takes minutes.
SECONDS_MAX = 5.0

EXAMPLE = b"""\
version: 1
tasks:
  prepare:
    use: "demo/prepare"
  finish:
    callable: "my_package.tasks:finish"
    inputs: {data: "$node.prepare.output"}
pipes:
  tail: finish
flow:
  defaults: {mode: "batch", size: 3}
  graph: |
    prepare >> pipe(tail)
"""


def read(text: str) -> FlowFile:
    return FILES.read(text.encode())


def the_problem_of(text: str | bytes) -> Problem:
    with pytest.raises(InvalidFlow) as caught:
        FILES.read(text if isinstance(text, bytes) else text.encode())
    (problem,) = caught.value.problems
    return problem


def test_the_example_of_the_contract_is_read() -> None:
    """FLOW-161, FLOW-171, FLOW-173"""
    flow = FILES.read(EXAMPLE)
    assert (flow.graph, flow.defaults) == ("prepare >> pipe(tail)\n", {"mode": "batch", "size": 3})
    assert flow.tasks["finish"] == TaskSpec(callable="my_package.tasks:finish", inputs={"data": "$node.prepare.output"})
    assert (flow.size, flow.text) == (len(EXAMPLE), EXAMPLE.decode())


def test_a_file_above_the_cap_is_too_large_whatever_is_in_it() -> None:
    """FLOW-168"""
    files = YamlFlowFiles(len(EXAMPLE))
    assert files.read(EXAMPLE).size == len(EXAMPLE)
    with pytest.raises(WorkflowTooLarge, match=f"{len(EXAMPLE)} are allowed"):
        files.read(b"\xff" + EXAMPLE)


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        (b"flow: \xff", "encoding", "position 6"),
        ("flow: ü".encode("utf-16"), "encoding", "position 0"),
        (b"flow: [a", "yaml_syntax", "line "),
        (b"flow:\n  graph: a\n  defaults: {x: }}\n", "yaml_syntax", "line 3, column 18"),
        (b"flow: \x00", "yaml_syntax", "control characters"),
        (b"flow: @x", "yaml_syntax", "line 1, column 7"),
        (b"", "mapping_type", "empty"),
        (b"# nothing\n", "mapping_type", "empty"),
        (b"---\n", "mapping_type", "empty"),
        (b"flow: {graph: a}\n---\nflow: {graph: b}\n", "documents", "line 2, column 1"),
        (b"flow: {graph: a}\nflow: {graph: b}\n", "repeated_key", "line 2, column 1: the key 'flow'"),
        (b"flow: {graph: a, defaults: {x: 1, x: 1}}", "repeated_key", "the key 'x'"),
        (b"flow: {graph: a, defaults: {1: a, 1.0: b}}", "repeated_key", "twice"),
        (b"flow: {graph: a, ? [b] : c}", "key_type", "a key must be text"),
        (b"flow: !!python/object/apply:os.system [ls]", "tag", "python/object"),
        (b"flow: {graph: !!python/name:os.system x}", "tag", "python/name"),
        (b"flow: {graph: !mine x}", "tag", "!mine"),
        (b"flow: {graph: a, defaults: !!set {x}}", "tag", "set"),
        (b"flow: {graph: a, defaults: {x: !!binary aGk=}}", "tag", "binary"),
        (b"flow: {graph: a, defaults: {x: =}}", "tag", "quote the value"),
        (b"flow: {graph: a, defaults: {x: 2026-99-01}}", "scalar", "is not a timestamp"),
        (b"flow: {graph: a, defaults: {x: !!int many}}", "scalar", "is not a int"),
        (b"flow: {graph: a, defaults: {x: 0b_}}", "scalar", "quote it"),
        (b"flow: {graph: a, defaults: {x: *y}}", "alias", "*y"),
        (b"flow: {graph: a, defaults: &y {x: *y}}", "alias", "no finished anchor"),
        (b"flow: {graph: a, defaults: {<<: 1}}", "merge", "<< takes a mapping"),
        (b"flow: {graph: a, defaults: {d: 2026-01-01}}", "not_json", "is a date"),
        (b"flow: {graph: a, defaults: {x: .nan}}", "not_json", "finite"),
        (b"flow: {graph: a, defaults: {on: 1}}", "key_type", "quote it"),
    ],
)
def test_a_file_that_is_no_flow_is_refused_with_a_place(data: bytes, kind: str, told: str) -> None:
    """FLOW-163, FLOW-169, FLOW-172"""
    problem = the_problem_of(data)
    assert problem.type == kind
    assert told in problem.msg


def test_a_problem_says_where_in_the_document_it_is() -> None:
    """FLOW-169"""
    loc = the_problem_of("flow:\n  defaults:\n    list: [1, {x: 1, x: 2}]\n").loc
    assert loc == ("workflow", "flow", "defaults", "list", 1)


@pytest.mark.parametrize("prefix", ["\ufeff", "---\n", "%YAML 1.1\n---\n", "# a comment\n"])
def test_what_yaml_allows_before_a_document_is_allowed(prefix: str) -> None:
    """FLOW-169"""
    flow = read(prefix + "flow: {graph: a}\n...\n")
    assert (flow.graph, flow.text[: len(prefix)]) == ("a", prefix)


GRAPHS = [
    ("a > b", {}, ("flow", "graph"), "position 2"),
    ("a >>", {}, ("flow", "graph"), "Expected term"),
    ("a b", {}, ("flow", "graph"), "position 2"),
    ("nonsense(x=1)", {}, ("flow", "graph"), "Unknown callable"),
    ("repeat(count=2){", {}, ("flow", "graph"), ""),
    ("pipe(p)", {}, ("flow", "graph"), "Unknown pipe reference: p"),
    ("pipe(p)", {"p": "a > b"}, ("pipes", "p"), "position 2"),
    ("pipe(p)", {"p": "pipe(q)", "q": "pipe(p)"}, ("pipes", "q"), "Cyclic pipe"),
    ("repeat(count=1){" * 5000, {}, ("flow", "graph"), "nested too deep"),
    (" >> ".join(["a"] * 5000), {}, ("flow", "graph"), "more than 4096 steps"),
]


@pytest.mark.parametrize(("graph", "pipes", "loc", "told"), GRAPHS, ids=[row[0][:20] for row in GRAPHS])
def test_a_graph_the_engine_cannot_parse_is_refused(
    graph: str, pipes: dict[str, str], loc: tuple[str, ...], told: str
) -> None:
    """FLOW-166"""
    problem = the_problem_of(yaml.safe_dump({"flow": {"graph": graph}, "pipes": pipes}))
    assert (problem.loc, problem.type) == (("workflow", *loc), "graph")
    assert told in problem.msg
    assert len(problem.msg) <= 80


def test_a_graph_as_long_as_the_engine_takes_is_accepted() -> None:
    """FLOW-166"""
    read("flow: {graph: '" + " >> ".join(["a"] * 4096) + "'}")


def test_a_pipe_nobody_refers_to_need_not_parse() -> None:
    """FLOW-166: `the graph and the pipes it refers to`"""
    read("flow: {graph: a}\npipes: {p: 'a > b'}")


def test_an_expression_is_not_looked_at() -> None:
    """FLOW-166"""
    read("flow: {graph: 'until(cond=\"1/0 ((\"){a}'}")


def test_reading_imports_no_task_code() -> None:
    """FLOW-167"""
    program = (
        "import sys; from pyoco_server.executors.flow.reader import YamlFlowFiles;"
        "YamlFlowFiles(999).read(b'tasks: {a: {callable: \"this:x\"}, b: {use: antigravity}}\\nflow: {graph: a >> b}');"
        "assert not {'this', 'antigravity'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_small_aliases_and_merge_keys_are_written_out() -> None:
    """FLOW-172"""
    flow = read(
        "tasks:\n  a: &a {use: x, inputs: {n: 1}}\n  b: *a\n  c: {<<: *a, use: y}\n"
        "flow: {graph: a, defaults: {k: &k [1, 2], l: *k, s: &s text, t: *s}}\n"
    )
    assert flow.tasks["a"] == flow.tasks["b"] == TaskSpec(use="x", inputs={"n": 1})
    assert flow.tasks["c"] == TaskSpec(use="y", inputs={"n": 1})
    assert flow.defaults == {"k": [1, 2], "l": [1, 2], "s": "text", "t": "text"}


SAMPLES = [
    "a: no\nb: 12:30:00\nc: 0x1F\nd: 017\ne: 1_000\nf: 1e3\ng: 1.5e+3\nh: .5\ni: ~\nj:\nk: 'no'\nl: !!str 5\nm: ! 5",
    "a: |\n  x\n  y\nb: >-\n  x\n  y\nc: \"\\u00e9\\n\"\nd: 'it''s'\ne: [a, [b, {c: d}], {}]\nf: - x",
    "base: &b {x: 1, y: 2}\nm: {<<: *b, y: 3}\nn: {<<: [*b, {y: 9, z: 8}], w: 1}\no: {y: 4, <<: *b}\np: &q 1\nr: *q",
    "2026-01-02: 2026-01-02T03:04:05Z\nyes: 1\n3: x\n1.5: y\n~: z\n*never : 1",
]


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
@pytest.mark.parametrize("text", SAMPLES)
def test_values_are_those_of_the_engines_own_loader(text: str, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-169: both loaders of pyyaml, with libyaml and without."""
    monkeypatch.setattr(yaml_document, "_LOADER", loader)
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError:
        with pytest.raises(InvalidFlow):
            read_document(text)
    else:
        ours = read_document(text)
        assert ours == expected
        assert repr(ours) == repr(expected)


def chain(levels: int) -> str:
    links = "".join(f"    a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, levels))
    return f"flow:\n  graph: a\n  defaults:\n    a0: &a0 [x]\n{links}"


def laughs(levels: int) -> str:
    lines = [f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels)]
    return "flow:\n  graph: a\n  defaults:\n    a0: &a0 [lol, lol]\n" + "".join(lines)


pipe_chain = "".join(f"  c{n}: pipe(c{n + 1})\n" for n in range(126))
#: Name: the file, and the word of the bound that stops it.
BOMBS = {
    "billion laughs": (laughs(12), "too_large"),
    "billion laughs in inputs": (laughs(12).replace("  graph: a\n  defaults:", "  a:\n   inputs:", 1)
                                 .replace("flow:", "flow: {graph: a}\ntasks:"), "too_large"),
    "one long text, many times": ("a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 50_000 + "]", "too_large"),
    "a long chain of aliases": (chain(200), "too_deep"),
    "deep lists": ("[" * BYTES_MAX, "too_deep"),
    "deep mappings": ("{a: " * (BYTES_MAX // 4), "too_deep"),
    "deep dashes": ("- " * (BYTES_MAX // 2), "too_deep"),
    "very many values": ("-\n" * (BYTES_MAX // 2), "too_large"),
    "very many unknown keys": ("".join(f"key{n}: 1\n" for n in range(20_000)), "unknown_key"),
    "a very long number": ("flow: {graph: a, defaults: {x: " + "1:" * 100_000 + "1}}", "number"),
    "a very deep graph": (f"flow: {{graph: '{'repeat(count=1){' * 16_000}'}}", "graph"),
    "very many cases": (f"flow: {{graph: 'switch(on=x){{{'a:b;' * 60_000}}}'}}", "graph"),
    "many references to a chain of pipes": (
        f"pipes:\n{pipe_chain}  c126: a\nflow: {{graph: '{' >> '.join(['pipe(c0)'] * 4000)}'}}", "graph"
    ),
    "many references to a long pipe": (
        f"pipes: {{p: 'a #{'x' * 100_000}'}}\nflow: {{graph: '{' >> '.join(['pipe(p)'] * 90)}'}}", "graph"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once(name: str) -> None:
    """FLOW-166, FLOW-172"""
    text, kind = BOMBS[name]
    assert len(text) <= BYTES_MAX
    started = time.process_time()
    with pytest.raises(InvalidFlow) as caught:
        read(text)
    assert time.process_time() - started < SECONDS_MAX
    assert caught.value.problems[0].type == kind
    assert len(str(caught.value)) < 1000


def test_the_depth_is_the_same_through_aliases_as_without() -> None:
    """FLOW-172"""
    read(chain(37))
    assert the_problem_of(chain(39)).type == "too_deep"


def test_a_large_usual_file_is_accepted() -> None:
    """FLOW-168"""
    lines = "".join(f"    key_{n}: value number {n}\n" for n in range(8000))
    assert len(read(f"flow:\n  graph: a\n  defaults:\n{lines}").defaults) == 8000


pieces = st.sampled_from(
    ["flow", "graph", "tasks", "a", ":", ": ", "- ", "[", "]", "{", "}", ",", "&a ", "*a", "<<", "!!int ", "!x ", "|",
     ">", "'", '"', "\n", "\n  ", "\t", "#", "---\n", "...", "%TAG", "?", "~", "no", "1", ".inf", "0x", "1:2",
     "2026-01-01", "@", "`", "\\", "é", "\ufeff", "\x85", "a >> b", "pipe(a)", "=", "0b_", "\x00"]
)  # fmt: skip
ours = settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow])


def read_or_refuse(data: bytes) -> None:
    with contextlib.suppress(InvalidFlow, WorkflowTooLarge):
        FILES.read(data)


@ours
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
def test_arbitrary_bytes_raise_nothing_unexpected(data: bytes) -> None:
    """FLOW-166, FLOW-168, FLOW-169"""
    read_or_refuse(data)


@ours
@given(st.lists(pieces, max_size=30).map("".join))
def test_arbitrary_yaml_raises_nothing_unexpected(text: str) -> None:
    """FLOW-166, FLOW-169"""
    read_or_refuse(text.encode())
    read_or_refuse(f"flow: {{graph: a, defaults: {text}}}".encode())
    read_or_refuse(yaml.safe_dump({"flow": {"graph": text or "a"}, "pipes": {"a": text}}).encode())


@ours
@given(st.data())
def test_a_good_file_with_a_few_changes_raises_nothing_unexpected(data: st.DataObject) -> None:
    """FLOW-166, FLOW-169"""
    text = EXAMPLE
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 6))
        text = text[:at] + data.draw(pieces.map(str.encode) | st.binary(max_size=2)) + text[at + cut :]
    read_or_refuse(text)
