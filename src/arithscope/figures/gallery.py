"""All figures: what each is called, which stages it is drawn from, and its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from arithscope.figures.accuracies import accuracy_table
from arithscope.figures.attention import attention_patterns, head_roles
from arithscope.figures.circuits import circuit_table, faithfulness_by_heads
from arithscope.figures.classes import kinds_by_layer, raw_and_calibrated
from arithscope.figures.diagram import circuit_diagram
from arithscope.figures.first_mlp import first_mlp_effects, first_mlp_faithfulness, number_tuning
from arithscope.figures.growth import training_curves
from arithscope.figures.knockouts import bag_alone, knockout_by_heuristic, prompt_knockout_curves
from arithscope.figures.localization import localization, localization_by_operator
from arithscope.figures.mistakes import failure_contributions, worst_prompts
from arithscope.figures.neurons import faithfulness_by_neurons, neuron_effects, neuron_overlap, screens_against_exact
from arithscope.figures.patterns import example_neurons, heuristic_gallery, matching_walkthrough, unclassified_neurons
from arithscope.figures.probes import probe_accuracy
from arithscope.figures.stability import repeated_numbers


@dataclass(frozen=True)
class Plate:
    """One figure. `draw` gets the results of the stages in `needs`, in that order."""

    name: str
    needs: tuple[str, ...]
    draw: Callable[..., Figure]
    title: str
    caption: str


_EFFECT = (
    "The effect of an intervention (Eq. 1 of the paper) is half the relative gain of the counterfactual answer's probability "
    "plus half the relative loss of the right answer's."
)
_FAITHFULNESS = (
    "Faithfulness (Eq. 2): how far the circuit alone, all else mean-ablated, goes from the empty circuit (0) to the "
    "whole model (1) in the answer's normalised logit. Bands and brackets: 95 % bootstrap intervals."
)

PLATES: tuple[Plate, ...] = (
    Plate(
        "accuracy",
        ("accuracy",),
        accuracy_table,
        "Accuracy on arithmetic prompts",
        "Share of legal prompts whose most probable next token is the answer, by operator; the mean weighs operators the "
        "same. Brackets: 95 % bootstrap intervals. (Paper: Appendix I, table of model accuracies.)",
    ),
    Plate(
        "localization",
        ("localize",),
        localization,
        "Localization: which heads and MLPs matter, and where",
        "Each attention head and each MLP is patched, at one position, with its activation on a counterfactual prompt. "
        + _EFFECT
        + " Averaged over operators; above the mean over prompts, below their median, as single prompts can rule the "
        "mean. The darkest colour stands for no or negative effect. (Paper: Figure 2a.)",
    ),
    Plate(
        "localization-by-operator",
        ("localize",),
        localization_by_operator,
        "Localization by operator",
        "As in the localization figure, mean over the discovery prompts of each operator. (Paper: Figure 2a.)",
    ),
    Plate(
        "circuit-diagram",
        ("localize", "circuit", "heads"),
        circuit_diagram,
        "The arithmetic circuit",
        "Drawn from the results, for all operators together. An arrow is a head of an operator's circuit: it ends at the "
        "position where patching the head has its largest effect and begins at the position that gets most of its attention "
        "from there (mean share in brackets; behind it the operators). A box is an MLP whose effect at that position is at "
        "least 5 % of the largest MLP effect (log-ratio, mean over operators). Tokens are those of 226−68= as an "
        "example. Of very large circuits the foremost heads are drawn. (Paper: Figure 2b.)",
    ),
    Plate(
        "faithfulness-by-heads",
        ("circuit",),
        faithfulness_by_heads,
        "How many heads the circuit needs",
        "The circuit is all MLPs and the n heads of largest effect. "
        + _FAITHFULNESS
        + " Circles: the smallest circuit within 0.02 of the plateau. Dotted: n random heads instead (mean of the draws). "
        "(Paper: Appendix A, faithfulness over heads.)",
    ),
    Plate(
        "circuit-table",
        ("circuit",),
        circuit_table,
        "Circuits by operator",
        "The chosen circuits, on evaluation prompts that were not used to find them, and random circuits with as many heads. "
        + _FAITHFULNESS
        + " Heads in bold are shared by all operators. (Paper: tables of Appendices A and B.)",
    ),
    Plate(
        "probe-accuracy",
        ("probe",),
        probe_accuracy,
        "Where the answer can be read off",
        "Accuracy of linear probes from the residual stream to the answer, on prompts they were not trained on. The first "
        "answer layer is the first whose accuracy at the last position reaches half of the best layer's. Bands: 95 % "
        "bootstrap intervals. (Paper: Figure 3.)",
    ),
    Plate(
        "attention-patterns",
        ("heads",),
        attention_patterns,
        "Attention patterns of the circuit's heads",
        "Mean attention over evaluation prompts, from the position on the left to the one below, averaged over the "
        "operators in brackets, whose circuits the head is in. Bold: shared by all operators. (Paper: Appendix B.)",
    ),
    Plate(
        "head-roles",
        ("heads",),
        head_roles,
        "What the circuit's heads attend to, and whether that position stands alone",
        "Left: attention of each circuit head from the last position (shares from .10 on are written out); the most "
        "attended token, in the frame, is the head's role. Right: faithfulness of the circuit before and after that "
        "position is cut off, in all layers below the head, from the prompt's earlier tokens. "
        + _FAITHFULNESS
        + " Heads in bold are shared by all operators; of very large circuits the foremost heads are shown. (Paper: "
        "Appendix B.)",
    ),
    Plate(
        "first-mlp-effects",
        ("mlp0",),
        first_mlp_effects,
        "Effect of single neurons of the first MLP",
        "Each neuron of the first MLP is patched on its own at op1, operator or op2. "
        + _EFFECT
        + " Neurons are sorted by their mean (solid) or median (dotted) effect. (Paper: Appendix B, MLP0 neuron effects.)",
    ),
    Plate(
        "first-mlp-faithfulness",
        ("mlp0",),
        first_mlp_faithfulness,
        "How much of the first MLP the circuit needs",
        "Only the strongest neurons of the first MLP are kept in each operator's circuit. "
        + _FAITHFULNESS
        + " Dotted: as many random neurons (mean of the draws). (Paper: Appendix B, faithfulness over MLP0 neurons.)",
    ),
    Plate(
        "number-tuning",
        ("mlp0",),
        number_tuning,
        "Numbers that first-MLP neurons respond to",
        "Activation, at op1, of the neurons of the first MLP that rank highest by effect on average over operators, for each "
        "number. (Paper: Appendix B, MLP0 activation patterns.)",
    ),
    Plate(
        "neuron-effects",
        ("neurons",),
        neuron_effects,
        "Effect of single neurons at the last position",
        "Each neuron, from the first answer layer on, is patched on its own at the last position (or its effect is estimated, "
        "in a run with `--neurons`). "
        + _EFFECT
        + " Of each layer the neurons are sorted by their mean (solid) or median (dotted) effect; at the bottom lie those with "
        "next to no effect, and those with a negative one. (Paper: Section 3.1, effects of the neurons of layer 17.)",
    ),
    Plate(
        "screens-against-exact",
        ("neurons",),
        screens_against_exact,
        "How well gradients tell which neurons matter",
        "Estimates from gradients against the exact effects of all neurons: attribution patching (atp), integrated gradients "
        "(ig) and relevance patching (relp). Left: Spearman's rank correlation of mean effects. Right: the share of the "
        "exact best neurons of each layer that are among as many best ones of the estimate. (Not in the paper.)",
    ),
    Plate(
        "faithfulness-by-neurons",
        ("topk",),
        faithfulness_by_neurons,
        "How many neurons the circuit needs",
        "The operator's circuit, but from the first answer layer on each MLP keeps only its k neurons of largest effect at the "
        "last position. "
        + _FAITHFULNESS
        + " Circles: the chosen k. Dotted: k random neurons of each layer instead (mean of the draws). (Paper: Section 3.1, "
        "faithfulness over neurons.)",
    ),
    Plate(
        "heuristic-gallery",
        ("patterns", "classify"),
        heuristic_gallery,
        "Kinds of heuristics, as neurons implement them",
        "For each kind of heuristic the neuron whose calibrated match its activation does most for. Colours: activation at the "
        "last position for each pair of operands. Pale: prompts that are not legal. Expected: the score that the value vector "
        "alone brings, for operand heuristics chance. Products are on a logarithmic scale, and residues in sums and "
        "differences are shown for thirty numbers. (Paper: Figure 5.)",
    ),
    Plate(
        "matching-walkthrough",
        ("patterns", "classify"),
        matching_walkthrough,
        "How a neuron is matched with a heuristic",
        "The activation pattern (a) times the value vector's logit of each prompt's answer (b, c) is what the neuron adds to "
        "the right answer (d). Its k foremost prompts (e) are compared with the k prompts of the heuristic "
        "(f); the score is the share that they have in common (g). (Paper: Figure 6.)",
    ),
    Plate(
        "classified-shares",
        ("classify",),
        raw_and_calibrated,
        "How many top neurons are classified",
        "Raw: some heuristic scores at least 0.6, the paper's criterion. Calibrated: such a heuristic that also has a "
        "false-discovery rate of at most 0.05, against permuted activations. Right: how much of a neuron's pattern its matched "
        "heuristics explain together (R² of a linear regression, mean over neurons). Bars: 95 % bootstrap intervals. (Paper: "
        "Section 4.1.)",
    ),
    Plate(
        "kinds-by-layer",
        ("classify",),
        kinds_by_layer,
        "Which kinds of heuristics are in which layer",
        "Share of a layer's top neurons that match at least one heuristic of a kind; a neuron may match several. Above by the "
        "raw score, below after calibration. (Paper: Section 4.1.)",
    ),
    Plate(
        "example-neurons",
        ("patterns", "classify"),
        example_neurons,
        "Example neurons",
        "Of each operator some neurons that are classified after calibration, by effect, one for each kind of heuristic first. "
        "Activation for each pair of operands (op1 to the right, op2 upwards; pale: not legal), the ten numbers that the value "
        "vector promotes most, and the calibrated heuristics with most evidence, with their scores. (Paper: Appendix C.)",
    ),
    Plate(
        "unclassified-neurons",
        ("patterns", "classify"),
        unclassified_neurons,
        "The strongest neurons that are not classified",
        "Of each operator the neurons of largest effect without a calibrated heuristic; those named score at least 0.6, but no "
        "better than chance and the value vector explain. (Paper: Appendix C.)",
    ),
    Plate(
        "neuron-overlap",
        ("overlap",),
        neuron_overlap,
        "Whether operators share their neurons",
        "Intersection over union of the operators' top neurons, as chosen for each operator: over all layers (left) and within "
        "each (right). Operators with different k cannot reach 1. (Paper: Appendix D.)",
    ),
    Plate(
        "knockout-by-heuristic",
        ("knockout",),
        knockout_by_heuristic,
        "What is lost without a heuristic's neurons",
        "For each heuristic with at least ten neurons these are set to zero, and correct prompts, none of them used to "
        "choose neurons, are asked again: some that satisfy the heuristic and as many that do not. The largest drop comes "
        "first. Dashes: the former prompts, with as many top neurons of each layer silenced that do not match the "
        "heuristic. Bars: 95 % bootstrap intervals. (Paper: Section 4.2, knockout by heuristic type.)",
    ),
    Plate(
        "prompt-knockout",
        ("prompt_knockout",),
        prompt_knockout_curves,
        "What is lost without the neurons of a prompt's own heuristics",
        "For each correct prompt the n neurons of each layer that score best among the heuristics that hold for it are "
        "set to zero. Controls lose as many neurons of each layer: top neurons of which no heuristic holds for the "
        "prompt, as far as there are any, or top neurons drawn at random (mean of the draws). Bands: 95 % bootstrap "
        "intervals over prompts. (Paper: Section 4.2, knockout by prompt.)",
    ),
    Plate(
        "bag-alone",
        ("bag",),
        bag_alone,
        "What the bag of heuristics can do alone",
        "The operator's circuit, but from the first answer layer on each MLP keeps only some of its top neurons at the "
        "last position. " + _FAITHFULNESS + " (Paper: Section 5, for training checkpoints.)",
    ),
    Plate(
        "failure-contributions",
        ("failures",),
        failure_contributions,
        "Why some prompts fail",
        "Prompts that the model gets right and wrong. Above: how many heuristic neurons (calibrated) are associated with "
        "each. Middle: activation × value-vector logit of the right answer, summed over all heuristic neurons. In the "
        "titles the difference of means, right minus wrong. Below: a logistic model of being right on both. Lines: "
        "quartiles; diamonds: means; brackets and bars: 95 % bootstrap intervals. (Paper: Section 4.3.)",
    ),
    Plate(
        "worst-prompts",
        ("failures",),
        worst_prompts,
        "The worst mistakes, and which heuristics made them",
        "Of each operator the wrongly answered prompts with the least probable right answer. Pushed: by how much "
        "heuristic neurons (calibrated) raise the given answer's logit above the right one's, all together and by "
        "heuristic; each neuron counts for the heuristic it matches furthest beyond expectation. In the logit lens, up to "
        "the final norm's scale. (Paper: Section 4.3.)",
    ),
    Plate(
        "training",
        ("training",),
        training_curves,
        "How the bag of heuristics grows over training",
        "(a) Of the final checkpoint's pairs of neuron and heuristic, the share that are matches at an earlier "
        "checkpoint. (b) Faithfulness of the circuit with only the heuristic neurons of a checkpoint, all of them or "
        "those that share a pair with the final one. (c) Accuracy when each prompt loses neurons of its own heuristics. A "
        "checkpoint that hardly ever answers an operator correctly has no points for it. Bands: 95 % bootstrap intervals. "
        "(Paper: Section 5.)",
    ),
    Plate(
        "stability",
        ("stability",),
        repeated_numbers,
        "Key numbers, measured again",
        "The run (black, with its 95 % interval), the same study on either half of the prompts with samples half as large "
        "(blue), and with other seeds (orange). Above: those of the key numbers that are shares. Below: how far choices agree, "
        "between the two halves and between seeds. Heads and neurons: intersection over union. Neurons that stay classified: "
        "the share that are top neurons in the other too, with a match of the same kind. Circles of one colour that lie apart "
        "mean that a number depends on the prompts that happened to be drawn. (Not in the paper.)",
    ),
)
