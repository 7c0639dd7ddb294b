"""All results of a study by the names of their stages, typed, wherever they come from."""

from __future__ import annotations

from typing import Any

from arithscope.experiments.accuracy import Accuracy
from arithscope.experiments.bag import Bag
from arithscope.experiments.circuit import Circuit
from arithscope.experiments.classify import Classify
from arithscope.experiments.failures import Failures
from arithscope.experiments.heads import Heads
from arithscope.experiments.knockout import Knockout
from arithscope.experiments.localize import Localize
from arithscope.experiments.means import MeanActivations
from arithscope.experiments.mlp0 import Mlp0
from arithscope.experiments.neurons import Neurons
from arithscope.experiments.overlap import Overlap
from arithscope.experiments.patterns import Patterns
from arithscope.experiments.probe import Probe
from arithscope.experiments.prompt_knockout import PromptKnockout
from arithscope.experiments.topk import TopK
from arithscope.experiments.training import Training


class Results:
    """Each result is a frozen dataclass of dataframes and arrays; see the docstrings of their classes."""

    def result(self, stage: str) -> Any:
        """The result of a stage, by name."""
        raise NotImplementedError

    @property
    def means(self) -> MeanActivations:
        return self.result("means")

    @property
    def accuracy(self) -> Accuracy:
        return self.result("accuracy")

    @property
    def localize(self) -> Localize:
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
    def mlp0(self) -> Mlp0:
        return self.result("mlp0")

    @property
    def neurons(self) -> Neurons:
        return self.result("neurons")

    @property
    def topk(self) -> TopK:
        return self.result("topk")

    @property
    def patterns(self) -> Patterns:
        return self.result("patterns")

    @property
    def classify(self) -> Classify:
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
