"""Errors that stop a process or a command at its start."""

from __future__ import annotations

from pyoco_server.errors.base import PyocoError

__all__ = [
    "AppNotLoaded",
    "DeploymentRefused",
    "ExposureRefused",
    "NotOffered",
    "PepperMismatch",
    "SettingError",
    "SeveralServers",
    "UsageError",
]


class DeploymentRefused(PyocoError):
    """NATS, its resources or its number of nodes do not meet the guarantees of programs."""

    number = 45
    phrase = "deployment refused"


class ExposureRefused(DeploymentRefused):
    """A port without authentication may only be opened on this machine."""

    number = 47
    phrase = "exposure refused"


class SeveralServers(PyocoError):
    """Several local servers are running, and none was chosen."""

    number = 51
    phrase = "several local servers"


class NotOffered(PyocoError, NotImplementedError):
    """A program uses a part of Celery that the shim does not have."""

    number = 73
    phrase = "not offered"


class PepperMismatch(PyocoError):
    """The pepper is not the one that the server checks API keys with."""

    number = 52
    phrase = "wrong pepper"


class UsageError(PyocoError):
    """The command line is invalid."""

    number = 18
    phrase = "invalid arguments"


class AppNotLoaded(UsageError):
    """The app to be served cannot be imported."""

    number = 72
    phrase = "app not loaded"


class SettingError(PyocoError, ValueError):
    """A setting does not parse."""

    number = 18
    phrase = "invalid setting"
