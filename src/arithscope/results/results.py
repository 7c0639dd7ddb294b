"""All results of a study by the names of their stages, typed, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from arithscope.errors import UserError
from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import CALIBRATED, CRITERIA, Classification
from arithscope.experiments.failures import Failures
from arithscope.experiments.heads import Heads
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.localize import Localization
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.mlp0 import FirstMlp
from arithscope.experiments.neurons import NeuronEffects
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import ActivationMaps
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.stability import Stability
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Training
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Prompts, parse_prompt
from arithscope.results.explanation import Explanation, explain
from arithscope.results.neuron import Neuron, NeuronFinder
from arithscope.utils.out_of_memory import explain_out_of_memory


class Results(ABC):
    """Each result is a frozen dataclass of dataframes and arrays; see the docstrings of their classes. With the subject beside
    them, neurons and prompts can be looked at one by one."""

    @abstractmethod
    def result(self, stage: str) -> Any:
        """The result of a stage, by name."""

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model that the results are of."""

    @property
    @abstractmethod
    def operators(self) -> Sequence[str]:
        """Those that are studied."""

    @property
    @abstractmethod
    def max_operand(self) -> int:
        """Operands go from 0 to this."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """The numbers 0…limit−1 are one token each."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """What random choices depend on."""

    @property
    @abstractmethod
    def _finder(self) -> NeuronFinder:
        """Where neurons are looked up."""

    def neuron(self, layer: int, neuron: int, operator: str) -> Neuron:
        """All that is known of a neuron."""
        return self._finder.find(operator, int(layer), int(neuron))

    def place(self, layer: int, neuron: int, operator: str) -> int | None:
        """The row of a neuron in `patterns`; None if it is not among the operator's top neurons."""
        return self._finder.place(operator, int(layer), int(neuron))

    def prompt(self, text: str) -> Prompts:
        """A prompt as a person writes it, `226-68=`, if it is one that was studied."""
        return parse_prompt(text, self.operators, self.max_operand, self.limit)

    def explain(self, prompt: str, criterion: str = CALIBRATED) -> Explanation:
        """The answer to a prompt, the heuristics behind it, what their neurons add, and the answer without them."""
        if criterion not in CRITERIA:
            raise UserError(f"There is no criterion {criterion!r}; choose {' or '.join(CRITERIA)}.")
        asked = self.prompt(prompt)
        operator = OPERATORS[int(asked.operator[0])]
        if operator not in self.classify.operators:
            raise UserError(f"The run found no neurons for {operator}, so there is nothing to explain a prompt with.")
        with explain_out_of_memory("explaining a prompt"):
            return explain(self.model, self.classify, asked, criterion, self.seed)

    @property
    def means(self) -> MeanActivations:
        return self.result("means")

    @property
    def accuracy(self) -> Accuracy:
        return self.result("accuracy")

    @property
    def localize(self) -> Localization:
        return self.result("localize")

    @property
    def circuit(self) -> Circuit:
        return self.result("circuit")

    @property
    def probe(self) -> Probe:
        return self.result("probe")

    @property
    def heads(self) -> Heads:
        return self.result("heads")

    @property
    def mlp0(self) -> FirstMlp:
        return self.result("mlp0")

    @property
    def neurons(self) -> NeuronEffects:
        return self.result("neurons")

    @property
    def topk(self) -> TopK:
        return self.result("topk")

    @property
    def patterns(self) -> ActivationMaps:
        return self.result("patterns")

    @property
    def classify(self) -> Classification:
        return self.result("classify")

    @property
    def overlap(self) -> Overlap:
        return self.result("overlap")

    @property
    def knockout(self) -> Knockout:
        return self.result("knockout")

    @property
    def prompt_knockout(self) -> PromptKnockout:
        return self.result("prompt_knockout")

    @property
    def failures(self) -> Failures:
        return self.result("failures")

    @property
    def bag(self) -> Bag:
        return self.result("bag")

    @property
    def training(self) -> Training:
        return self.result("training")

    @property
    def stability(self) -> Stability:
        return self.result("stability")
