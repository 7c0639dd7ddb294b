"""Which finding belongs to which figure. A finding gets the same results as the figure is drawn from."""

from __future__ import annotations

from collections.abc import Callable

from arithscope.report.findings import circuit, neurons, proof, stability
from arithscope.report.findings.finding import Finding

FINDINGS: dict[str, Callable[..., Finding]] = {
    "accuracy": circuit.accuracy,
    "localization": circuit.localization,
    "localization-by-operator": circuit.localization_by_operator,
    "circuit-diagram": circuit.circuit_diagram,
    "faithfulness-by-heads": circuit.faithfulness_by_heads,
    "circuit-table": circuit.circuit_table,
    "attention-patterns": circuit.attention_patterns,
    "head-roles": circuit.head_roles,
    "first-mlp-effects": circuit.first_mlp_effects,
    "first-mlp-faithfulness": circuit.first_mlp_faithfulness,
    "number-tuning": circuit.number_tuning,
    "probe-accuracy": circuit.probe_accuracy,
    "neuron-effects": neurons.neuron_effects,
    "screens-against-exact": neurons.screens_against_exact,
    "faithfulness-by-neurons": neurons.faithfulness_by_neurons,
    "heuristic-gallery": neurons.heuristic_gallery,
    "matching-walkthrough": neurons.matching_walkthrough,
    "example-neurons": neurons.example_neurons,
    "unclassified-neurons": neurons.unclassified_neurons,
    "classified-shares": neurons.classified_shares,
    "kinds-by-layer": neurons.kinds_by_layer,
    "neuron-overlap": neurons.neuron_overlap,
    "knockout-by-heuristic": proof.knockout_by_heuristic,
    "prompt-knockout": proof.prompt_knockout,
    "bag-alone": proof.bag_alone,
    "failure-contributions": proof.failure_contributions,
    "worst-prompts": proof.worst_prompts,
    "training": proof.training_curves,
    "stability": stability.repeated,
}
