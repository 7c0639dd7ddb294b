"""The stages of a study: which experiment needs which results and settings, and about how much memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from arithscope.experiments.accuracy import Accuracy, accuracy_from
from arithscope.experiments.bag import Bag, bag
from arithscope.experiments.circuit import Circuit, circuit
from arithscope.experiments.classify import Classification, classify
from arithscope.experiments.common.result import Result
from arithscope.experiments.failures import Failures, failures
from arithscope.experiments.heads import Heads, heads
from arithscope.experiments.knockout import MASK_BYTES, Knockout, knockout
from arithscope.experiments.localize import Localization, localize
from arithscope.experiments.means import MeanActivations, means
from arithscope.experiments.mlp0 import FirstMlp, mlp0
from arithscope.experiments.neurons import NeuronEffects, neurons
from arithscope.experiments.overlap import Overlap, overlap
from arithscope.experiments.patterns import ActivationMaps, patterns
from arithscope.experiments.probe import Probe, probe
from arithscope.experiments.prompt_knockout import COUNTS as PROMPT_COUNTS
from arithscope.experiments.prompt_knockout import PromptKnockout, prompt_knockout
from arithscope.experiments.stability import WHOLE, Stability, repeat_from, stability
from arithscope.experiments.topk import TopK, neuron_counts, topk
from arithscope.experiments.training import LAST, Checkpoint, Training, training
from arithscope.heuristics.classification import CPU_CELLS, GPU_CELLS
from arithscope.models.engine.replicas import passes_at_once
from arithscope.models.memory import budget, cache_bytes, component_bytes, row_bytes, storage
from arithscope.models.model import Model, Site
from arithscope.prompts import legal_prompts
from arithscope.settings import Settings
from arithscope.stats.measures import EFFECTS
from arithscope.utils.executor import Executor
from arithscope.utils.progress import Progress


def _no_memory(model: Model, settings: Settings) -> int:
    return 0


@dataclass(frozen=True)
class Stage:
    """One experiment in a study.

    needs    earlier stages whose results it gets, by name
    reads    the settings its numbers depend on; it can read no others
    memory   bytes it needs beside the weights, as an estimate
    asked    whether it is run only when asked for
    """

    name: str
    result: type
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    compute: Callable[[Model, Any, dict[str, Any], Progress, Executor], Result]
    memory: Callable[[Model, Settings], int] = _no_memory
    asked: bool = False


def _accuracy(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Accuracy:
    return accuracy_from(results["means"], settings.operators, model.limit, settings.seed, settings.half)


def _means(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> MeanActivations:
    return means(model, settings.max_operand, progress, executor)


def _localize(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> Localization:
    return localize(model, results["accuracy"], settings.sizes, settings.seed, progress, executor)


def _circuit(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Circuit:
    earlier = results["accuracy"], results["means"], results["localize"]
    return circuit(
        model, *earlier, settings.sizes, settings.seed, settings.effect, settings.judging, progress, executor
    )


def _probe(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Probe:
    return probe(model, results["accuracy"], settings.sizes, settings.seed, progress, executor)


def _heads(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Heads:
    earlier = results["accuracy"], results["means"], results["circuit"]
    return heads(model, *earlier, settings.sizes, settings.seed, settings.judging, progress, executor)


def _mlp0(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> FirstMlp:
    earlier = results["accuracy"], results["means"], results["circuit"]
    s = settings
    return mlp0(model, *earlier, s.max_operand, s.sizes, s.seed, s.effect, s.judging, progress, executor)


def _neurons(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> NeuronEffects:
    s = settings
    earlier = results["accuracy"], results["probe"]
    return neurons(model, *earlier, s.sizes, s.seed, s.neurons, s.picked_by, progress, executor)


def _topk(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> TopK:
    earlier = results["accuracy"], results["means"], results["circuit"], results["neurons"]
    s = settings
    return topk(model, *earlier, s.sizes, s.seed, s.effect, s.rank, s.fixed_k, s.judging, progress, executor)


def _patterns(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> ActivationMaps:
    return patterns(model, results["topk"], settings.max_operand, progress, executor)


def _classify(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> Classification:
    s = settings
    return classify(model, results["patterns"], s.both_operands, s.sizes.permutations, s.seed, progress, executor)


def _overlap(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Overlap:
    return overlap(results["topk"])


def _knockout(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Knockout:
    s = settings
    return knockout(model, results["accuracy"], results["classify"], s.sizes, s.seed, s.knockout_at, progress, executor)


def _prompt_knockout(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> PromptKnockout:
    s = settings
    return prompt_knockout(
        model, results["accuracy"], results["classify"], s.sizes, s.seed, s.knockout_at, progress, executor
    )


def _failures(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Failures:
    earlier = results["accuracy"], results["patterns"], results["classify"]
    return failures(*earlier, settings.sizes, settings.seed, progress)


def _bag(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Bag:
    earlier = results["accuracy"], results["means"], results["circuit"], results["classify"]
    return bag(model, *earlier, results.get(FINAL), settings.sizes, settings.seed, settings.judging, progress, executor)


def _training(model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor) -> Training:
    last = Checkpoint(LAST, results["accuracy"], results["bag"], results["prompt_knockout"])
    earlier, keys = results[CHECKPOINTS]
    return training([*earlier, last], keys, settings.seed)


def _stability(
    model: Model, settings: Any, results: dict[str, Any], progress: Progress, executor: Executor
) -> Stability:
    whole = repeat_from(WHOLE, {name: results[name] for name in COMPARED}, settings.effect)
    return stability([whole, *results[REPEATS]])


def _sweep_memory(model: Model, settings: Settings) -> int:
    prompts = len(legal_prompts(settings.operators, settings.max_operand, model.limit))
    row = row_bytes(model, model.encoder.length, model.encoder.length)
    row += 2 * cache_bytes(model, model.encoder.length)
    passes = passes_at_once(model)
    return min(passes * budget(model, row, passes), row * prompts) + 64 * prompts


def _replay_memory(model: Model, settings: Settings) -> int:
    """Of patching and ablating: one pass, the recorded prompts, and the activations they are patched with."""
    length, s = model.encoder.length, model.sizes
    row = row_bytes(model, length, length)
    stream = length * s.width * model.hf_model.dtype.itemsize
    components = 4 * sum(component_bytes(model, site) for site in Site)
    kept = s.layers * (stream + components) + cache_bytes(model, length)
    return budget(model, row) + kept * max(settings.sizes.discovery, settings.sizes.evaluation)


def _probe_memory(model: Model, settings: Settings) -> int:
    prompts = len(legal_prompts(settings.operators, settings.max_operand, model.limit))
    prompts = prompts if settings.sizes.probe is None else min(prompts, settings.sizes.probe)
    s = model.sizes
    states = s.layers * s.width * (prompts * model.hf_model.dtype.itemsize + 16 * model.limit)
    return _sweep_memory(model, settings) + min(states, storage(model))


def _neurons_memory(model: Model, settings: Settings) -> int:
    """Beside a replay: exact and estimated effects of every neuron on every prompt."""
    s = model.sizes
    return _replay_memory(model, settings) + 8 * len(EFFECTS) * s.layers * s.neurons * settings.sizes.discovery


def _topk_memory(model: Model, settings: Settings) -> int:
    """Beside a replay: which neurons each circuit keeps."""
    s = model.sizes
    circuits = len(neuron_counts(s.neurons)) * (1 + settings.sizes.draws)
    return _replay_memory(model, settings) + circuits * s.layers * s.neurons


def _patterns_memory(model: Model, settings: Settings) -> int:
    """Beside a sweep: the patterns, in float16, of all neurons at the most."""
    s = model.sizes
    neurons = s.layers * settings.most_k(model) * len(settings.operators)
    return _sweep_memory(model, settings) + neurons * 2 * (settings.max_operand + 1) ** 2


def _classify_memory(model: Model, settings: Settings) -> int:
    """Sorting keys, orders and counts; the patterns are mapped from disk."""
    if model.device.type == "cuda":
        return 80 * GPU_CELLS
    return 2**29 + 40 * CPU_CELLS * torch.get_num_threads()


def _knockout_memory(model: Model, settings: Settings) -> int:
    """Beside a replay: which neurons each prompt loses in each variant."""
    s, sizes = model.sizes, settings.sizes
    masks = len(PROMPT_COUNTS) * sizes.prompt_knockout * s.layers * s.neurons
    return _replay_memory(model, settings) + 2 * max(masks, MASK_BYTES)


# The stages with key numbers or choices, which are compared with those of repetitions; but for these and what they need, a
# repetition has none.
COMPARED = (
    "accuracy",
    "circuit",
    "probe",
    "neurons",
    "topk",
    "classify",
    "overlap",
    "knockout",
    "prompt_knockout",
    "failures",
    "bag",
)
_OF_REPEATS = (*COMPARED, "localize", "patterns")

STAGES: tuple[Stage, ...] = (
    Stage("means", MeanActivations, (), ("max_operand",), _means, _sweep_memory),
    Stage("accuracy", Accuracy, ("means",), ("operators", "seed", "half"), _accuracy, _no_memory),
    Stage("localize", Localization, ("accuracy",), ("sizes", "seed"), _localize, _replay_memory),
    Stage(
        "circuit",
        Circuit,
        ("accuracy", "means", "localize"),
        ("sizes", "seed", "effect", "judging"),
        _circuit,
        _replay_memory,
    ),
    Stage("probe", Probe, ("accuracy",), ("sizes", "seed"), _probe, _probe_memory),
    Stage("heads", Heads, ("accuracy", "means", "circuit"), ("sizes", "seed", "judging"), _heads, _replay_memory),
    Stage(
        "mlp0",
        FirstMlp,
        ("accuracy", "means", "circuit"),
        ("max_operand", "sizes", "seed", "effect", "judging"),
        _mlp0,
        _replay_memory,
    ),
    Stage(
        "neurons",
        NeuronEffects,
        ("accuracy", "probe"),
        ("sizes", "seed", "neurons", "picked_by"),
        _neurons,
        _neurons_memory,
    ),
    Stage(
        "topk",
        TopK,
        ("accuracy", "means", "circuit", "neurons"),
        ("sizes", "seed", "effect", "rank", "fixed_k", "judging"),
        _topk,
        _topk_memory,
    ),
    Stage("patterns", ActivationMaps, ("topk",), ("max_operand",), _patterns, _patterns_memory),
    Stage("classify", Classification, ("patterns",), ("both_operands", "sizes", "seed"), _classify, _classify_memory),
    Stage("overlap", Overlap, ("topk",), (), _overlap, _no_memory),
    Stage(
        "knockout", Knockout, ("accuracy", "classify"), ("sizes", "seed", "knockout_at"), _knockout, _knockout_memory
    ),
    Stage(
        "prompt_knockout",
        PromptKnockout,
        ("accuracy", "classify"),
        ("sizes", "seed", "knockout_at"),
        _prompt_knockout,
        _knockout_memory,
    ),
    Stage("failures", Failures, ("accuracy", "patterns", "classify"), ("sizes", "seed"), _failures, _no_memory),
    Stage("bag", Bag, ("accuracy", "means", "circuit", "classify"), ("sizes", "seed", "judging"), _bag, _replay_memory),
    Stage(
        "training",
        Training,
        ("accuracy", "bag", "prompt_knockout"),
        ("seed",),
        _training,
        _no_memory,
        asked=True,
    ),
    Stage("stability", Stability, COMPARED, ("effect",), _stability, _no_memory, asked=True),
)

# What is given to the stages of an earlier checkpoint: the final one's circuit, first answer layer and classification.
FINAL, CHECKPOINTS = "final", "checkpoints"
_OF_CHECKPOINTS = ("means", "accuracy", "neurons", "topk", "patterns", "classify", "prompt_knockout", "bag")
CHECKPOINT_STAGES = tuple(
    replace(stage, needs=(*stage.needs, FINAL)) if stage.name == "bag" else stage
    for stage in STAGES
    if stage.name in _OF_CHECKPOINTS
)

# What is given to the stage that compares: repetitions of the study. To these mean activations are given, the same in all.
REPEATS = "repeats"
REPEAT_STAGES = tuple(stage for stage in STAGES if stage.name in _OF_REPEATS)
