"""What the circuit's heads do: where they look, and whether what they find there is that token's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common.ablation import (
    MEASURES,
    Asked,
    Baseline,
    Judging,
    baselines,
    circuit_scores,
    mean_ablation,
    score_reducer,
    scores_by_prompts,
)
from arithscope.experiments.common.result import Result, mean_entry
from arithscope.experiments.common.samples import SampleSizes, batches, splits
from arithscope.experiments.localize import component_name
from arithscope.experiments.means import MeanActivations
from arithscope.models.hooks import capturing, cutting, editing
from arithscope.models.model import Model
from arithscope.prompts import Prompts, random_source
from arithscope.utils.executor import LOCAL, Executor
from arithscope.utils.progress import Advance, Progress

BEFORE, AFTER, CHANGE = "before", "after", "change"


@dataclass(frozen=True, repr=False)
class Heads(Result):
    """roles: every head of every operator's circuit. Its role is the position that gets most of its attention from the
    last position, `share` that part of it. `acts_at` is where patching it has the largest effect, `reads` the position
    that gets most of its attention from there (the same as the role, for a head that acts at the last position).
    patterns: for each row of `roles` the mean attention over evaluation prompts, queries × keys.
    isolation: the circuit's measures `before` and `after` the attended position is cut off, in all layers below the head,
    from the prompt's earlier tokens, and the `change` of its faithfulness.
    positions: the names of the positions, in order."""

    roles: pd.DataFrame  # operator, layer, head, shared, role, share, acts_at, reads, reads_share
    patterns: NDArray[np.float32]
    isolation: pd.DataFrame  # operator, layer, head, when, measure, value, low, high, n
    positions: list[str]

    def top_rows(self, most: int) -> pd.DataFrame:
        """At most so many rows of `roles`, all or none of each head: heads shared by all operators before others, and then
        those that rank higher in some operator's circuit. Rows keep their order; their index is that of `patterns`."""
        roles = self.roles
        ranked = roles.assign(rank=roles.groupby("operator").cumcount())
        heads = ranked.groupby(["layer", "head"]).agg(
            shared=("shared", "any"), rank=("rank", "min"), rows=("rank", "size")
        )
        heads = heads.sort_values(["shared", "rank"], ascending=[False, True], kind="stable")
        chosen = set(heads.index[heads["rows"].cumsum() <= most])
        keep = [head in chosen for head in zip(roles.layer, roles["head"], strict=True)]
        return roles[np.array(keep, dtype=np.bool_)]

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator in self.roles.operator.unique():
            roles = self.roles[self.roles.operator == operator]
            named: dict[str, Any] = {}
            for role in [p for p in self.positions if p in set(roles.role)]:
                rows = roles[roles.role == role]
                named[f"attend_to_{role}"] = [component_name(*h) for h in zip(rows.layer, rows["head"], strict=True)]
            changes = self.isolation[(self.isolation.operator == operator) & (self.isolation.when == CHANGE)]
            if changes.value.notna().any():
                worst = changes.iloc[int(changes.value.argmin())]
                named["worst_isolation"] = {
                    **mean_entry(worst),
                    "component": component_name(worst.layer, worst["head"]),
                }
            out[str(operator)] = named
        return out


def heads(
    model: Model,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    sizes: SampleSizes,
    seed: int,
    judging: Judging,
    progress: Progress,
    executor: Executor = LOCAL,
) -> Heads:
    """Attention patterns, roles and the isolation ablation of each operator's circuit, on its evaluation prompts."""
    s, op1 = model.sizes, model.positions.op1
    samples = {operator: split.evaluation for operator, split in splits(accuracy, sizes, seed).items()}
    chosen = {operator: circuit.chosen(operator) for operator in samples}
    keeps = {operator: circuit.keeps(operator, s.layers, s.heads).numpy() for operator in samples}
    isolation = []
    with progress.task("heads", len(samples) + sum(map(len, chosen.values()))) as advance:
        looked = [(prompts, chosen[operator]) for operator, prompts in samples.items()]
        patterns = dict(zip(samples, executor.map(attention_patterns, model, looked, advance), strict=True))
        asked: list[Asked] = [
            ((means, keeps[operator], {}, None, judging), prompts) for operator, prompts in samples.items()
        ]
        before = dict(zip(samples, scores_by_prompts(executor, circuit_scores, model, asked), strict=True))
        scales = dict(zip(samples, baselines(executor, model, means, list(samples.values()), judging), strict=True))
        # Of each head its operator, its layer and what it attends to: the ablation is the same for heads that look alike.
        attended = {operator: found[:, -1].argmax(-1).tolist() for operator, found in patterns.items()}
        views = {o: [(o, i, at) for (i, _), at in zip(chosen[o], attended[o], strict=True)] for o in samples}
        alike = Counter(view for of_operator in views.values() for view in of_operator)
        cut = [(o, layer, at) for o, layer, at in alike if layer > 0 and at > op1]  # else there is nothing to cut
        advance(sum(n for view, n in alike.items() if view not in cut))
        units = [(means, keeps[o], judging, layer, at, samples[o], alike[o, layer, at]) for o, layer, at in cut]
        isolated = dict(zip(cut, executor.map(_isolated_scores, model, units, advance), strict=True))
    for operator in samples:
        for (layer, head), view in zip(chosen[operator], views[operator], strict=True):
            random, [whole] = random_source(seed, "heads", operator, layer, head), before[operator]
            rows = isolation_rows(scales[operator], whole, isolated.get(view, whole), random)
            isolation.append(rows.assign(operator=operator, layer=layer, head=head))
    roles = [roles_of(model, circuit, operator, patterns[operator]) for operator in samples]
    columns = ["operator", "layer", "head", "when", "measure", "value", "low", "high", "n"]
    table = pd.concat(isolation, ignore_index=True)[columns] if isolation else pd.DataFrame(columns=columns)
    every = np.concatenate(list(patterns.values()))
    return Heads(pd.concat(roles, ignore_index=True), every, table, list(model.encoder.labels))


@torch.no_grad()
def attention_patterns(
    model: Model, prompts: Prompts, heads: Sequence[tuple[int, int]], *, advance: Advance
) -> NDArray[np.float32]:
    """A unit: the mean attention of each head over the prompts, [heads, queries, keys]."""
    length = model.encoder.length
    total = np.zeros((len(heads), length, length))
    layers = sorted({layer for layer, _ in heads})
    for _, batch in batches(model, prompts, 0):
        with capturing(model, attention=layers) as seen:
            model.logits(model.encode(batch))
        for i, (layer, head) in enumerate(heads):
            total[i] += seen.attention[layer][:, head].double().sum(0).cpu().numpy()
    advance(1)
    return (total / max(1, len(prompts))).astype(np.float32)


def roles_of(model: Model, circuit: Circuit, operator: str, patterns: NDArray[np.float32]) -> pd.DataFrame:
    table = circuit.kept(operator)
    labels, named = np.array(model.encoder.labels), model.positions.named()
    shared, each = set(circuit.shared()), np.arange(len(patterns))
    from_last = patterns[:, -1]
    from_where_it_acts = patterns[each, [named[p] for p in table.position]]
    return pd.DataFrame(
        {
            "operator": operator,
            "layer": table.layer.to_numpy(),
            "head": table["head"].to_numpy(),
            "shared": [head in shared for head in circuit.chosen(operator)],
            "role": labels[from_last.argmax(-1)],
            "share": from_last.max(-1),
            "acts_at": table.position.to_numpy(),
            "reads": labels[from_where_it_acts.argmax(-1)],
            "reads_share": from_where_it_acts.max(-1),
        }
    )


@torch.no_grad()
def _isolated_scores(
    model: Model,
    means: MeanActivations,
    kept: NDArray[np.bool_],
    judging: Judging,
    layer: int,
    attended: int,
    prompts: Prompts,
    heads: int,
    *,
    advance: Advance,
) -> NDArray[np.float64]:
    """A unit: scores of the circuit while, in all layers below, the attended position sees nothing of the prompt but itself;
    `heads` is how many heads that is for. What precedes op1 (BOS, examples) is the same for all prompts and stays visible: it
    tells nothing of the prompt, and many heads rest on it."""
    sources = range(model.positions.op1, attended)
    edits = mean_ablation(model, means.on(model.device), torch.from_numpy(kept))
    found = []
    for _, batch in batches(model, prompts, 0):
        reduce = score_reducer(model, batch, judging, lambda n: None)
        with editing(model, edits, len(batch)), cutting(model, range(layer), attended, sources):
            logits = model.logits(model.encode(batch))
        found.append(reduce(logits, logits[None])[0].cpu())
    advance(heads)
    return torch.cat(found).double().numpy()


def isolation_rows(
    scale: Baseline, before: NDArray[np.float64], after: NDArray[np.float64], random: np.random.Generator
) -> pd.DataFrame:
    both = scale.measure(np.stack([before, after]), random)
    rows = [
        {"when": when, "measure": measure, **asdict(means[measure])}
        for when, means in zip((BEFORE, AFTER), both, strict=True)
        for measure in MEASURES
    ]
    rows.append({"when": CHANGE, "measure": "faithfulness", **asdict(scale.change(before, after, random))})
    return pd.DataFrame(rows)
