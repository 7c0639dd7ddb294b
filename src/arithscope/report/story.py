"""The report's sections, in the paper's order: the question that each answers, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from arithscope.figures.gallery import PLATES

BY_NAME = {plate.name: plate for plate in PLATES}


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    question: str
    figures: tuple[str, ...]

    @property
    def stages(self) -> list[str]:
        """The stages that its figures are drawn from."""
        return list(dict.fromkeys(stage for name in self.figures for stage in BY_NAME[name].needs))


SECTIONS: tuple[Section, ...] = (
    Section(
        "accuracy",
        "How often it is right",
        "Before asking how the subject calculates, this asks whether it does. Every legal prompt is put to it: "
        "operands within range, and an answer that is a single token. All later experiments use prompts that it "
        "answers correctly, but for the one about failures.",
        ("accuracy",),
    ),
    Section(
        "circuit",
        "The circuit",
        "Which attention heads and MLPs does the subject need to calculate, at which positions, and how few of them "
        "suffice? Components are ranked by what patching each with its activation on another prompt does. Then the "
        "best are kept and all else is set to its mean. Heads are also asked where they look, and the first MLP what "
        "it responds to.",
        (
            "localization",
            "localization-by-operator",
            "circuit-diagram",
            "faithfulness-by-heads",
            "circuit-table",
            "attention-patterns",
            "head-roles",
            "first-mlp-effects",
            "first-mlp-faithfulness",
            "number-tuning",
        ),
    ),
    Section(
        "probes",
        "Where the answer appears",
        "Behind which layer, and at which position, can the answer be read off the residual stream by a linear "
        "classifier? The first answer layer that comes out is where the search for neurons begins. A probe can add by "
        "itself, so that the answer's being readable does not mean that the subject has it by then.",
        ("probe-accuracy",),
    ),
    Section(
        "neurons",
        "Single neurons",
        "Which neurons of the later MLPs matter for the answer, and how few of them suffice? Each is patched on its "
        "own at the last position. Then each MLP keeps only its k best, the others being set to their means.",
        ("neuron-effects", "screens-against-exact", "faithfulness-by-neurons"),
    ),
    Section(
        "gallery",
        "A gallery of heuristics",
        "What makes a top neuron fire, and what does it write? Its activation over all pairs of operands is compared "
        "with simple rules: ranges, remainders, digit patterns, equal operands. Neurons that no rule fits are shown "
        "as well.",
        ("heuristic-gallery", "matching-walkthrough", "example-neurons", "unclassified-neurons"),
    ),
    Section(
        "classification",
        "Raw against calibrated classification",
        "How many top neurons implement a rule, and which? The paper counts every neuron whose best score is at least "
        "0.6. Some rules reach that by chance, or because of the value vector alone, so here a calibrated count "
        "stands beside it. Last: do operators share their top neurons?",
        ("classified-shares", "kinds-by-layer", "neuron-overlap"),
    ),
    Section(
        "proof",
        "The causal proof",
        "Are these rules the mechanism? The neurons of a rule, or of all rules that hold for a prompt, are silenced, "
        "beside controls that lose as many other neurons. And turned around: can the neurons with a rule carry the "
        "answer alone?",
        ("knockout-by-heuristic", "prompt-knockout", "bag-alone"),
    ),
    Section(
        "failures",
        "Failures",
        "Why does the subject get some prompts wrong: do fewer heuristics hold for them, or do heuristic neurons push "
        "the right answer too weakly? Prompts answered rightly and wrongly are compared.",
        ("failure-contributions", "worst-prompts"),
    ),
    Section(
        "training",
        "Over training",
        "When do the final rules appear, and do they carry the subject's arithmetic from then on? Earlier checkpoints "
        "are studied in the same way and compared with the final one.",
        ("training",),
    ),
    Section(
        "stability",
        "How stable it is",
        "Would the same come out again? The whole study is repeated on either half of the prompts, with samples half as "
        "large, and with other seeds, and every key number is compared.",
        ("stability",),
    ),
)
