"""The limit to measure submit against: a FastAPI app that validates a JSON body and answers. It stores nothing."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Submit(BaseModel):
    flow_name: str
    params: dict[str, Any] = {}
    tag: str | None = None
    tags: list[str] | None = None


class Accepted(BaseModel):
    run_id: str
    status: str


@app.post("/runs")
async def post_run(body: Submit) -> Accepted:
    return Accepted(run_id=str(uuid.uuid4()), status="PENDING")
