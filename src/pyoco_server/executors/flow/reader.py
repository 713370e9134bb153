"""Reads a flow.yaml with pyyaml and the engine's graph parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyoco.dsl.graph import MAX_PIPE_EXPANDED_TERMS, parse_graph, resolve_pipe_refs

from pyoco_server.core.flow_file import FlowFile, check_flow, excerpt, refuse
from pyoco_server.core.strict_json import Loc
from pyoco_server.errors import InvalidFlow, Problem, WorkflowTooLarge
from pyoco_server.executors.flow.yaml_document import read_document

__all__ = ["YamlFlowFiles"]

#: The engine's own limit. The engine counts only after parsing, and parses a pipe again at each reference, so we count
#: before: 1,000 references to a chain of 127 pipes took it 1.6 s; stopped at 4,096 texts it takes 35 ms.
STEPS_MAX: Final = MAX_PIPE_EXPANDED_TERMS
#: The maximum total length of the pipes, counting a pipe at each reference: about 0.1 s of parsing.
PIPE_CHARACTERS_MAX: Final = 1 << 19

_GRAPH_LOC: Loc = ("workflow", "flow", "graph")


class YamlFlowFiles:
    """Implements `ports.flow_files.FlowFiles`. Stateless, so any number of threads may share one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max

    def read(self, data: bytes) -> FlowFile:
        if len(data) > self._bytes_max:
            raise WorkflowTooLarge(f"the flow.yaml has {len(data)} bytes; {self._bytes_max} are allowed")
        flow = check_flow(read_document(_text_of(data)), data)
        _check_graph(flow.graph, flow.pipes)
        return flow


def _text_of(data: bytes) -> str:
    """Decode UTF-8 (FLOW-169)."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8: the byte at position {error.start} does not fit ({error.reason})"
        raise refuse(Problem(("workflow",), msg, "encoding")) from error


def _check_graph(graph: str, pipes: Mapping[str, str]) -> None:
    """Check that the graph and the pipes it refers to parse (FLOW-166). Tasks and expressions are not evaluated."""
    counted = _CountedPipes(pipes)
    try:
        counted.charge(graph)
        resolve_pipe_refs(parse_graph(graph), counted)
    except _TooManyStepsError as error:
        raise _graph_refusal(_GRAPH_LOC, str(error)) from error
    except RecursionError as error:  # ENG-39
        raise _graph_refusal(counted.loc, "is nested too deep for the engine") from error
    except ValueError as error:  # the engine's syntax, reference and validation errors
        raise _graph_refusal(counted.loc, excerpt(str(error))) from error


def _graph_refusal(loc: Loc, msg: str) -> InvalidFlow:
    return refuse(Problem(loc, msg, "graph"))


class _TooManyStepsError(Exception):
    """The graph exceeds the engine's limit, or would take long to be found too large."""


class _CountedPipes(dict[str, str]):
    """The pipes, as the engine fetches them: each fetch means that one more text is parsed, and is counted."""

    def __init__(self, pipes: Mapping[str, str]) -> None:
        super().__init__(pipes)
        self._steps = self._characters = 0
        #: The text being parsed, for the location of an error.
        self.loc: Loc = _GRAPH_LOC

    def __getitem__(self, name: str) -> str:
        text = super().__getitem__(name)
        self.loc = ("workflow", "pipes", excerpt(name))
        self._characters += len(text)
        if self._characters > PIPE_CHARACTERS_MAX:
            raise _TooManyStepsError(f"its pipes come to more than {PIPE_CHARACTERS_MAX} characters, repeats included")
        self.charge(text)
        return text

    def charge(self, text: str) -> None:
        """Count a text. Steps are separated by `>>` and `;`: a text has at least one, plus one for each of those."""
        self._steps += 1 + text.count(">>") + text.count(";")
        if self._steps > STEPS_MAX:
            raise _TooManyStepsError(f"has more than {STEPS_MAX} steps, pipes written out")
