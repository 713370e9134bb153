"""What makes two submissions the same."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.fingerprint import fingerprint, item_key, receipt_key
from pyoco_server.core.run import Submission

ASK = Submission(flow_name="f", tag="default", tags=("default", "x"), params={"a": 1, "b": {"c": [1, 2], "d": None}})
RUN_ID = "00000000-0000-4000-8000-000000000007"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def turned(value: Any) -> Any:
    """The same, with every object written down the other way round."""
    if isinstance(value, dict):
        return {name: turned(inner) for name, inner in reversed(value.items())}
    return [turned(inner) for inner in value] if isinstance(value, list) else value


class TestFingerprint:
    @given(st.dictionaries(st.text(), values, max_size=5))
    def test_how_params_were_written_down_does_not_matter(self, params: dict[str, Any]) -> None:
        ask = replace(ASK, params=params)
        assert fingerprint(ask) == fingerprint(replace(ask, params=turned(params)))
        assert fingerprint(ask) == fingerprint(replace(ask, params=json.loads(json.dumps(params, indent=2))))
        assert re.fullmatch(r"[0-9a-f]{64}", fingerprint(ask))

    @pytest.mark.parametrize(
        "change",
        [
            {"flow_name": "g"},
            {"tag": "other"},
            {"tags": ("x", "default")},
            {"tags": ("default",)},
            {"tags": ("default,x",)},
            {"params": {}},
            {"params": {"a": 2, "b": {"c": [1, 2], "d": None}}},
            {"params": {"a": 1, "b": {"c": [2, 1], "d": None}}},
            {"params": {"a": 1, "b": {"c": [1, 2]}}},
            {"params": {"a": "1", "b": {"c": [1, 2], "d": None}}},
            {"params": {"a": True, "b": {"c": [1, 2], "d": None}}},
            {"params": {"a": 1.0, "b": {"c": [1, 2], "d": None}}},
            {"workflow_yaml_sha256": "0" * 64},
            {"workflow_yaml_sha256": "1" * 64},
            {"rerun_of": RUN_ID},
        ],
    )
    def test_everything_else_does(self, change: dict[str, Any]) -> None:
        assert fingerprint(replace(ASK, **change)) != fingerprint(ASK)

    def test_half_of_a_surrogate_pair_is_no_trouble(self) -> None:
        assert fingerprint(replace(ASK, params={"x": "\ud800"})) != fingerprint(replace(ASK, params={"x": "?"}))


class TestReceiptKey:
    def test_keys_and_tenants_never_meet(self) -> None:
        """A receipt lies under a digest: of two that differ in anything, neither finds the other's."""
        tenants = [None, "", "a", "ab", "null", 'a","b']
        keys = ["k", "b", "bk", "null", 'b","k', item_key("k", 0), item_key("k", 1), item_key("k", 10), "k0", "k-0"]
        digests = [receipt_key(tenant, key) for tenant, key in itertools.product(tenants, keys)]
        assert len(set(digests)) == len(digests)
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)

    def test_an_item_of_a_batch_has_a_key_that_no_user_can_send(self) -> None:
        """What users may send has no spaces: see `read_key`."""
        assert " " in item_key("k", 3)
