"""The JetStream API: requests on `$JS.API.>`, each handled by one function."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyoco_server.ports.nats.memory.configs import consumer_config, stream_config
from pyoco_server.ports.nats.memory.consumer import Consumer, PendingPull
from pyoco_server.ports.nats.memory.messages import SECOND_NS, Message, instant
from pyoco_server.ports.nats.memory.stream import Stream, StreamRefusal
from pyoco_server.ports.nats.memory.subjects import overlaps

if TYPE_CHECKING:
    from pyoco_server.ports.nats.memory.server import MemoryNats

__all__ = ["Api"]

_PAGE = 256
_SUBJECTS_PAGE = 100_000
_NAMES_PAGE = 1024
_Body = dict[str, Any]
#: Response types that are not derived from the request subject.
_KINDS = {"CONSUMER.DURABLE.CREATE": "consumer_create", "INFO": "account_info"}
#: Consumer settings that cannot be changed, and their names in the server's errors.
_FIXED = {
    "deliver_policy": "deliver policy",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
    "max_waiting": "max waiting",
}


class Api:
    def __init__(self, server: MemoryNats) -> None:
        self._server = server
        self._calls: dict[str, Callable[[list[str], _Body], _Body]] = {
            "STREAM.CREATE": self._create_stream,
            "STREAM.UPDATE": self._update_stream,
            "STREAM.INFO": self._stream_info,
            "STREAM.DELETE": self._delete_stream,
            "STREAM.PURGE": self._purge,
            "STREAM.NAMES": self._stream_names,
            "STREAM.LIST": self._stream_list,
            "STREAM.MSG.GET": self._get_message,
            "STREAM.MSG.DELETE": self._delete_message,
            "CONSUMER.CREATE": self._create_consumer,
            "CONSUMER.DURABLE.CREATE": self._create_consumer,
            "CONSUMER.INFO": self._consumer_info,
            "CONSUMER.LIST": self._consumer_list,
            "CONSUMER.NAMES": self._consumer_names,
            "CONSUMER.DELETE": self._delete_consumer,
            "INFO": self._account,
        }

    def call(self, path: str, reply: str, data: bytes) -> None:
        if path.startswith("CONSUMER.MSG.NEXT."):
            self._pull(path, reply, data)
            return
        tokens = path.split(".")
        for size in (3, 2, 1):
            name = ".".join(tokens[:size])
            if name in self._calls:
                self._reply(reply, name, tokens[size:], data)
                return
        if reply:
            self._server.status(reply, "503")

    def _reply(self, reply: str, name: str, words: list[str], data: bytes) -> None:
        kind = _KINDS.get(name) or name.lower().replace(".", "_")
        answer: _Body = {"type": f"io.nats.jetstream.api.v1.{kind}_response"}
        try:
            answer |= self._calls[name](words, json.loads(data) if data else {})
        except StreamRefusal as error:
            answer["error"] = error.as_json()
            if name == "STREAM.INFO":
                answer |= {"total": 0, "offset": 0, "limit": 0}
        if reply:
            self._server.send(reply, json.dumps(answer).encode())

    def _stream(self, name: str) -> Stream:
        found = self._server.streams.get(name)
        if found is None:
            raise StreamRefusal(404, 10059, "stream not found")
        return found

    def _consumer(self, stream: str, name: str) -> Consumer:
        found = self._server.consumers.get(self._stream(stream).name, {}).get(name)
        if found is None or found.is_deleted:
            raise StreamRefusal(404, 10014, "consumer not found")
        return found

    # Streams.

    def _create_stream(self, words: list[str], body: _Body) -> _Body:
        name, config = words[0], stream_config(body)
        existing = self._server.streams.get(name)
        if existing is not None:
            if existing.config != config:
                raise StreamRefusal(400, 10058, "stream name already in use with a different configuration")
            return self._described(existing) | {"did_create": True}
        self._check_stream(name, config)
        return self._described(self._server.make_stream(config)) | {"did_create": True}

    def _update_stream(self, words: list[str], body: _Body) -> _Body:
        stream, config = self._stream(words[0]), stream_config(body)
        self._check_stream(stream.name, config)
        if stream.config.get("allow_msg_schedules") and not config.get("allow_msg_schedules"):
            raise StreamRefusal(500, 10052, "message schedules can not be disabled")
        self._server.change_stream(stream, config)
        return self._described(stream)

    def _check_stream(self, name: str, config: _Body) -> None:
        if config["num_replicas"] > 1:
            raise StreamRefusal(500, 10074, "replicas > 1 not supported in non-clustered mode")
        if config.get("allow_msg_schedules") and config["discard"] == "new":
            raise StreamRefusal(500, 10052, "message scheduling cannot use discard new")
        others = [each for each in self._server.streams.values() if each.name != name]
        taken = [subject for each in others for subject in each.config["subjects"]]
        if any(overlaps(one, other) for one in config["subjects"] for other in taken):
            raise StreamRefusal(400, 10065, "subjects overlap with an existing stream")

    def _stream_info(self, words: list[str], body: _Body) -> _Body:
        stream = self._stream(words[0])
        state = stream.state(with_deleted=bool(body.get("deleted_details")))
        answer: _Body = {"total": 0, "offset": 0, "limit": 0} | self._described(stream, state)
        answer["cluster"] = {"leader": "memory"}  # reported even without a cluster
        counts = sorted(stream.messages.counts(body["subjects_filter"]).items()) if "subjects_filter" in body else []
        if counts:
            offset = body.get("offset", 0)
            state["subjects"] = dict(counts[offset : offset + _SUBJECTS_PAGE])
            answer |= {"total": len(counts), "offset": offset, "limit": _SUBJECTS_PAGE}
        return answer

    def _described(self, stream: Stream, state: _Body | None = None) -> _Body:
        state = stream.state() if state is None else state
        state["consumer_count"] = len(self._living(stream.name))
        return {
            "config": dict(stream.config),
            "created": instant(stream.created_ns),
            "state": state,
            "ts": instant(time.time_ns()),
        }

    def _delete_stream(self, words: list[str], _: _Body) -> _Body:
        self._server.delete_stream(self._stream(words[0]).name)
        return {"success": True}

    def _purge(self, words: list[str], body: _Body) -> _Body:
        stream = self._stream(words[0])
        if stream.config["deny_purge"]:
            raise StreamRefusal(500, 10110, "stream purge not permitted")
        count = stream.purge(body.get("filter") or ">", body.get("seq", 0), body.get("keep", 0))
        return {"success": True, "purged": count}

    def _stream_names(self, _: list[str], body: _Body) -> _Body:
        wanted = body.get("subject", ">")
        names = sorted(
            each.name
            for each in self._server.streams.values()
            if any(overlaps(wanted, subject) for subject in each.config["subjects"])
        )
        offset = body.get("offset", 0)
        return {
            "total": len(names),
            "offset": offset,
            "limit": _NAMES_PAGE,
            "streams": names[offset : offset + _NAMES_PAGE] or None,
        }

    def _stream_list(self, _: list[str], body: _Body) -> _Body:
        names, offset = sorted(self._server.streams), body.get("offset", 0)
        page = [self._described(self._server.streams[name]) for name in names[offset : offset + _PAGE]]
        return {"total": len(names), "offset": offset, "limit": _PAGE, "streams": page}

    def _account(self, _: list[str], __: _Body) -> _Body:
        return {
            "type": "io.nats.jetstream.api.v1.account_info_response",
            "memory": 0,
            "storage": sum(each.messages.bytes for each in self._server.streams.values()),
            "streams": len(self._server.streams),
            "consumers": sum(len(self._living(name)) for name in self._server.streams),
            "limits": {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1},
            "api": {"total": 0, "errors": 0},
        }

    # Messages.

    def _get_message(self, words: list[str], body: _Body) -> _Body:
        messages = self._stream(words[0]).messages
        found: Message | None
        if "last_by_subj" in body:
            found = messages.last(body["last_by_subj"])
        elif "next_by_subj" in body:
            found = messages.next(body["next_by_subj"], body.get("seq", 1))
        elif "start_time" in body:
            since_ns = int(datetime.fromisoformat(body["start_time"]).timestamp() * SECOND_NS)
            found = next((each for each in messages.since(0) if each.time_ns >= since_ns), None)
        elif body.get("seq"):
            found = messages.get(body["seq"])
        else:
            raise StreamRefusal(400, 10003, "bad request")
        if found is None:
            raise StreamRefusal(404, 10037, "no message found")
        message: _Body = {"subject": found.subject, "seq": found.seq, "time": instant(found.time_ns)}
        if found.data:
            message["data"] = base64.b64encode(found.data).decode()
        if found.head:
            message["hdrs"] = base64.b64encode(found.head).decode()
        return {"message": message}

    def _delete_message(self, words: list[str], body: _Body) -> _Body:
        stream = self._stream(words[0])
        if stream.config["deny_delete"]:
            raise StreamRefusal(500, 10057, "message delete not permitted")
        if body["seq"] > stream.messages.last_seq:
            raise StreamRefusal(500, 10057, "stream store EOF")
        if body["seq"] < stream.messages.first_seq:
            raise StreamRefusal(500, 10057, "no message found")
        if not stream.remove(body["seq"]):
            raise StreamRefusal(400, 10043, f"sequence {body['seq']} not found")
        return {"success": True}

    # Consumers.

    def _living(self, stream: str) -> dict[str, Consumer]:
        found = self._server.consumers.get(stream, {})
        for name in [name for name, each in found.items() if each.is_deleted]:
            del found[name]
        return found

    def _create_consumer(self, words: list[str], body: _Body) -> _Body:
        stream, given = self._stream(words[0]), body["config"]
        name = given.get("durable_name") or given.get("name") or words[1]
        config = consumer_config(given, name)
        living = self._living(stream.name)
        existing = living.get(name)
        if existing is not None:
            return self._change_consumer(existing, config, body.get("action", ""))
        if body.get("action") == "update":
            raise StreamRefusal(400, 10149, "consumer does not exist")
        if stream.is_work_queue:
            self._check_unique(living, config)
        limit = stream.config["max_consumers"]
        if 0 < limit <= len(living):
            raise StreamRefusal(400, 10026, "maximum consumers limit reached")
        living[name] = Consumer(stream, name, config, self._server)
        answer = living[name].info()
        living[name].serve()
        return answer

    @staticmethod
    def _change_consumer(existing: Consumer, config: _Body, action: str) -> _Body:
        if action == "create" and existing.config != config:
            raise StreamRefusal(400, 10148, "consumer already exists")
        for key, text in _FIXED.items():
            if existing.config.get(key) != config.get(key):
                raise StreamRefusal(500, 10012, f"{text} can not be updated")
        if existing.config != config:
            existing.change(config)
        return existing.info()

    @staticmethod
    def _check_unique(living: dict[str, Consumer], config: _Body) -> None:
        if config["ack_policy"] != "explicit":
            raise StreamRefusal(400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream")
        own_filter = config.get("filter_subject")
        if not own_filter and living:
            raise StreamRefusal(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
        if any(overlaps(own_filter or ">", each.filter) for each in living.values()):
            raise StreamRefusal(400, 10100, "filtered consumer not unique on workqueue stream")

    def _consumer_info(self, words: list[str], _: _Body) -> _Body:
        return self._consumer(words[0], words[1]).info()

    def _consumer_list(self, words: list[str], body: _Body) -> _Body:
        living, offset = self._living(self._stream(words[0]).name), body.get("offset", 0)
        page = [living[name].info() for name in sorted(living)[offset : offset + _PAGE]]
        return {"total": len(living), "offset": offset, "limit": _PAGE, "consumers": page}

    def _consumer_names(self, words: list[str], body: _Body) -> _Body:
        names, offset = sorted(self._living(self._stream(words[0]).name)), body.get("offset", 0)
        page = names[offset : offset + _NAMES_PAGE]
        return {"total": len(names), "offset": offset, "limit": _NAMES_PAGE, "consumers": page}

    def _delete_consumer(self, words: list[str], _: _Body) -> _Body:
        consumer = self._consumer(words[0], words[1])
        consumer.delete()
        self._living(words[0])
        return {"success": True}

    def _pull(self, path: str, reply: str, data: bytes) -> None:
        _, _, _, stream, name = path.split(".", 4)
        consumer = self._living(stream).get(name) if stream in self._server.streams else None
        if consumer is None or consumer.is_push:
            self._server.status(reply, "503")
            return
        body = json.loads(data) if data[:1] == b"{" else {"batch": int(data or b"1")}
        expires = body.get("expires", 0)
        consumer.ask(
            PendingPull(
                reply=reply,
                batch=body.get("batch", 1),
                expires_ns=time.time_ns() + expires if expires else 0,
                no_wait=bool(body.get("no_wait")),
                max_bytes=body.get("max_bytes", 0),
                heartbeat_ns=body.get("idle_heartbeat", 0),
            )
        )
