"""Settings of streams and consumers, completed and reported as the server does (measured with 2.15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.ports.nats.memory.messages import SECOND_NS

__all__ = ["consumer_config", "stream_config"]

_STREAM: dict[str, Any] = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND_NS,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
}
_UNLIMITED_IF_ZERO = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_CONSUMER: dict[str, Any] = {
    "deliver_policy": "all",
    "ack_policy": "none",
    "max_deliver": -1,
    "replay_policy": "instant",
    "num_replicas": 0,
}
_ACK_WAIT_NS, _MAX_ACK_PENDING, _MAX_WAITING = 30 * SECOND_NS, 1000, 512
_INACTIVE_NS = 5 * SECOND_NS
#: Reported even if they have an empty value.
_CONSUMER_ALWAYS = set(_CONSUMER)


def stream_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the server's defaults, and without optional settings that are not set."""
    config = _STREAM | {key: value for key, value in given.items() if key in _STREAM or value}
    config.setdefault("subjects", [config["name"]])
    for key in _UNLIMITED_IF_ZERO:
        config[key] = config[key] or -1
    config["num_replicas"] = config["num_replicas"] or 1
    if config.get("allow_msg_schedules"):
        config["allow_rollup_hdrs"] = True  # the server enables them, too
    if not given.get("duplicate_window"):
        age = config["max_age"]
        config["duplicate_window"] = min(_STREAM["duplicate_window"], age) if age else _STREAM["duplicate_window"]
    return config


def consumer_config(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings with the server's defaults, and without optional settings that are not set."""
    config = _CONSUMER | {key: value for key, value in given.items() if key in _CONSUMER_ALWAYS or value}
    config["name"] = name
    config["max_deliver"] = config["max_deliver"] or -1
    if config["ack_policy"] != "none":
        config.setdefault("ack_wait", _ACK_WAIT_NS)
        config.setdefault("max_ack_pending", _MAX_ACK_PENDING)
    if not config.get("deliver_subject"):
        config.setdefault("max_waiting", _MAX_WAITING)
    if not config.get("durable_name"):
        config.setdefault("inactive_threshold", _INACTIVE_NS)
    return config
