"""The explorer with many clients at the same time; see `load`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from arithscope.results.run import Run
from tests.explorer.client import send, serving, serving_process
from tests.explorer.load import LIVE, STATIC, STORED, Load

API = "/api/runs/tiny-llama"
MAX_MS = 300  # within which 99 % of pages and stored data arrive, on two cores
MAX_GROWTH = 50  # MB of memory, in a minute


def paths(run: Run) -> dict[str, list[str]]:
    """What clients request, by kind: every page and every kind of stored data; maps to be computed, and explanations."""
    top = run.patterns.neurons.head(20)
    neurons = [
        (f"{API}/neurons/{row.layer}/{row.neuron}", f"?operator={quote(str(row.operator))}") for row in top.itertuples()
    ]
    return {
        STATIC: ["/", "/static/app.js", "/static/api.js", "/static/style.css"],
        STORED: [
            *("/api/runs", f"{API}/results", f"{API}/results/neurons/effects?sort=value", f"{API}/neurons?sort=score"),
            *(f"{API}/heuristics?criterion=raw", f"{API}/predictions?operator=%2B", f"{API}/circuit?operator=-"),
            *(page + query for page, query in neurons),
            *(f"{page}/activation_map{query}" for page, query in neurons),
        ],
        LIVE: [
            *(f"{API}/neurons/1/{neuron}/activation_map?operator=%2B" for neuron in range(200)),
            *(f"{API}/explanation?prompt={op1}%2B4" for op1 in range(36)),
        ],
    }


def check(load: Load) -> None:
    """Every request was answered; if not with what it asked for, with one sentence, and only because the model was busy."""
    assert load.lost == []
    assert {status for kind, status in load.statuses if kind != LIVE} == {200}
    assert {status for _, status in load.statuses} <= {200, 503}
    for body in load.refusals:
        assert json.loads(body) == {"error": "The model is busy with other requests; try again in a few seconds."}


def memory(process: int) -> float:
    """MB of memory that a process has in use."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1e3


def test_many_clients_for_a_moment(small_run: Path) -> None:
    with serving([small_run]) as address:
        load = Load(address, paths(Run(small_run)), pause=1)
        asyncio.run(load.run(clients=60, seconds=3))
    check(load)
    assert all(load.statuses[kind, 200] for kind in (STATIC, STORED, LIVE))


@pytest.mark.slow
def test_two_hundred_clients_for_a_minute(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Together they send 40 requests a second: each pauses for 5 seconds on average."""
    with serving_process(small_run) as (address, process):
        requests = paths(Run(small_run))
        for path in requests[STORED]:  # read and derive every table
            assert send(address, path).status == 200
        asyncio.run(Load(address, requests, pause=5).run(clients=200, seconds=15))
        before = memory(process)
        load = Load(address, requests, pause=5)
        asyncio.run(load.run(clients=200, seconds=60))
        growth = memory(process) - before
    check(load)
    with capsys.disabled():
        for kind, seconds in load.seconds.items():
            shares = ", ".join(f"{share:.0%} in {load.percentile(kind, share):.0f} ms" for share in (0.5, 0.95, 0.99))
            print(f"\n{kind}: {len(seconds)} replies; {shares}", end="")
        print(f"\nmemory: {before:.0f} MB, then {growth:+.0f} MB")
    assert load.percentile(STATIC, 0.99) <= MAX_MS
    assert load.percentile(STORED, 0.99) <= MAX_MS
    assert growth <= MAX_GROWTH
