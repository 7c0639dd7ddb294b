"""What an answer step costs, measured by a study of whole numbers: same prompts and architecture, equally many tokens.

    digits    one token a digit; 45+38= has seven tokens with BOS at its first step, and one more at each later step
    whole     one token a number, and words in the template, so that the prompt has as many tokens

*means*: a sweep over all prompts. *neurons*: exact effects of single neurons at the position where the step's token is
predicted. *all steps*: the one sweep that gives the answers and mean activations of every step. *together*: all these passes of
a study, with those of *localize* and of the first MLP's neurons in *mlp0*, for one step alone and for three steps, which share
all of them but those of *neurons*. Numbers of prompts are in the proportions of the preset quick.

These are seconds of the processor on one thread, the least of several repetitions in turn: what else the machine does counts as
little as possible. Models have random weights.

    python -m benchmarks.steps [--repeats 5] [--record NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
import torch

from arithscope.experiments.localize import component_effects
from arithscope.experiments.means import means_of
from arithscope.experiments.neurons import neuron_effects
from arithscope.experiments.whole_answers import answers_of
from arithscope.models.model import Identity, Model
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Layout, Prompts, Stratum, Template, counterfactuals, random_source, sample
from benchmarks.record import Table, record, record_option

SIZES = dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6)
VOCABULARY = 8_000
STRATUM = Stratum((100, 249), (100, 109), (200, 358), Layout((2, 1, 0), (2, 1, 0), (2, 1, 0)))
TEMPLATE = "{{op1}} a b {{operator}} {{op2}} a b {}="  # two words for the two tokens more of each operand
LAYERS, NEURONS, PATCHED = [2, 4], 512, 8  # layers and neurons of each that are patched, on so many prompts
DISCOVERY, FIRST_MLP, ANSWER_LAYERS = 12, 2, [4, 5]  # prompts, those for the first MLP, and layers of a study
COLUMNS = ["step", "tokens", "stage", "whole numbers", "digits", "ratio"]


def model_of(tokenizer: Any, template: Template) -> Model:
    hf_model = untrained_model("llama", {**SIZES, "vocab_size": VOCABULARY}, tokenizer).eval()
    return Model(hf_model, tokenizer, Identity("random", "", "llama", "random"), template)


def means(model: Model, prompts: Prompts) -> Callable[[], object]:
    return lambda: means_of(model, prompts, advance=lambda n: None)


def neurons(model: Model, prompts: Prompts) -> Callable[[], object]:
    random = random_source(0, "steps")
    some = sample(prompts, PATCHED, random)
    others = counterfactuals(some, prompts, random)
    chosen = np.tile(np.arange(NEURONS), (len(LAYERS), 1))
    at = model.positions.final
    return lambda: neuron_effects(model, some, others, LAYERS, chosen, at, advance=lambda n: None)


def study_of(model: Model, prompts: Prompts, all_steps: bool) -> Callable[[], object]:
    """The passes of a study of one answer step, or of all of them together."""
    random, places = random_source(0, "study"), [view.encoder.asked for view in model.every_step()]
    some = sample(prompts, DISCOVERY, random)
    others = counterfactuals(some, prompts, random, places)
    named, final = list(model.positions.named().values()), model.positions.final
    layers, every = list(range(model.sizes.layers)), np.arange(model.sizes.neurons)
    quiet: Any = dict(advance=lambda n: None)

    def shared(at: int) -> tuple[int, int | None]:
        """How many steps a patched position is read at, and up to which."""
        steps = len(places)
        return (min(steps, final - at + 1), steps) if all_steps else (1, None)

    def run() -> None:
        sweep = answers_of if all_steps else means_of
        sweep(model, prompts, **quiet)
        for at in named:
            component_effects(model, some, others, at, layers, *shared(at), **quiet)
        for at in named[:-1]:
            first = some[:FIRST_MLP], others[:FIRST_MLP]
            neuron_effects(model, *first, [0], every[None], at, *shared(at + 1), **quiet)
        for view in model.every_step() if all_steps else [model]:
            chosen = np.tile(every, (len(ANSWER_LAYERS), 1))
            asked = view.encoder.asked
            own = some.asking(asked), others.asking(asked)
            neuron_effects(view, *own, ANSWER_LAYERS, chosen, view.positions.final, **quiet)

    return run


def least(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each call, the least of some repetitions in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = process_time()
            call()
            seconds[name].append(process_time() - start)
    return {name: min(each) for name, each in seconds.items()}


def measure(repeats: int) -> tuple[Table, Table, Table]:
    """The tables of steps, of the sweep for all of them, and of a study of all of them."""
    digits = model_of(number_tokenizer(10, digits=True), Template()).at(STRATUM)
    prompts = STRATUM.prompts("+")
    calls: dict[str, Callable[[], object]] = {}
    lengths = []
    for step, view in enumerate(digits.every_step(), start=1):
        own = prompts.asking(view.encoder.asked)
        words = "".join("cd"[: step - 1])
        template = Template(TEMPLATE.format("".join(f"{word} " for word in words)))
        whole = model_of(number_tokenizer(STRATUM.answers[1] + 1, words=["a", "b", "c", "d"]), template)
        if whole.encoder.length != view.encoder.length:
            raise AssertionError(f"prompts have {whole.encoder.length} and {view.encoder.length} tokens")
        lengths.append(view.encoder.length)
        for stage in (means, neurons):
            calls[f"{step} {stage.__name__} whole"] = stage(whole, prompts.asking(whole.encoder.asked))
            calls[f"{step} {stage.__name__} digits"] = stage(view, own)
        calls[f"{step} study"] = study_of(view, own, all_steps=False)
    last = digits.every_step()[-1]
    calls["all steps"] = lambda: answers_of(last, prompts, advance=lambda n: None)
    calls["study"] = study_of(last, prompts.asking(last.encoder.asked), all_steps=True)
    seconds = least(calls, repeats)
    rows = [
        [step, length, stage, *(round(x, 2) for x in pair), round(pair[1] / pair[0], 3)]
        for step, length in enumerate(lengths, start=1)
        for stage in ("means", "neurons")
        for pair in [[seconds[f"{step} {stage} {kind}"] for kind in ("whole", "digits")]]
    ]
    one, three = seconds["3 means digits"], seconds["all steps"]
    alone = sum(seconds[f"{step} means digits"] for step in (1, 2, 3))
    shared = [[round(one, 2), round(three, 2), round(three / one, 3), round(alone, 2)]]
    columns = ["the last step alone", "all three in one sweep", "ratio", "each by itself, together"]
    studies = [seconds[f"{step} study"] for step in (1, 2, 3)]
    ratio = seconds["study"] / (sum(studies) / len(studies))
    together = [[*(round(x, 2) for x in (*studies, seconds["study"])), round(ratio, 3)]]
    names = [*(f"step {step} alone" for step in (1, 2, 3)), "all three together", "ratio to the mean of one"]
    return Table(COLUMNS, rows), Table(columns, shared), Table(names, together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    record_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = measure(arguments.repeats)
    for table in tables:
        print(pd.DataFrame(table.rows, columns=table.columns).to_string(index=False))
    if arguments.record:
        sizes = (
            f"Llama of {SIZES['num_hidden_layers']} layers, {SIZES['hidden_size']} wide, vocabulary of {VOCABULARY:,}"
        )
        note = f"{sizes}; seconds of the processor, the least of {arguments.repeats} repetitions in turn"
        record(arguments.record, {"steps": tables[0], "sweep": tables[1], "together": tables[2]}, [note])


if __name__ == "__main__":
    main()
