"""What the embedded models aim at beside what runs of the paper preset find, read from run folders.

python -m arithscope run MODEL --preset paper --out RUN
python -m benchmarks.aims RUN … --record NAME

Runs of one model whose settings differ in nothing but the seed are one study. There is a table for the first run of each
study, with intervals, and one of all studies side by side: for + and −, the mean over the seeds and their range.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arithscope.experiments.answer_layers import AnswerLayers
from arithscope.experiments.classify import CRITERIA
from arithscope.experiments.prompt_knockout import OTHER_HEURISTICS, OWN, REPORTED
from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import RunFolder
from arithscope.prompts import OPERATORS
from arithscope.report.formatting import NOTHING, number
from benchmarks.key_numbers import print_and_record, text_of
from benchmarks.record import Table, record_option

LOST = REPORTED[-1]  # neurons ablated per layer
ALL = "all"  # key of the table of all studies
Entry = Any  # a mean with its interval, as summaries hold it, or a number


def entry(run: RunFolder, stage: str, operator: str, measure: str) -> Entry:
    return run.summary.get(stage, {}).get(operator, {}).get(measure)


def of(stage: str, measure: str) -> Callable[[RunFolder, str], Entry]:
    return lambda run, operator: entry(run, stage, operator, measure)


def share_of_heads(run: RunFolder, operator: str) -> Entry:
    sizes = run.manifest["model"]["sizes"]
    heads = entry(run, "circuit", operator, "heads")
    return None if heads is None else heads / (sizes["layers"] * sizes["heads"])


def without_answer_layers(run: RunFolder, operator: str) -> Entry:
    """Accuracy on the evaluation prompts, all heads kept, with the MLPs of the layers studied at their means."""
    first = entry(run, "neurons", operator, "first_layer")
    return None if first is None else run.read(AnswerLayers).left(operator, first)


def reliability(run: RunFolder, operator: str) -> Entry:
    return entry(run, "neurons", operator, f"split_half_by_{entry(run, 'topk', operator, 'ranked_by')}")


@dataclass(frozen=True)
class Aim:
    what: str
    value: Callable[[RunFolder, str], Entry]
    least: float | None = None
    most: float | None = None

    def wanted(self) -> str:
        bounds = [
            f"≥ {number(self.least)}" if self.least is not None else "",
            f"≤ {number(self.most)}" if self.most is not None else "",
        ]
        return " ".join(filter(None, bounds))

    def reached(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


AIMS = [
    Aim("first layer studied", of("neurons", "first_layer")),
    Aim("top neurons classified, calibrated", of("classify", "calibrated_share"), least=0.8),
    Aim("variance of top neurons' activations that rules cover", of("classify", "coverage_calibrated"), least=0.4),
    Aim("share of a layer's neurons kept (k)", of("topk", "share_of_neurons"), most=0.2),
    Aim("accuracy with calibrated heuristic neurons alone", of("bag", "calibrated_accuracy"), least=0.7),
    Aim("share of heads in the circuit", share_of_heads, most=0.5),
    Aim("accuracy with the answer layers' MLPs at their means", without_answer_layers, most=0.1),
    Aim("reliability of the ranking (two halves of the prompts)", reliability, least=0.8),
    Aim("accuracy", of("accuracy", "accuracy"), least=0.9, most=0.99),
    Aim("mean P(answer), correct prompts", of("accuracy", "p_answer_correct"), most=0.95),
    *(
        aim
        for criterion in CRITERIA
        for aim in (
            Aim(f"accuracy without {LOST} of a prompt's own neurons a layer, {criterion}",
                of("prompt_knockout", f"{criterion}_{OWN}_{LOST}"), most=0.6),
            Aim(f"… {LOST} of other heuristics' neurons",
                of("prompt_knockout", f"{criterion}_{OTHER_HEURISTICS}_{LOST}"), least=0.9),
        )
    ),
]  # fmt: skip


def shown(aim: Aim, found: Entry) -> str | None:
    """The number with its interval; in bold if it misses the aim."""
    value = plain(found)
    if value is None:
        return None
    return text_of(found) if aim.reached(value) else f"**{text_of(found)}**"


def table(run: RunFolder) -> Table:
    rows = [[aim.what, aim.wanted(), *(shown(aim, aim.value(run, o)) for o in OPERATORS)] for aim in AIMS]
    return Table(["", "aim for + and −", *(SIGNS[o] for o in OPERATORS)], rows)


def studies(runs: Mapping[str, RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs of one model whose settings differ in nothing but the seed, by the name of the first."""
    found: dict[tuple[str, str], tuple[str, list[RunFolder]]] = {}
    for name, run in runs.items():
        settings = {key: value for key, value in run.manifest["configuration"].items() if key != "seed"}
        key = run.manifest["model"]["weight_hash"], json.dumps(settings, sort_keys=True)
        found.setdefault(key, (name, []))[1].append(run)
    return dict(found.values())


def together(compared: Mapping[str, list[RunFolder]]) -> Table:
    """The aims, and for each study its numbers for + and −."""
    rows = []
    for aim in AIMS:
        pairs = [
            [over_seeds(aim, [plain(aim.value(run, o)) for run in runs]) for o in "+-"] for runs in compared.values()
        ]
        rows.append([aim.what, aim.wanted(), *map(", ".join, pairs)])
    return Table(["+, −", "aim", *compared], rows)


def over_seeds(aim: Aim, found: list[Entry]) -> str:
    """The mean over the runs that have the number, and in brackets the lowest and the highest; of whole numbers these alone."""
    values = [value for value in found if value is not None]
    if not values:
        return NOTHING
    ends = "–".join(dict.fromkeys(str(text_of(value)) for value in (min(values), max(values))))
    if all(isinstance(value, int) for value in values):
        return ends
    mean = shown(aim, sum(values) / len(values))
    return f"{mean} ({ends})" if "–" in ends else f"{mean}"


def plain(found: Entry) -> Entry:
    """A mean without its interval."""
    return found["value"] if isinstance(found, dict) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders of the paper preset")
    record_option(parser)
    arguments = parser.parse_args()
    runs = {path.name: RunFolder(path) for path in arguments.runs}
    compared = studies(runs)
    tables = {name: table(first) for name, (first, *_) in compared.items()} | {ALL: together(compared)}
    print_and_record(tables, [*runs.values()], arguments.record)


if __name__ == "__main__":
    main()
