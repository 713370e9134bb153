"""What the gateway writes to its log, and what it keeps to itself."""

from __future__ import annotations

import logging

import pytest

from support.gateways import (
    Gateway,
    submit,
    submit_yaml,
)


class TestLogs:
    CANARY = "canary-in-the-mine"

    async def test_no_log_holds_params_or_an_uploaded_flow(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-174, FLOW-531"""
        caplog.set_level(logging.DEBUG)
        run_id = await submit(gateway, params={"secret": self.CANARY})
        await submit_yaml(gateway, f"flow: {{graph: a, defaults: {{secret: {self.CANARY}}}}}")
        await gateway.client.get(f"/runs/{run_id}")
        await gateway.client.get("/runs", params={"include": "full"})
        await gateway.client.post(f"/runs/{run_id}/cancel")
        refused = {"flow_name": "f", "tag": "a.b", "params": {"secret": self.CANARY}}
        assert (await gateway.client.post("/runs", json=refused)).status_code == 422
        refused = {"flow_name": "f", "params": [self.CANARY]}
        assert (await gateway.client.post("/runs", json=refused)).status_code == 422
        assert "request refused" in caplog.text
        assert self.CANARY not in self._told(caplog)

    @pytest.mark.parametrize("text", ["flow: {graph: a, defaults: {x: !!int %s}}", "flow: {graph: '%s ('}"])
    async def test_no_log_holds_a_piece_of_a_refused_flow(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture, text: str
    ) -> None:
        """FLOW-174, FLOW-531"""
        caplog.set_level(logging.DEBUG)
        assert (await submit_yaml(gateway, text.replace("%s", self.CANARY.replace("-", "_")))).status_code == 422
        assert self.CANARY.replace("-", "_") not in self._told(caplog)

    @staticmethod
    def _told(caplog: pytest.LogCaptureFixture) -> str:
        return "".join(f"{record.__dict__}{record.exc_text}" for record in caplog.records) + caplog.text
