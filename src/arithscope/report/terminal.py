"""Output for the terminal: tables of a run's summary, the explanation of a prompt, and one neuron."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from arithscope.experiments.common.explanation import HEURISTIC_NEURONS, Answer, Explanation
from arithscope.experiments.neurons import neuron_name
from arithscope.experiments.whole_answers import WholeAnswers
from arithscope.heuristics.kinds import kind_name
from arithscope.pipeline.registry import stage_of
from arithscope.prompts import Stratum, parse_in_stratum
from arithscope.report.formatting import NOTHING, short_number
from arithscope.report.layout_tables import answer_measures
from arithscope.report.layouts import Studied
from arithscope.results.neuron import Neuron
from arithscope.results.run import Run

WIDEST = 8  # characters of both ends of an interval, if on one line; so five columns fit into 80 characters
MOST_HEURISTICS, MOST_NEURONS, MOST_OF_NEURON = 12, 15, 15  # rows of a prompt's tables, and heuristics of a neuron
BAR = 24  # characters of the longest bar
SHADES = " ·:-=+*#%@"
OUTSIDE = "_"  # a part of a map without prompts
WIDTH, HEIGHT = 50, 25  # characters of a map; a character is about twice as high as wide
COLUMNS = ["heuristic", "sign", "size", "score", "chance", "corrected", "expected"]  # of a neuron's heuristics
COLUMNS += ["neg_log10_p_hypergeom", "fdr", "calibrated"]
HEADERS = {
    "sign": "±",
    "chance": "chan-\nce",
    "corrected": "cor-\nrec-\nted",
    "expected": "ex-\npec-\nted",
}  # if not its name
HEADERS |= {"neg_log10_p_hypergeom": "−log₁₀\nhyper-\ngeom.", "fdr": "FDR", "calibrated": "cal."}


def summary_tables(summary: dict[str, Any]) -> Iterator[Table]:
    """One table per experiment of summary.json, with a column per operator."""
    return (measures_table(experiment, columns) for experiment, columns in summary.items())


def layout_table(studied: Studied, summary: Mapping[str, Any]) -> Table:
    """Whole answers of a layout and each of their steps, with a column per operator."""
    by_operator, names = summary[stage_of(WholeAnswers).name], answer_measures(studied)
    shown = by_operator if len(studied.operators) > 1 else {o: by_operator[o] for o in studied.operators}
    columns = {o: {names[m]: entry for m, entry in own.items() if m in names} for o, own in shown.items()}
    return measures_table(studied.part, columns)


def measures_table(title: str, columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column per operator or run, a row per measure: first plain values, then means, in groups below their sample sizes."""
    table = bare_table(title=title, title_justify="left")
    table.add_column("", min_width=13)
    for name in columns:
        table.add_column(name, overflow="fold")
    groups: dict[tuple[str, ...], list[str]] = {}  # measures by their sample sizes in each column
    for measure in dict.fromkeys(name for entries in columns.values() for name in entries):
        groups.setdefault(tuple(_sample_size(entries.get(measure)) for entries in columns.values()), []).append(measure)
    for sizes, measures in sorted(groups.items(), key=lambda group: any(group[0])):
        if any(sizes):
            table.add_row("n", *sizes)
        for measure in measures:
            table.add_row(measure.replace("_", " "), *(entry_text(e.get(measure)) for e in columns.values()))
    return table


def _sample_size(entry: Any) -> str:
    return f"{entry['n']:,}" if isinstance(entry, dict) and entry["n"] else ""


def bare_table(**options: Any) -> Table:
    """A table without lines, except one below its header."""
    return Table(**{"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), **options})


def entry_text(value: Any) -> str:
    """An entry of a summary: a mean with its interval below (and its component above), names, or a plain value."""
    if value is None or (isinstance(value, dict) and value["value"] is None):
        return NOTHING
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return short_number(value)
    if not isinstance(value, dict):
        return f"{value:,}" if isinstance(value, int) else str(value)
    component = f"{value['component']}\n" if "component" in value else ""
    if value["low"] is None:  # of a single value
        return f"{component}{short_number(value['value'])}"
    low, high = short_number(value["low"]), short_number(value["high"])
    interval = f"[{low},{high}]" if len(low) + len(high) <= WIDEST else f"[{low},\n {high}]"
    return f"{component}{short_number(value['value'])}\n{interval}"


def explanation_report(e: Explanation) -> Iterator[str | Table]:
    """The explanation of a prompt."""
    verdict = "correct" if e.answer.number == e.right else f"wrong: {e.right} has P = {e.answer.p_answer:.3f}"
    yield f"{e.prompt} {_prediction(e.answer)} ({verdict})"
    yield ""
    yield f"The logit of {e.right} is {e.logit:.2f}, the sum of"
    sums = accumulate(e.parts.values())
    yield _sum_table([""], [((name,), adds, total) for (name, adds), total in zip(e.parts.items(), sums, strict=True)])
    yield (
        f"{len(e.heuristics)} heuristics hold for this prompt and are matched by {len(e.neurons)} neurons ({e.criterion}). "
        "A neuron may match several. Contribution of each heuristic's neurons:"
    )
    rows = e.heuristics.assign(adds=e.heuristics.contribution.map("{:+.3f}".format))
    columns = ["heuristic", "neurons", "adds"]
    yield from _top_rows(_table(columns), rows[columns], MOST_HEURISTICS, _rounded)
    yield "By kind, each neuron counted once, for its best heuristic:"
    counts = e.kinds[["kind", "on", "neurons"]].itertuples(index=False)
    kinds = [(kind_name(kind, on), str(n)) for kind, on, n in counts]
    yield _sum_table(["kind", "neurons"], list(zip(kinds, e.kinds.contribution, e.kinds.running, strict=True)))
    names = [neuron_name(*n) for n in zip(e.neurons.layer, e.neurons.neuron, strict=True)]
    yield f"Its {HEURISTIC_NEURONS}: activation × logit of {e.right} in the value vector ÷ scale ({e.scale:.2f})"
    adds = e.neurons.contribution.map("{:+.3f}".format)
    rows = e.neurons.assign(neuron=names, logit=e.neurons.value_logit, adds=adds)
    columns = ["neuron", "activation", "logit", "adds", "heuristic", "score"]
    yield from _top_rows(_table(columns), rows[columns], MOST_NEURONS, _rounded)
    yield f"With these {e.ablated.neurons} neurons zero-ablated: {_ablated(e, e.ablated.answer)}"
    if e.ablated.control is None:
        yield "There is no control: some layers have too few other top neurons."
    else:
        yield f"With as many other top neurons of each layer ablated: {_ablated(e, e.ablated.control)}"


def steps_report(stratum: Stratum, by_step: Mapping[int, Explanation]) -> Iterator[str | Table]:
    """The explanation of each answer step of a prompt, below a line with the model's token at each of them. Tokens of steps
    that were not studied are the right ones."""
    first, tokens = next(iter(by_step.values())), []
    answer = parse_in_stratum(f"{first.op1}{first.operator}{first.op2}", [first.operator], stratum).answer
    for view in stratum.every_step():
        known = by_step.get(view.step)
        own = view.asked.text(int(view.asked.of(answer)[0])) if known is None else _written(view, known.answer)
        tokens.append(own)
    studied = ", ".join(stratum.at_step(step).step_name for step in by_step)
    yield f"{first.op1} {first.operator} {first.op2} = {'·'.join(tokens)}: {studied}"
    for step, each in by_step.items():
        yield ""
        yield f"Answer step {step} of {stratum.steps}, {stratum.at_step(step).step_name}"
        yield from explanation_report(each)


def _written(stratum: Stratum, answer: Answer) -> str:
    """The model's token at a step."""
    return answer.token.strip() if answer.number is None else stratum.asked.text(answer.number)


def _prediction(answer: Answer) -> str:
    token = repr(answer.token) if answer.number is None else str(answer.number)
    return f"{token} with P = {answer.probability:.3f}"


def _ablated(e: Explanation, answer: Answer) -> str:
    return f"{e.prompt} {_prediction(answer)}, P({e.right}) = {answer.p_answer:.3f}"


def _table(header: Sequence[str]) -> Table:
    table = bare_table()
    for name in header:
        table.add_column(name, no_wrap=True, justify="left" if name in ("", "kind", "heuristic", "neuron") else "right")
    return table


def _sum_table(header: Sequence[str], rows: Sequence[tuple[Sequence[str], float, float]]) -> Table:
    """For each row its names, what it adds, the sum so far, and a bar."""
    table = _table([*header, "adds", "sum", ""])
    longest = max((abs(adds) for _, adds, _ in rows), default=0.0)
    for names, adds, total in rows:
        bar = ("▇" if adds >= 0 else "░") * round(BAR * abs(adds) / max(longest, 1e-30))
        table.add_row(*names, f"{adds:+.3f}", f"{total:.2f}", bar)
    return table


def _top_rows(table: Table, rows: pd.DataFrame, most: int, text: Callable[[Any], str]) -> Iterator[str | Table]:
    """The table filled with the first rows, and how many more there are."""
    for row in rows.head(most).to_dict("split")["data"]:
        table.add_row(*map(text, row))
    yield table
    if len(rows) > most:
        yield f"and {len(rows) - most} more"


def _rounded(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def neuron_report(run: Run, layer: int, neuron: int, operator: str) -> Iterator[str | Table]:
    """A neuron of a run: effect and rank, activation map, tokens, heuristics."""
    info = run.neuron(layer, neuron, operator)
    yield f"{info.name} of {run.name}, operator {operator}"
    for row in info.effects.to_dict("records"):
        yield (
            f"effect by {str(row['measure']).replace('_', ' ')}: {row['value']:.4g} [{row['low']:.4g}, {row['high']:.4g}], "
            f"median {row['median']:.4g}, rank {row['rank']} of {row['of']} in its layer ({row['n']} prompts, {row['method']})"
        )
    if "patterns" not in run.stages:
        yield "The run has no stage patterns, so there is no activation map."
        return
    if info.activation_map is None:
        yield f"It is not among the top {run.topk.k[operator]} neurons of its layer, so there is no activation map."
        return
    p = info.activation_map
    a, share = p.activations, p.variance_explained
    outside = f"; {OUTSIDE} is not in this layout" if np.isnan(a).any() else ""
    ends = f"{np.nanmin(a):.3g} (blank) to {np.nanmax(a):.3g} ({SHADES[-1]})"
    yield f"activation from {ends}, op1 downwards, op2 to the right{outside}:"
    yield from shaded(a)
    yield (
        f"variance explained by op1 {share['op1']:.0%}, by op2 {share['op2']:.0%}, by the result {share['result']:.0%}; "
        f"correlation with its value vector's logit of the answer {p.alignment:.2f}: {'direct' if p.direct else 'indirect'}"
    )
    yield f"numbers it promotes most: {' '.join(map(str, p.tokens))}"
    yield from _heuristics(info)


def shaded(values: NDArray[np.float32]) -> list[str]:
    """A map in characters, averaged down to fit a terminal; shades run from the 2nd to the 98th percentile. A block of the map
    has a shade if any of it has a value."""
    height, width = (min(n, most) for n, most in zip(values.shape, (HEIGHT, WIDTH), strict=True))
    known, filled = ~np.isnan(values), np.nan_to_num(values)
    sums, counts = (_block_sums(x, height, width) for x in (filled, known))
    small = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    low, high = np.nanquantile(small, [0.02, 0.98])
    shade = ((small - low) / max(high - low, 1e-30) * len(SHADES)).clip(0, len(SHADES) - 1)
    lines = [[OUTSIDE if np.isnan(i) else SHADES[int(i)] for i in line] for line in shade]
    return [f"  |{''.join(line)}|" for line in lines]


def _block_sums(values: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    """Sums over blocks of a map, [height, width]."""
    rows = np.stack([part.sum(0, dtype=np.float64) for part in np.array_split(values, height)])
    return np.stack([part.sum(1) for part in np.array_split(rows, width, axis=1)], axis=1)


def _heuristics(neuron: Neuron) -> Iterator[str | Table]:
    rows, explained = neuron.heuristics, neuron.coverage
    if not explained:
        yield "The run has no stage classify, so there are no heuristics."
        return
    yield (
        f"{len(rows)} heuristics match, {int(rows.calibrated.sum())} of them after calibration; together they explain "
        f"{explained['raw']:.0%} ({explained['calibrated']:.0%}) of the variance of the activation map"
    )
    if rows.empty:
        rows = neuron.best
        yield "best heuristic of each kind, none of them a match:"
    table = bare_table(padding=0)
    for column in COLUMNS:
        table.add_column(HEADERS.get(column, column), no_wrap=column != "heuristic")  # numbers stay whole
    rows = rows[COLUMNS].assign(sign=rows.sign.map({1: "+", -1: "−"}))
    yield from _top_rows(table, rows, MOST_OF_NEURON, _short)


def _short(value: Any) -> str:
    """A value in at most six characters: .77, 1.00, 12.3, 12,300, .004, 3e-04; yes or nothing."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if not isinstance(value, float):
        return str(value)
    if value >= 10:
        return short_number(value)
    if 0 < value < 0.01:
        return f"{value:.3f}"[1:] if value >= 0.0005 else f"{value:.0e}"
    return f"{value:.2f}".replace("0.", ".", 1)
