"""The servers of the tests themselves: each answers, each test finds its own empty, and none outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
import redis
from aiobotocore.session import AioSession, get_session
from redis.exceptions import NoScriptError

from support.priced.servers import Aws, MotoServer, PostgresServer, ValkeyServer, is_alive, sweep_folders
from support.waiting import eventually

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_sqs import SQSClient

STARTS_ALL = """
import sys, time
from pathlib import Path
from support.priced.servers import MotoServer, PostgresServer, ValkeyServer
folder = Path(sys.argv[1])
servers = [PostgresServer(), ValkeyServer(folder / "redis"), MotoServer(folder / "moto")]
for each in servers:
    each.start()
print(servers[0].folder, *(each.pid for each in servers), flush=True)
time.sleep(600)
"""


def filled(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE runs (run_id text)")
        connection.execute("INSERT INTO runs VALUES ('prepared')")


def runs_in(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs ORDER BY run_id")]


def test_two_databases_are_apart(postgres_server: PostgresServer) -> None:
    one, two = (postgres_server.new_database(filled) for _ in range(2))
    with psycopg.connect(one) as connection:
        connection.execute("INSERT INTO runs VALUES ('written')")
    assert runs_in(one) == ["prepared", "written"]
    assert runs_in(two) == ["prepared"]
    for url in (one, two):
        postgres_server.drop_database(url)


def test_a_database_is_prepared_once(postgres_server: PostgresServer) -> None:
    asked: list[str] = []
    urls = [postgres_server.new_database(asked.append) for _ in range(2)]
    assert len(asked) == 1
    assert asked[0] not in urls


def test_an_empty_database_is_reached_by_host_and_port(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.info.host == "127.0.0.1"
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        assert connection.execute("SHOW max_connections").fetchone() == ("200",)


def test_what_was_committed_survives_kill_9(own_postgres_server: PostgresServer) -> None:
    url = own_postgres_server.new_database(filled)
    own_postgres_server.restart()
    assert runs_in(url) == ["prepared"]


def test_a_frozen_server_stands_still_whole_and_goes_on(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url("postgres")) as connection:
        with postgres_server.frozen():
            for pid in (postgres_server.pid, connection.info.backend_pid):
                assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_script_is_known_by_its_hash_until_the_next_test(redis_server: ValkeyServer, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        sha = client.script_load("return redis.call('INCRBY', KEYS[1], ARGV[1])")
        assert client.evalsha(sha, 1, "balance", 2**53) == 2**53
        redis_server.empty()
        assert client.dbsize() == 0
        with pytest.raises(NoScriptError):
            client.evalsha(sha, 1, "balance", 1)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_killed_redis_comes_back_empty(own_redis_server: ValkeyServer) -> None:
    with redis.Redis.from_url(own_redis_server.url) as client:
        client.set("key", "value")
    own_redis_server.restart()
    with redis.Redis.from_url(own_redis_server.url) as client:
        assert client.dbsize() == 0


@pytest.fixture
async def session(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AioSession:
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    return get_session()


@pytest.fixture
async def s3(session: AioSession) -> AsyncIterator[S3Client]:
    async with session.create_client("s3", region_name=os.environ["AWS_REGION"]) as client:
        yield client


@pytest.fixture
async def sqs(session: AioSession) -> AsyncIterator[SQSClient]:
    async with session.create_client("sqs", region_name=os.environ["AWS_REGION"]) as client:
        yield client


async def test_s3_gives_back_what_it_was_given(s3: S3Client, moto_server: MotoServer) -> None:
    await s3.create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    await s3.put_object(Bucket="results", Key="dpp/one.json", Body=b"{}", Metadata={"run-id": "one"})
    answer = await s3.get_object(Bucket="results", Key="dpp/one.json")
    assert await answer["Body"].read() == b"{}"
    assert answer["Metadata"] == {"run-id": "one"}
    moto_server.empty()
    assert (await s3.list_buckets())["Buckets"] == []


async def test_sqs_gives_back_what_it_was_given(sqs: SQSClient) -> None:
    queue = (await sqs.create_queue(QueueName="runs"))["QueueUrl"]
    await sqs.send_message(QueueUrl=queue, MessageBody="one")
    answer = await sqs.receive_message(QueueUrl=queue, AttributeNames=["ApproximateReceiveCount"], WaitTimeSeconds=20)
    assert [message["Body"] for message in answer["Messages"]] == ["one"]
    assert answer["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
async def test_no_server_outlives_a_killed_test_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ALL, tmp_path], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder, *pids = tests.stdout.readline().split()
        roots = [psutil.Process(int(pid)) for pid in pids]
        family = [each for root in roots for each in (root, *root.children(recursive=True))]
        tests.send_signal(signal.SIGKILL)
    assert len(family) > len(roots) == 3
    await eventually(lambda: not any(map(is_alive, family)))
    assert Path(folder).exists()
    sweep_folders()
    assert not Path(folder).exists()
