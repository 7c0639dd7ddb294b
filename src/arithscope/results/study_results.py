"""What a finished run and a study in memory have in common: results by class or stage, neurons, explanations of prompts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from arithscope.errors import UserError
from arithscope.experiments.classify import CALIBRATED, CRITERIA
from arithscope.experiments.common.result import Result
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_named
from arithscope.prompts import (
    OPERATORS,
    Prompts,
    Stratum,
    parse_in_stratum,
)
from arithscope.results.explanation import Explanation, explain_prompt
from arithscope.results.neuron import Neuron, NeuronFinder
from arithscope.utils.out_of_memory import explain_out_of_memory

R = TypeVar("R", bound=Result)


class StudyResults(ABC):
    """Results by class, `run[Circuit]`, or by stage, `run.circuit`; also single neurons and explanations of prompts."""

    operators: Sequence[str]
    stratum: Stratum  # operands and legal answers; the layout and answer step where numbers take several tokens
    limit: int  # single-token limit: the numbers 0…limit−1 are one token each
    seed: int  # of every random choice

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model that was studied."""

    @abstractmethod
    def __getitem__(self, kind: type[R]) -> R:
        """The result of a class."""

    def result(self, stage: str) -> Any:
        """The result of a stage, by its name.

        Raises:
            UserError: If there is no such stage, or it was not run.
        """
        return self[stage_named(stage).result]

    def __getattr__(self, name: str) -> Any:
        # Called only if there is no such attribute.
        if name.startswith("_") or name not in {stage.name for stage in all_stages()}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.result(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(stage.name for stage in all_stages())})

    @cached_property
    def _finder(self) -> NeuronFinder:
        return NeuronFinder(*map(self.result, ("neurons", "patterns", "classify")))

    def neuron(self, layer: int, neuron: int, operator: str) -> Neuron:
        """Everything known about a neuron under an operator.

        Raises:
            UserError: If the study has no such neuron.
        """
        return self._finder.find(operator, int(layer), int(neuron))

    def map_row(self, layer: int, neuron: int, operator: str) -> int | None:
        """Row of a neuron in the activation maps; None if it is not among the operator's top neurons."""
        return self._finder.map_row(operator, int(layer), int(neuron))

    def prompt(self, text: str) -> Prompts:
        """Parse a prompt such as `226-68=`.

        Raises:
            UserError: If it is not a prompt of this study.
        """
        return parse_in_stratum(text, self.operators, self.stratum)

    def explain(self, prompt: str, criterion: str = CALIBRATED) -> Explanation:
        """Explain the answer to one prompt with the heuristics that were found.

        Args:
            prompt: A prompt such as `226-68=`, whatever the study's template.
            criterion: Which matches to use: `raw` or `calibrated`.

        Returns:
            The answer, the heuristics that hold, the direct logit attribution of their neurons, and the answer without them.

        Raises:
            UserError: If the prompt or the criterion is unknown, or no neuron was found for the operator.
        """
        if criterion not in CRITERIA:
            raise UserError(f"There is no criterion {criterion!r}; choose {' or '.join(CRITERIA)}.")
        parsed = self.prompt(prompt)
        classification = self.result("classify")
        operator = OPERATORS[int(parsed.operator[0])]
        if operator not in classification.operators:
            raise UserError(f"The run found no neurons for {operator}, so it cannot explain its prompts.")
        with explain_out_of_memory("explaining a prompt"):
            return explain_prompt(self.model, classification, parsed, criterion, self.seed)
