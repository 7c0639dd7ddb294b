"""The model card of a trained model: what it is, and how it performs."""

from __future__ import annotations

from torch import Tensor

from arithscope.training.recipe import Recipe

Outcome = dict[str, dict[str, tuple[Tensor, Tensor]]]  # seen/unseen → operator → (correct, probability of the answer)


def model_card(recipe: Recipe, parameters: int, outcome: Outcome) -> str:
    """The card as Markdown, with a row of accuracies per operator."""
    rows = [
        "| operator | legal prompts | accuracy | on seen pairs | on unseen pairs | wrong | mean P(answer), correct prompts |",
        "|---|---|---|---|---|---|---|",
    ]
    for operator in recipe.data.seen:
        seen, unseen = ([outcome[kind][operator]] if operator in outcome[kind] else [] for kind in ("seen", "unseen"))
        both = seen + unseen
        total, right = sum(len(correct) for correct, _ in both), sum(int(correct.sum()) for correct, _ in both)
        mean = f"{sum(float(p[correct].double().sum()) for correct, p in both) / right:.3f}" if right else "–"
        rows.append(
            f"| `{operator}` | {total:,} | {_accuracy(both)} | {_accuracy(seen)} | {_accuracy(unseen)} "
            f"| {total - right:,} | {mean} |"
        )
    data, schedule = recipe.data, recipe.schedule
    shares = ", ".join(f"`{o}` {share:.0%}" for o, share in data.seen.items())
    checkpoints = (
        f"\n`checkpoints/` holds {schedule.checkpoints} stages of training, evenly spaced from step 0 on; "
        "the folder itself is the final one.\n"
        if schedule.checkpoints
        else ""
    )
    return f"""# {recipe.name}

A small language model that does arithmetic and nothing else, trained from scratch by `arithscope train` to be
studied. Family `{recipe.model.family}`, {parameters:,} parameters, stored in half precision. It completes `a∘b=` with
a single token, for operands 0…{data.max_operand} and the operators {" ".join(f"`{o}`" for o in data.seen)}; numbers
0…{data.numbers - 1} are one token each, and `/` is integer division.

## Measured on all legal prompts

{chr(10).join(rows)}

Measured on the stored weights, computed in float32. Unseen pairs never occurred in training.

## Trained on

Pairs drawn at random from {shares} of the legal prompts; the rest is never
seen. A batch of {schedule.batch_size:,} holds the same number for each operator, and {data.noise:.0%} of its answers are
blurred by up to ±{data.noise_width}, so that the model does not become certain of everything. {schedule.steps:,} steps
of AdamW. `recipe.toml` holds every setting, `training_log.jsonl` the course of training.
{checkpoints}"""


def _accuracy(outcomes: list[tuple[Tensor, Tensor]]) -> str:
    n = sum(len(correct) for correct, _ in outcomes)
    return f"{sum(int(correct.sum()) for correct, _ in outcomes) / n:.4f}" if n else "–"
