"""Event loop methods that a simulation does not support: sockets, pipes, signals and child processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["LoopWithoutIO", "NotSimulated"]


class NotSimulated(NotImplementedError):
    """The code under test called a function of the event loop that needs the operating system."""


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotSimulated(f"{name}: the simulated event loop has no sockets, pipes, signals or child processes")

    return refuse


class LoopWithoutIO(asyncio.AbstractEventLoop):
    """A subclass may override some of these, for example `create_connection` with an in-process transport."""

    add_reader = _refuse("add_reader")  # type: ignore[assignment]  # a generic method
    remove_reader = _refuse("remove_reader")
    add_writer = _refuse("add_writer")  # type: ignore[assignment]  # a generic method
    remove_writer = _refuse("remove_writer")
    add_signal_handler = _refuse("add_signal_handler")  # type: ignore[assignment]  # a generic method
    remove_signal_handler = _refuse("remove_signal_handler")
    getaddrinfo = _refuse("getaddrinfo")
    getnameinfo = _refuse("getnameinfo")
    create_connection = _refuse("create_connection")
    create_server = _refuse("create_server")
    create_unix_connection = _refuse("create_unix_connection")
    create_unix_server = _refuse("create_unix_server")
    create_datagram_endpoint = _refuse("create_datagram_endpoint")
    connect_accepted_socket = _refuse("connect_accepted_socket")
    start_tls = _refuse("start_tls")
    sendfile = _refuse("sendfile")
    connect_read_pipe = _refuse("connect_read_pipe")
    connect_write_pipe = _refuse("connect_write_pipe")
    subprocess_exec = _refuse("subprocess_exec")
    subprocess_shell = _refuse("subprocess_shell")
    sock_recv = _refuse("sock_recv")
    sock_recv_into = _refuse("sock_recv_into")
    sock_recvfrom = _refuse("sock_recvfrom")
    sock_recvfrom_into = _refuse("sock_recvfrom_into")
    sock_sendall = _refuse("sock_sendall")
    sock_sendto = _refuse("sock_sendto")
    sock_connect = _refuse("sock_connect")
    sock_accept = _refuse("sock_accept")
    sock_sendfile = _refuse("sock_sendfile")
