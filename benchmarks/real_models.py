"""What runs of real models found, read from the run folders of their layouts: tables, and with --keep the whole summaries.

python -m arithscope run MODEL --digits 2 --out RUNS
python -m benchmarks.real_models RUNS/LAYOUT … [--keep FOLDER] [--record NAME]

FOLDER gets a JSON file for each layout: the model, the settings, the seconds of each stage, and the summaries of the layout
and of its answer steps.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arithscope.experiments.common.key_numbers import KEY_NUMBERS, key_number_entries
from arithscope.figures.style import SIGNS
from arithscope.pipeline.store import plain
from arithscope.report.formatting import as_mean, with_interval
from arithscope.results.run import Run
from arithscope.stats.intervals import share_of
from arithscope.utils.files import write_json
from benchmarks.key_numbers import print_and_record, text_of
from benchmarks.record import Table, record_option

OF_SEVERAL_OPERATORS = ("accuracy_over_prompts", "union_heads", "union_faithfulness", "shared_heads")
MEASURES = {"accuracy": "whole answer", "p_answer": "P(answer)", "agreement": "free running agrees", "stops": "stops"}


def answers(run: Run) -> Table:
    """Accuracy of whole answers, of each step, and by how far a carry travels."""
    summary = run.folder.summary["whole_answers"]
    steps = (
        {f"accuracy_{own.step}": own.token_name for own in run.stratum.every_step()} if run.stratum.steps > 1 else {}
    )
    chains = {f"accuracy_chain_{n}": _carried(n) for n in run.whole_answers.chains.chain.unique()}
    named = {**MEASURES, **steps, **chains}
    rows = [[name, *(_text(summary[o].get(measure)) for o in run.operators)] for measure, name in named.items()]
    return Table(["", *(SIGNS[o] for o in run.operators)], rows)


def by_units(run: Run) -> Table:
    """Accuracy of sums by the sum of the operands' units, from 10 on with a carry; and how often the model's token before the
    units is one too large, as if there were a carry, or one too small."""
    answers, place = run.whole_answers, run.stratum.tokens.answer.index(1)
    tokens = answers.predicted[place] - run.stratum.at_step(place + 1).asked.of(answers.prompts.answer.to_numpy())
    sums = answers.prompts.assign(units=(answers.prompts.op1 % 10) + (answers.prompts.op2 % 10), off=tokens)
    rows = []
    for units, own in sums[sums.operator == "+"].groupby("units"):
        shares = [with_interval(as_mean(asdict(share_of(x)))) for x in (own.correct, own.off == 1, own.off == -1)]
        rows.append([int(str(units)), *shares, len(own)])
    return Table(["sum of the units", "whole answer right", "tens one too large", "tens one too small", "n"], rows)


def held(run: Run) -> Table:
    """Where each digit and each carry is held: position, layers, the share that follows there, and the control."""
    rows = []
    keys = run.carries.held[["operator", "step", "sources"]].drop_duplicates()
    for operator, step, sources in keys.itertuples(index=False):
        name = run.stratum.at_step(step).step_name
        what = f"carry into the {name}" if sources == "carry" else name
        own = run.carries.held.query("operator == @operator and step == @step and sources == @sources")
        for position, low, high in run.carries.path(operator, step, sources):
            [at] = own[own.layer == high].to_dict("records")
            share = with_interval(as_mean(at))
            rows.append(
                [SIGNS[operator], what, position, f"{low}–{high}", share, int(at["n"]), _rounded(at["control"])]
            )
    return Table(["", "what", "position", "layers", "share that follows after the last", "n", "control"], rows)


def readable(run: Run) -> Table:
    """Where each digit and each carry can first be read, and how well at best, where the model was not told it."""
    rows = []
    first = run.digit_probes.first
    first = first[~first.given.astype(bool)]
    for (operator, variable), own in first.groupby(["operator", "variable"], sort=False):
        found = own[own.layer >= 0].sort_values("layer", kind="stable")
        place = f"{found.position.iloc[0]}, layer {found.layer.iloc[0]}" if len(found) else None
        probes = run.digit_probes.table
        probes = probes[(probes.operator == operator) & (probes.variable == variable)]
        probes = probes[probes.position.isin(own.position)]
        best = probes.iloc[int(probes.value.argmax())]
        at, accuracy = f"{best.position}, layer {best.layer}", with_interval(as_mean(best.to_dict()))
        luck = (_rounded(x) for x in (own.chance.iloc[0], own.shuffled.max()))
        rows.append([SIGNS[str(operator)], variable, place, at, accuracy, int(best.n), *luck])
    return Table(["", "what", "first readable", "best at", "accuracy there", "n", "chance", "permuted"], rows)


def of_step(run: Run) -> Table:
    """Key numbers of an answer step. With one operator, those about several are left out."""
    operators, rows = list(run.operators), []
    alone = len(operators) == 1
    for each in KEY_NUMBERS:
        if alone and each.measure in OF_SEVERAL_OPERATORS:
            continue
        entries = key_number_entries(each, run.folder.summary, operators)
        if alone:
            entries = [entries[-1] if entries[0] is None else entries[0]]
        if any(entry is not None for entry in entries):
            rows.append([each.short, *map(text_of, entries)])
    return Table(["", *(SIGNS[o] for o in operators), *([] if alone else ["all operators"])], rows)


def _carried(places: int) -> str:
    travels = f"where a carry travels {places} {'place' if places == 1 else 'places'}" if places else "without a carry"
    return f"whole answer {travels}"


def _text(entry: Any) -> str | None:
    return None if entry is None else f"{with_interval(as_mean(entry))} (n = {entry['n']:,})"


def _rounded(x: float) -> float | None:
    return None if x != x else round(float(x), 3)


def kept(run: Run) -> dict[str, Any]:
    """What is kept of a run: no weights, no activations."""
    stages = run.manifest["stages"]
    return {
        "model": {**run.manifest["model"], "source": run.name},
        "version": run.manifest["version"],
        "configuration": run.configuration,
        "seconds": {name: entry["seconds"] for name, entry in stages.items() if "seconds" in entry},
        "summary": run.folder.summary,
        "steps": {str(step): kept(own) for step, own in run.steps.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders of layouts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the summaries into this folder")
    record_option(parser)
    arguments = parser.parse_args()
    tables, runs = {}, [Run(path) for path in arguments.runs]
    for run in runs:
        about = run.stratum.layout_name
        for name, stage, make in (
            ("answers", "whole_answers", answers),
            ("held", "carries", held),
            ("readable", "digit_probes", readable),
        ):
            if stage in run.stages:
                tables[f"{about}-{name}"] = make(run)
        if "+" in run.operators and 1 in run.stratum.tokens.answer:  # a token of its own for the units
            tables[f"{about}-units"] = by_units(run)
        tables |= {f"{about}-step-{step}": of_step(own) for step, own in run.steps.items()}
        if arguments.keep:
            path = arguments.keep / f"{run.name.lower().removesuffix('.gguf')}-{about}.json"
            write_json(path, plain(kept(run)))
    print_and_record(tables, [run.folder for run in runs], arguments.record)


if __name__ == "__main__":
    main()
