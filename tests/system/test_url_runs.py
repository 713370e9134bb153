"""A run of the url pack from submit to envelope: a gateway, a worker and its pack process, and a site on loopback."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from support.priced.processes import Site, settings_of, until
from support.priced.stacks import SQLITE
from support.priced.url_sites import Authority, page, redirect, site_of
from support.servers import NatsServer


def test_pages_are_submitted_fetched_paid_for_and_read(
    own_nats_server: NatsServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """PRICED-127, PRICED-129, PRICED-131, PRICED-146; every address in it is of this machine, were it ever dialled"""
    authority = Authority(tmp_path)
    home = page("<title>Home</title><p>Hello</p><script>no</script>")
    site = Site(tmp_path, own_nats_server, settings_of(SQLITE, tmp_path, request))
    try:
        with site_of(authority, {"/": home, "/moved": redirect("/"), "/inside": redirect("https://127.0.0.2/")}) as web:
            gateway = site.gateway("gateway").until_ready()
            settings = {"PYOCO_URL_PACK_TEST_ALLOW": web.place, "PYOCO_URL_PACK_CA_FILE": str(authority.ca_file)}
            wrong = site.worker("wrong", PYOCO_URL_PACK_CA_FILE=str(tmp_path / "missing.pem"))
            worker = site.worker("worker", **settings).until_ready()
            assert worker.has_said("PYOCO_URL_PACK_TEST_ALLOW is for tests only")
            until(lambda: not wrong.is_alive, 20, "the end of the worker without certificates")
            assert "PYOCO_URL_PACK_CA_FILE" in wrong.last_words
            payer = site.payer()
            for refused in ({"block_private_ip": False}, {"allow_https_only": False}):
                answer = gateway.post(payer, pack_type="url", inputs={"urls": [web.url()], **refused})
                assert answer.status_code == 422, answer.text
            urls = [web.url("/moved"), web.url("/inside"), "https://127.0.0.3/", f"http://{web.place}/"]
            run_id = gateway.submitted(payer, pack_type="url", inputs={"urls": urls})
            shown = gateway.until_status(payer, run_id, "COMPLETED", "FAILED")
            assert (shown["status"], shown["cost"]["used_usd"]) == ("COMPLETED", "0.0090"), shown
            envelope = httpx.get(shown["result"]["presigned_url"], timeout=60).json()
        [row] = envelope["data"]["results"]
        assert (row["url"], row["final_url"], row["title"], row["text_excerpt"]) == (
            urls[0],
            web.url(),
            "Home",
            "Hello",
        )
        assert envelope["logs"] == {
            "discard_log": [{"url": urls[3], "reason": "NON_HTTPS"}],
            "blocked_log": [
                {"url": urls[1], "resolved_ip": "127.0.0.2", "reason": "LOOPBACK"},
                {"url": urls[2], "resolved_ip": "127.0.0.3", "reason": "LOOPBACK"},
            ],
        }
        assert envelope["cost"]["used_usd"] == "0.0090"
        site.check_money()
    finally:
        site.end()
