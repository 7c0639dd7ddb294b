"""What the circuit's heads do: where they attend, and whether they need more than the attended token itself (Appendix B).

1. Average each head's attention pattern over the evaluation prompts.
2. A head attends to the position that gets most of its attention from the last position.
3. Isolation: in all layers below the head, cut the attention from that position to the prompt's earlier tokens, and measure the
   circuit's faithfulness again. If it does not drop, the head needs only what the token itself holds.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.common import ablation, schema
from arithscope.experiments.common.result import Result, mean_entry, mean_rows
from arithscope.experiments.common.samples import batches, evaluation_prompts
from arithscope.experiments.common.stage import Context, replay_memory, stage
from arithscope.experiments.localize import component_name
from arithscope.experiments.means import MeanActivations, Singles
from arithscope.models.hooks import blocking_attention, capturing, editing
from arithscope.models.model import Model
from arithscope.prompts import Prompts
from arithscope.stats.intervals import Floats
from arithscope.utils.progress import Advance

BEFORE, AFTER, CHANGE = "before", "after", "change"
VERIFIED_HEADS = 4  # heads of each operator that `verify` isolates again


@dataclass(frozen=True, repr=False)
class Heads(Result):
    """Attention of the circuit's heads, and what isolating the attended position does."""

    roles: pd.DataFrame = schema.table(
        "Every head of every operator's circuit, by descending effect.",
        *schema.HEAD_KEY,
        schema.boolean("shared", "whether the head is in the circuit of every operator"),
        schema.text("attends_to", "position with most of its attention from the last position"),
        schema.number("attention", "attention on that position"),
        schema.text("acts_at", "position at which patching the head has its largest effect"),
        schema.text("reads", "position with most of its attention from there"),
        schema.number("reads_attention", "attention on that position"),
    )
    attention: Singles = schema.array("mean attention pattern per row of `roles`", "float32", "heads, queries, keys")
    isolation: pd.DataFrame = schema.table(
        "Measures of the circuit before and after the attended position is cut off from the prompt's earlier tokens.",
        *schema.HEAD_KEY,
        schema.text("when", "`before`, `after`, or `change` (of faithfulness, prompt by prompt)", key=True),
        *schema.MEASURED,
    )
    positions: list[str] = schema.value("names of the positions, in order")

    def top_rows(self, size: int) -> pd.DataFrame:
        """At most `size` rows of `roles`, in order, with their index into `attention`.

        All rows of a head are chosen or none. Heads shared by all operators come first, then heads by their best rank in any
        operator's circuit.
        """
        roles = self.roles
        by_head = roles.assign(rank=roles.groupby("operator").cumcount()).groupby(["layer", "head"])
        heads = by_head.agg(shared=("shared", "any"), rank=("rank", "min"), rows=("rank", "size"))
        heads = heads.sort_values(["shared", "rank"], ascending=[False, True], kind="stable")
        chosen = heads.index[heads["rows"].cumsum() <= size]
        return roles[pd.MultiIndex.from_frame(roles[["layer", "head"]]).isin(chosen)]

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for operator, roles in self.roles.groupby("operator", sort=False):
            entries: dict[str, Any] = {}
            for position in [p for p in self.positions if p in set(roles.attends_to)]:
                rows = roles[roles.attends_to == position]
                entries[f"attend_to_{position}"] = [*map(component_name, rows.layer, rows["head"])]
            changes = self.isolation[(self.isolation.operator == operator) & (self.isolation.when == CHANGE)]
            if changes.value.notna().any():
                worst = changes.iloc[int(changes.value.argmin())]
                component = component_name(worst.layer, worst["head"])
                entries["worst_isolation"] = {**mean_entry(worst), "component": component}
            out[str(operator)] = entries
        return out


@stage(needs=(Accuracy, MeanActivations, Circuit), reads=("sizes", "seed"), memory=replay_memory, paper="App. B")
def heads(ctx: Context) -> Heads:
    """Attention patterns of each operator's circuit, and isolation of the positions its heads attend to."""
    model, samples = ctx.model, evaluation_prompts(ctx)
    circuit, means = ctx.results[Circuit], ctx.results[MeanActivations]
    chosen = {operator: circuit.chosen(operator) for operator in samples}
    keeps = {o: circuit.keeps(o, model.sizes.layers, model.sizes.heads) for o in samples}
    with ctx.progress.task("heads", len(samples) + sum(map(len, chosen.values()))) as advance:
        patterns = ctx.map(attention_patterns, [(samples[o], chosen[o]) for o in samples], advance)
        attention = ctx.confirmed("attention", np.concatenate(patterns))
        ends = np.cumsum([*map(len, chosen.values())])[:-1]
        by_operator = dict(zip(samples, np.split(attention, ends), strict=True))
        tasks: list[ablation.Task] = [((means, keeps[o], {}, None), samples[o]) for o in samples]
        before = dict(zip(samples, ablation.scores_of_tasks(ctx, ablation.circuit_scores, tasks), strict=True))
        baseline = ablation.baselines(ctx, samples)
        isolated = []  # operator, layer, head and attended position
        for o in samples:
            for i in ctx.sample(len(chosen[o]), VERIFIED_HEADS, "heads", o):
                isolated.append((o, *chosen[o][i], int(by_operator[o][i, -1].argmax())))
        # Heads with the same operator, layer and attended position share a run.
        counts = Counter((o, layer, attended) for o, layer, _, attended in isolated)
        runs = [key for key in counts if key[1] > 0 and key[2] > model.positions.op1]  # else there is nothing to cut
        advance(sum(n for key, n in counts.items() if key not in runs))
        units = [(means, keeps[o], layer, at, samples[o], counts[o, layer, at]) for o, layer, at in runs]
        after = dict(zip(runs, ctx.map(isolated_scores, units, advance), strict=True))
    rows: list[dict[str, Any]] = []
    for operator, layer, head, attended in isolated:
        [whole] = before[operator]
        cut_off = after.get((operator, layer, attended), whole)
        both = baseline[operator].measure(np.stack([whole, cut_off]))
        change = {"faithfulness": baseline[operator].change(whole, cut_off)}
        for when, each in zip((BEFORE, AFTER, CHANGE), (*both, change), strict=True):
            rows += mean_rows(each, operator=operator, layer=layer, head=head, when=when)
    spans = {operator: each.smallest_span for operator, each in baseline.items()}
    isolation = ctx.confirmed("isolation", Heads.frame("isolation", rows), smallest_span=spans)
    roles = [_role_table(model, circuit, o, by_operator[o]) for o in samples]
    return Heads(pd.concat(roles, ignore_index=True), attention, isolation, list(model.encoder.labels))


@torch.no_grad()
def attention_patterns(model: Model, prompts: Prompts, heads: list[tuple[int, int]], *, advance: Advance) -> Singles:
    """Unit of work: mean attention pattern of each head over the prompts, [heads, queries, keys]."""
    total = np.zeros((len(heads), model.encoder.length, model.encoder.length))
    for _, batch in batches(model, prompts, 0):
        with capturing(model, attention=sorted({layer for layer, _ in heads})) as seen:
            model.logits(model.encode(batch))
        for i, (layer, head) in enumerate(heads):
            total[i] += seen.attention[layer][:, head].double().sum(0).cpu().numpy()
    advance(1)
    return (total / max(1, len(prompts))).astype(np.float32)


@torch.no_grad()
def isolated_scores(
    model: Model,
    means: MeanActivations,
    kept: NDArray[np.bool_],
    layer: int,
    attended: int,
    prompts: Prompts,
    n_heads: int,  # that share this run
    *,
    advance: Advance,
) -> Floats:
    """Unit of work: scores of the circuit when the attended position sees no other token of the prompt in the layers below."""
    # Tokens before op1 (BOS, examples) stay visible: they are the same for all prompts, and attention sinks for many heads.
    sources = range(model.positions.op1, attended)
    edits, scores = ablation.mean_ablation(model, means.on(model.device), torch.from_numpy(kept)), []
    for _, batch in batches(model, prompts, 0):
        reduce = ablation.score_reducer(model, batch, lambda n: None)
        with editing(model, edits, len(batch)), blocking_attention(model, range(layer), attended, sources):
            logits = model.logits(model.encode(batch))
        scores.append(reduce(logits, logits[None])[0].cpu())
    advance(n_heads)
    return torch.cat(scores).double().numpy()


def _role_table(model: Model, circuit: Circuit, operator: str, attention: Singles) -> pd.DataFrame:
    table = circuit.kept(operator)
    labels, named, shared = np.array(model.encoder.labels), model.positions.named(), set(circuit.shared())
    from_last = attention[:, -1]
    from_acting = attention[np.arange(len(attention)), [named[p] for p in table.position]]
    return table[["operator", "layer", "head"]].assign(
        shared=[head in shared for head in circuit.chosen(operator)],
        attends_to=labels[from_last.argmax(-1)],
        attention=from_last.max(-1),
        acts_at=table.position,
        reads=labels[from_acting.argmax(-1)],
        reads_attention=from_acting.max(-1),
    )
