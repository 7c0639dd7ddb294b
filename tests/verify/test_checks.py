"""How far a recomputed sample may be off, where that is more than float noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from arithscope.experiments.means import MeanActivations
from arithscope.heuristics.calibration import N_CLASSES, p_values
from arithscope.models.load import load
from arithscope.pipeline.registry import stage_named
from arithscope.pipeline.runner import run_stages
from arithscope.results.run import Run
from arithscope.utils.progress import Silent
from arithscope.verify.checks import STANDARD_ERRORS, TABLES, VerifyContext, share_error
from arithscope.verify.compare import Tally, noise_of
from arithscope.verify.sweeps import WHOLE_GRID
from arithscope.verify.verify import Verification
from tests.conftest import smaller

MAX_OPERAND = 40


@given(st.integers(1, 500), st.data())
def test_share_errors_are_wilson_intervals(n: int, data: st.DataObject) -> None:
    """Against scipy's, at the confidence of so many standard errors."""
    found = data.draw(st.integers(0, n))
    interval = binomtest(found, n).proportion_ci(2 * norm.cdf(STANDARD_ERRORS) - 1, method="wilson")
    share = found / n
    expected = max(interval.high - share, share - interval.low)
    assert share_error(np.array([share]), n)[0] == pytest.approx(expected, abs=1e-6)


def p_differences(stored: list[float], now: list[float], neurons: int) -> list[str]:
    """What is reported of direct heuristics with these p, the latter from the permutations of some neurons."""
    keys = {"operator": "+", "layer": 0, "neuron": range(len(now)), "heuristic": "result mod 2 = 0"}
    rows = pd.DataFrame({**keys, "direct": True, "p": now})
    tally, ctx = Tally(noise_of("float32")), cast(VerifyContext, None)  # which this tolerance does not use
    for part, noise in TABLES["classify.best"](rows, ctx, {"sampled_null": {"+": neurons}}):
        tally.rows("best", rows.assign(p=stored), part, ["operator", "layer", "neuron", "heuristic"], noise)
    return tally.differences


def test_p_from_the_permutations_of_a_sample_agrees() -> None:
    """A few neurons whose permutations reach large statistics may all be in the sample, or none: then p is a tail bound."""
    random = np.random.default_rng(0)
    null = random.exponential(size=(1000, 8)) + 40 * (random.random(1000) < 0.06)[:, None]
    statistic = np.array([1.0, 3.0, 10.0, 35.0])
    stored = np.minimum(N_CLASSES * p_values(statistic, null.ravel(), 3000), 1.0)
    extremes = []
    for _ in range(500):
        sample = null[random.permutation(1000)[:32]]
        now = np.minimum(N_CLASSES * p_values(statistic, sample.ravel(), 3000), 1.0)
        assert p_differences(stored.tolist(), now.tolist(), 32) == []
        extremes.append(now[-1])
    assert min(extremes) < 1e-30  # such samples were among them
    assert stored[-1] > 0.1


@pytest.mark.parametrize(("stored", "now"), [(1.0, 1e-20), (1e-20, 1.0), (0.9, 0.0), (0.02, 0.9)])
def test_wrong_p_are_noticed(stored: float, now: float) -> None:
    assert len(p_differences([stored], [now], 32)) == 1


def test_activations_without_variance_verify(tmp_path: Path) -> None:
    """With parallel attention and MLP, the first MLP sees nothing but "=" at the last position. The standard errors of its
    means are 0; they differ from those of a sample by rounding alone."""
    model = load("tiny-gptj")
    run_stages(model, smaller(("+",), MAX_OPERAND), tmp_path, ["means"], Silent())
    run = Run(tmp_path)
    run.__dict__["model"] = model  # loaded already
    stored = run[MeanActivations]
    assert len(stored.p_answer) > WHOLE_GRID  # so a sample is compared
    assert Verification(run, 0).check_stage(stage_named("means")).text.startswith("agrees")
    changed = stored.neurons.copy()
    changed[0, -1] += 0.01
    run._results.add(replace(stored, neurons=changed))
    assert "DIFFERS: mean neurons" in Verification(run, 0).check_stage(stage_named("means")).text
