"""Reading a flow.yaml with pyyaml and the engine's graph parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyoco.dsl.graph import MAX_PIPE_EXPANDED_TERMS, parse_graph, resolve_pipe_refs

from pyoco_server.core.flow_file import FlowFile, check_flow, excerpt, refuse
from pyoco_server.core.strict_json import Loc
from pyoco_server.errors import InvalidFlow, Problem, WorkflowTooLarge
from pyoco_server.executors.flow.yaml_document import read_document

__all__ = ["YamlFlowFiles"]

#: The engine's own limit. It counts only after parsing, and parses a pipe again at each reference, so
#: we count before: 1,000 references to a chain of 127 pipes took it 1.6 s; stopped at 4,096 texts it takes 35 ms.
STEPS_MAX: Final = MAX_PIPE_EXPANDED_TERMS
#: How much text the pipes may come to, a pipe counted at each reference: about 0.1 s of parsing.
PIPE_CHARACTERS_MAX: Final = 1 << 19

_GRAPH_LOC: Loc = ("workflow", "flow", "graph")


class YamlFlowFiles:
    """Keeps the promises of `ports.flow_files.FlowFiles`. Holds no state; any number of threads may use one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max

    def read(self, data: bytes) -> FlowFile:
        if len(data) > self._bytes_max:
            raise WorkflowTooLarge(f"the flow.yaml has {len(data)} bytes; {self._bytes_max} are allowed")
        flow = check_flow(read_document(_text_of(data)), data)
        _check_graph(flow.graph, flow.pipes)
        return flow


def _text_of(data: bytes) -> str:
    """FLOW-169"""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8: the byte at position {error.start} does not fit ({error.reason})"
        raise refuse(Problem(("workflow",), msg, "encoding")) from error


def _check_graph(graph: str, pipes: Mapping[str, str]) -> None:
    """FLOW-166: the graph, and the pipes it refers to, parse. What tasks and expressions mean is not looked at."""
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
    """The graph is larger than the engine takes, or would be slow to find that out."""


class _CountedPipes(dict[str, str]):
    """The pipes, as the engine fetches them: each fetch is one more text it parses, and is counted."""

    def __init__(self, pipes: Mapping[str, str]) -> None:
        super().__init__(pipes)
        self._steps = self._characters = 0
        #: The text being parsed, for the place of an error.
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
        """Steps stand between `>>` and `;`: a text has at least one, and one more for each of those."""
        self._steps += 1 + text.count(">>") + text.count(";")
        if self._steps > STEPS_MAX:
            raise _TooManyStepsError(f"has more than {STEPS_MAX} steps, pipes written out")
