"""Results of a study, wherever they come from: the base of `Run` (a folder) and `Lab` (in memory)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from arithscope.errors import UserError
from arithscope.experiments.classify import CALIBRATED, CRITERIA
from arithscope.experiments.common.result import Result
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages, stage_named
from arithscope.prompts import OPERATORS, Prompts, parse_prompt
from arithscope.results.explanation import Explanation, explain_prompt
from arithscope.results.neuron import Neuron, NeuronFinder
from arithscope.utils.out_of_memory import explain_out_of_memory

R = TypeVar("R", bound=Result)


class StudyResults(ABC):
    """Results by class, `run[Circuit]`, or by the name of their stage, `run.circuit`; and neurons and prompts one by one."""

    operators: Sequence[str]
    max_operand: int  # operands go from 0 to this
    limit: int  # single-token limit: the numbers 0…limit−1 are one token each
    seed: int  # of every random choice

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model that was studied."""

    @property
    @abstractmethod
    def _finder(self) -> NeuronFinder: ...

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
        # Called only for names that are no attributes.
        if name.startswith("_") or name not in {stage.name for stage in all_stages()}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.result(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(stage.name for stage in all_stages())})

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
            UserError: If it is no prompt of this study.
        """
        return parse_prompt(text, self.operators, self.max_operand, self.limit)

    def explain(self, prompt: str, criterion: str = CALIBRATED) -> Explanation:
        """Explain the answer to one prompt with the heuristics that were found.

        Args:
            prompt: A prompt such as `226-68=`, whatever the study's template.
            criterion: `raw` or `calibrated` matches.

        Returns:
            The answer, the heuristics that hold, the direct logit attribution of their neurons, and the answer without them.

        Raises:
            UserError: If the prompt or the criterion is unknown, or no neuron was found for the operator.
        """
        if criterion not in CRITERIA:
            raise UserError(f"There is no criterion {criterion!r}; choose {' or '.join(CRITERIA)}.")
        parsed, classification = self.prompt(prompt), self.result("classify")
        operator = OPERATORS[int(parsed.operator[0])]
        if operator not in classification.operators:
            raise UserError(f"The run found no neurons for {operator}, so there is nothing to explain a prompt with.")
        with explain_out_of_memory("explaining a prompt"):
            return explain_prompt(self.model, classification, parsed, criterion, self.seed)
