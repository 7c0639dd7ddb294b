"""A new kind of heuristic, planted in the noise of one neuron in twenty and found again."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from arithscope.heuristics.catalogue import catalogue
from arithscope.heuristics.kinds import RULES, Bools, Rule
from arithscope.heuristics.neuron_matching import NeuronBatch, calibrated_matches
from arithscope.prompts import Prompts, operand_grid


@dataclass(frozen=True)
class Carry(Rule):
    kind: ClassVar[str] = "carry"

    def __str__(self) -> str:
        return "op1, op2 carry"

    def holds(self, prompts: Prompts) -> Bools:
        return prompts.op1 % 10 + prompts.op2 % 10 >= 10


RULES.append(Carry())

prompts = operand_grid("+", max_operand=40)
activations = np.random.default_rng(0).standard_normal((20, len(prompts)))
activations[7] += 4 * Carry().holds(prompts)
neurons = NeuronBatch(activations.astype(np.float16), logits=np.ones((20, 100), dtype=np.float32))
rules, names = catalogue("+", max_operand=40, limit=100), [f"n{i}" for i in range(20)]
found = calibrated_matches(neurons, rules, draws=20, seed=0, names=names, advance=lambda done: None)
print(found.matches.query("calibrated")[["row", "heuristic", "score", "chance", "fdr"]])
