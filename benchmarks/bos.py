"""What a BOS token in front of every prompt does to the sums of a model whose GGUF file says that texts do not begin with one.

    python -m benchmarks.bos FILE.gguf … [--record NAME]

Sums of two-digit numbers after four examples; a random sample of each layout of answers.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gguf
import pandas as pd

from arithscope.experiments.whole_answers import measure_answers
from arithscope.models.layouts import find_strata, stratum_names
from arithscope.models.load import load
from arithscope.prompts import Template, operands_of_digits, random_source, sample
from arithscope.report.formatting import with_interval
from arithscope.stats.intervals import share_of
from benchmarks.record import Table, record, record_option

SPACED = Template("{op1} {operator} {op2} = ", "23 + 45 = 68\n71 - 28 = 43\n36 + 52 = 88\n64 - 31 = 33\n")
PROMPTS = 150


def measure(file: Path) -> list[list[object]]:
    """Rows of the table about one file: layout, then the share of right answers without BOS and with it."""
    model = load(str(file))
    token = int(gguf.GGUFReader(file).fields["tokenizer.ggml.bos_token_id"].parts[-1][0])
    [bos] = model.encoder.tokens([token])
    shares: dict[str, list[str]] = {}
    for template in (SPACED, replace(SPACED, prefix=bos + SPACED.prefix)):
        asked = model.with_template(template)
        strata = find_strata(asked.encoder, ("+",), operands_of_digits("2"))
        for name, stratum in zip(stratum_names(strata), strata, strict=True):
            at_last = asked.at(stratum.every_step()[-1])
            prompts = sample(stratum.prompts("+"), PROMPTS, random_source(0, "bos"))
            right = measure_answers(at_last, prompts.asking(at_last.encoder.asked)).all(axis=0)
            shares.setdefault(name, []).append(with_interval(share_of(right)))
    return [[file.stem, repr(bos), name, *each] for name, each in shares.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    record_option(parser)
    arguments = parser.parse_args()
    columns = ["model", "BOS", "layout", "whole answers right without it", "with it in front"]
    table = Table(columns, [row for file in arguments.files for row in measure(file)])
    print(pd.DataFrame(table.rows, columns=table.columns).to_string(index=False))
    if arguments.record:
        record(arguments.record, {"sums": table}, [f"{PROMPTS} sums of each layout after four examples"])


if __name__ == "__main__":
    main()
