"""A finished run and the subject it was made from."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from arithscope.errors import UserError
from arithscope.experiments.classify import Classify
from arithscope.experiments.explanation import Explanation, explain
from arithscope.prompts import OPERATORS, Prompts, Template, parse_prompt
from arithscope.store import RunFolder, plain
from arithscope.subject.load import QUANTIZATIONS, LoadOptions, load
from arithscope.subject.subject import Subject


def prompt_of(run: RunFolder, text: str) -> Prompts:
    """A prompt, as a person writes it, if it is one that the run studied."""
    configuration, limit = run.manifest["configuration"], run.manifest["subject"].get("limit")
    if limit is None:
        raise UserError(
            f"The run in {run.path} is of an earlier version of arithscope; run it again to explain prompts."
        )
    return parse_prompt(text, configuration["operators"], configuration["max_operand"], limit)


def subject_of(run: RunFolder, elsewhere: str | None, options: LoadOptions) -> Subject:
    """Load the subject of a run as it was then, from where it was or from elsewhere, and make sure that it is the same."""
    known, configuration = run.manifest["subject"], run.manifest["configuration"]
    quantize = known["quantization"] if known["quantization"] in QUANTIZATIONS else None
    source = elsewhere or known["source"]
    template = Template(configuration["template"], configuration["prefix"])
    subject = load(source, template, replace(options, dtype=known["dtype"], quantize=quantize))
    if any(getattr(subject.identity, k) != known[k] for k in ("weight_hash", "tokenizer_hash")):
        raise UserError(
            f"{source} is not the subject of the run in {run.path}, as its weights or its tokenizer differ; "
            "name the right one with --subject."
        )
    return subject


def explained(run: RunFolder, prompt: Prompts, subject: Subject, criterion: str) -> Explanation:
    """A prompt explained by what a run found."""
    classify = run.read("classify", Classify)
    operator = OPERATORS[int(prompt.operator[0])]
    if operator not in classify.operators:
        raise UserError(f"The run found no neurons for {operator}, so there is nothing to explain a prompt with.")
    return explain(subject, classify, prompt, criterion, run.manifest["configuration"]["seed"])


def as_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation for programs: tables as lists of rows."""
    fields = asdict(explanation)
    return plain({name: x.to_dict("records") if isinstance(x, pd.DataFrame) else x for name, x in fields.items()})
