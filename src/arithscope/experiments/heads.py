"""What the circuit's heads do: where they look, and whether what they find there is that token's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.ablation import (
    MEASURES,
    Judging,
    Yardstick,
    ablated_scores,
    mean_ablation,
    score_reducer,
    yardstick,
)
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.localize import component_name
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.result import Result, mean_entry
from arithscope.experiments.samples import SampleSizes, batches, splits
from arithscope.progress import Progress
from arithscope.prompts import Prompts, random_source
from arithscope.subject.edits import Edit, capturing, cutting, editing
from arithscope.subject.subject import Subject

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

    def foremost(self, most: int) -> pd.DataFrame:
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
    subject: Subject,
    accuracy: Accuracy,
    means: MeanActivations,
    circuit: Circuit,
    sizes: SampleSizes,
    seed: int,
    judging: Judging,
    progress: Progress,
) -> Heads:
    """Attention patterns, roles and the isolation ablation of each operator's circuit, on its evaluation prompts."""
    samples = {operator: split.evaluation for operator, split in splits(accuracy, sizes, seed).items()}
    mean_values = means.on(subject.device)
    roles, patterns, isolation = [], [], []
    with progress.task("heads", sum(len(circuit.chosen(o)) for o in samples)) as advance:
        for operator, prompts in samples.items():
            chosen = circuit.chosen(operator)
            found = attention_patterns(subject, prompts, chosen)
            patterns.append(found)
            roles.append(_roles(subject, circuit, operator, found))
            keep = circuit.keeps(operator, subject.sizes.layers, subject.sizes.heads)
            edits = mean_ablation(subject, mean_values, keep)
            scale = yardstick(subject, mean_values, prompts, judging)
            before = ablated_scores(subject, prompts, edits, judging)[0]
            isolated: dict[tuple[int, int], NDArray[np.float64]] = {}  # the same for heads of a layer that look alike
            for (layer, head), attended in zip(chosen, found[:, -1].argmax(-1).tolist(), strict=True):
                if (layer, attended) not in isolated:
                    after = _isolated_scores(subject, prompts, edits, layer, attended, judging)
                    isolated[layer, attended] = before if after is None else after
                random = random_source(seed, "heads", operator, layer, head)
                rows = _compare(scale, before, isolated[layer, attended], random)
                isolation.append(rows.assign(operator=operator, layer=layer, head=head))
                advance(1)
    columns = ["operator", "layer", "head", "when", "measure", "value", "low", "high", "n"]
    table = pd.concat(isolation, ignore_index=True)[columns] if isolation else pd.DataFrame(columns=columns)
    return Heads(pd.concat(roles, ignore_index=True), np.concatenate(patterns), table, list(subject.encoder.labels))


@torch.no_grad()
def attention_patterns(subject: Subject, prompts: Prompts, heads: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """The mean attention of each head over the prompts: [heads, queries, keys]."""
    length = subject.encoder.length
    total = np.zeros((len(heads), length, length))
    layers = sorted({layer for layer, _ in heads})
    for _, batch in batches(subject, prompts, 0):
        with capturing(subject, attention=layers) as seen:
            subject.logits(subject.encode(batch))
        for i, (layer, head) in enumerate(heads):
            total[i] += seen.attention[layer][:, head].double().sum(0).cpu().numpy()
    return (total / max(1, len(prompts))).astype(np.float32)


def _roles(subject: Subject, circuit: Circuit, operator: str, patterns: NDArray[np.float32]) -> pd.DataFrame:
    table = circuit.kept(operator)
    labels, named = np.array(subject.encoder.labels), subject.positions.named()
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
    subject: Subject, prompts: Prompts, edits: Sequence[Edit], layer: int, attended: int, judging: Judging
) -> NDArray[np.float64] | None:
    """Scores of the circuit while, in all layers below, the attended position sees nothing of the prompt but itself; None
    if there is nothing to cut. What precedes op1 (BOS, examples) is the same for all prompts and stays visible: it tells
    nothing of the prompt, and many heads rest on it."""
    sources = range(subject.positions.op1, attended)
    if layer == 0 or not sources:
        return None
    found = []
    for _, batch in batches(subject, prompts, 0):
        reduce = score_reducer(subject, batch, judging, lambda n: None)
        with editing(subject, edits, len(batch)), cutting(subject, range(layer), attended, sources):
            logits = subject.logits(subject.encode(batch))
        found.append(reduce(logits, logits[None])[0].cpu())
    return torch.cat(found).double().numpy()


def _compare(
    scale: Yardstick, before: NDArray[np.float64], after: NDArray[np.float64], random: np.random.Generator
) -> pd.DataFrame:
    both = scale.measure(np.stack([before, after]), random)
    rows = [
        {"when": when, "measure": measure, **asdict(means[measure])}
        for when, means in zip((BEFORE, AFTER), both, strict=True)
        for measure in MEASURES
    ]
    rows.append({"when": CHANGE, "measure": "faithfulness", **asdict(scale.change(before, after, random))})
    return pd.DataFrame(rows)
