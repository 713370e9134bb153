"""What of the pages is not run, or not as it stands, with a reason in each line.

An entry that fits nothing fails a test, and so does a reason that names a test which is not there.
"""

from __future__ import annotations

__all__ = ["GIVEN", "NOT_RUN", "ON_A_TERMINAL", "TO_BE_READ", "UNLIKE"]

_THREE_NODES = "nats://n1:4222,nats://n2:4222,nats://n3:4222"
_WHITE_PAGE = 'python -c \'from PIL import Image; Image.new("L", (80, 40), 255).save("scan.png")\''

#: What is not run, by how it begins, on one page or on all, and why.
NOT_RUN = {
    "make ": "a whole installation: continuous integration does that, and the test starts what `make up` starts",
    "PYOCO_AUTH_PEPPER=some-long-random-text pyoco-server-admin": "the server here has another pepper:"
    " tests/doors/test_cli_admin_pepper.py",
    "export PYOCO_HTTP_AUTH_MODE=api_key": "starts a second system: tests/system/test_up.py",
    "export PYOCO_JETSTREAM_REPLICAS=3": "three nodes: tests/system/test_nats_bootstrap.py",
    "pyoco-server up": "another system: tests/system/test_up.py",
    f"PYOCO_NATS_URL={_THREE_NODES} pyoco-server gateway": "other machines; the gateway here is started so, too",
    "PYOCO_NATS_URL=nats://n1:4222,nats://n2:4222 pyoco-worker": "other machines; the README starts a worker so, too",
    "pyoco-grid leader": "a door on a port of its own: tests/grid",
    "pyoco-grid router": "a door in front of machines elsewhere: tests/grid",
    "EXEC_DIR=/srv/programs pyoco-grid worker": "a machine elsewhere: tests/grid",
    "pip install": "fetches packages",
    "docs/guides/priced-stack.md: docker compose": "needs containers: tests/repository/test_deploy.py checks the file",
    "pyoco-client list --follow": "does not end: tests/client",
    "sqlite3 ": "a program that need not be there; tests/system/test_backup_restore.py copies ledgers",
    "pg_dump ": "a PostgreSQL of the reader's",
    "export PYOCO_LEDGER_URL": "a PostgreSQL of the reader's: tests/system/test_priced_stacks.py",
    "export PYOCO_BUDGET_URL": "a Redis of the reader's: tests/system/test_priced_stacks.py",
    "PYOCO_BUDGET_URL=": "a Redis of the reader's: tests/system/test_priced_stacks.py",
    "pyoco-server-admin ledger migrate": "a PostgreSQL of the reader's: tests/ports/test_ledger_migrations.py",
    "pyoco-server-admin budget resolve": "needs a disputed run: tests/actions/test_priced_resolving.py",
    "pyoco-server-admin budget rebuild": "needs Redis: tests/actions/test_priced_rebuilding.py",
    "pyoco-server doctor --nats-http": "the monitoring port of a NATS of the reader's: tests/doors",
    "pyoco-server-admin restore": "needs a NATS of its own: tests/system/test_backup_restore.py",
    "docs/guides/recovery.md: PYOCO_PRICED_ENABLED=0 pyoco-server up": "another system: tests/system/test_up.py",
    "docs/guides/recovery.md: pyoco-server-admin --nats-url nats://127.0.0.1:4222 restore": "needs a NATS of its own:"
    " tests/system/test_backup_restore.py",
    "pyoco-server cluster demo": "three nodes: tests/system/test_cluster_rolling.py",
    "pyoco-server-admin replicas": "three nodes: tests/system/test_cluster_replicas.py",
    "docs/guides/three-machines.md: ": "tests/system/test_nats_roles.py, tests/repository/test_deploy.py",
    "docs/guides/migrating-from-0.5.md: ": "an earlier system: tests/system/test_migrating.py runs these steps",
    "docs/guides/migrating-from-the-priced-run-service.md: ": "other stores: tests/system/test_priced_stacks.py",
    "docs/guides/migrating-from-the-csharp-grid.md: ": "doors and workers of the reader's: tests/grid",
    "docs/guides/operating-nats.md: : ": "three nodes: tests/system/test_nats_bootstrap.py runs this script",
    "docs/guides/operating-nats.md: #!/bin/sh": "tests/system/test_nats_bootstrap.py runs this script",
    "docs/guides/wheels.md: pyoco-worker": "does not end: tests/system/test_worker_wheels.py",
    "docs/guides/wheels.md: from pathlib": "the same upload a second time is refused; tests/client uploads",
    "docs/guides/python-client.md: ": "tests/client/test_client_guide.py runs this page",
    "docs/guides/moving-from-celery.md: ": "tests/app/test_celery_guide.py runs this page",
    "docs/guides/testing.md: ": "tests/app/test_app_project.py runs this page",
    "docs/packs/writing-a-pack.md: ": "tests/executors/test_pack_plugins.py runs this page",
    "docs/packs/url.md: ": "would leave this machine: tests/system/test_url_runs.py",
    "docs/packs/ocr.md: curl": "names a file by a key of its own; the command below it does the same",
    "docs/reference/python.md: ": "signatures",
}
#: What is run, though what comes back is not compared.
UNLIKE = {
    "docs/guides/command-line.md: pyoco-client watch 7453cac4-2816-4641-a6e0-4d61f85dc8b6": "a picture that moves",
    "docs/guides/command-line.md: pyoco-client attention": "tells of a bad day",
    "docs/guides/command-line.md: pyoco-client queues": "tells of a bad day",
    "docs/guides/command-line.md: pyoco-client --profile staging config": "names the reader's own folder and key",
    "docs/guides/command-line.md: pyoco-client cancel --all-matching": "a conversation",
    "docs/tutorial.md: pyoco-client watch": "on a busy machine it has ended before anybody watches",
    "docs/guides/working-with-runs.md: curl -s http://127.0.0.1:8000/runs/8bb08e75": "a worker that was lost",
    "docs/guides/working-with-runs.md: curl -s -X POST http://127.0.0.1:8000/dlq/redrive": "tells of a bad day",
}
#: What is done on a terminal, since it looks different there, and what is typed in.
ON_A_TERMINAL = {
    "pyoco-client why": "",
    "docs/guides/command-line.md: pyoco-client cancel --all-matching": "y\n",
}
#: What a page takes for granted: done before it is read.
GIVEN = {
    "docs/guides/command-line.md": "mkdir -p .home/.config/pyoco; umask 077;"
    " echo pyoco_0123456789abcdef_0 > .home/.config/pyoco/staging.key;"
    ' echo \'{"flow_name": "hello"}\' > runs.jsonl; echo \'{"flow_name": ""}\' >> runs.jsonl',
    "docs/guides/operate-programs.md": "pyoco-client program run failn --wait -- 1; true",
    "docs/guides/run-programs.md": "mkdir programs; echo true > programs/render.sh",
    "docs/guides/wheels.md": "export PIP_NO_BUILD_ISOLATION=0 PIP_DISABLE_PIP_VERSION_CHECK=1",  # fetch nothing
    "docs/guides/writing-a-flow.md": "cp examples/hello.yaml flow.yaml",
    "docs/packs/inputs.md": f"{_WHITE_PAGE}; cp scan.png page-2.png",
    "docs/packs/ocr.md": _WHITE_PAGE,
}
#: Blocks that a reader does nothing with, by language, and what looks after them.
TO_BE_READ = {
    "text": "what something looks like",
    "mermaid": "docs/generate.py writes them",
    "nginx": "another program's settings",
    "ini": "settings of systemd",
    "sql": "tests/repository/test_docs.py compares the rights with those that the code grants",
    "yaml": "tests/repository/test_docs.py runs them",
    "toml": "tests/repository/test_docs_examples.py parses them",
    "json": "tests/repository/test_docs_examples.py parses them",
    "": "a message",
}
