"""The model card of a trained subject: what it is, and what it was measured to do."""

from __future__ import annotations

from torch import Tensor

from arithscope.training.recipe import Recipe

Outcome = dict[str, dict[str, tuple[Tensor, Tensor]]]  # seen/unseen → operator → (right, probability of the answer)


def _share(right: list[Tensor]) -> str:
    n = sum(len(r) for r in right)
    return f"{sum(int(r.sum()) for r in right) / n:.4f}" if n else "–"


def model_card(recipe: Recipe, parameters: int, outcome: Outcome) -> str:
    lines = [
        "| operator | legal prompts | accuracy | on seen pairs | on unseen pairs | wrong | mean P(answer), correct prompts |",
        "|---|---|---|---|---|---|---|",
    ]
    for operator in recipe.data.seen:
        seen, unseen = ([outcome[kind][operator]] if operator in outcome[kind] else [] for kind in ("seen", "unseen"))
        both = seen + unseen
        right = [r for r, _ in both]
        confident = [p[r] for r, p in both]
        n = sum(int(r.sum()) for r in right)
        total = sum(len(r) for r in right)
        mean = f"{sum(float(c.double().sum()) for c in confident) / n:.3f}" if n else "–"
        lines.append(
            f"| `{operator}` | {total:,} | {_share(right)} | {_share([r for r, _ in seen])} "
            f"| {_share([r for r, _ in unseen])} | {total - n:,} | {mean} |"
        )
    data, schedule = recipe.data, recipe.schedule
    seen_share = ", ".join(f"`{o}` {share:.0%}" for o, share in data.seen.items())
    kept = (
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

{chr(10).join(lines)}

Measured on the stored weights, computed in float32. Unseen pairs never occurred in training.

## Trained on

Pairs drawn at random from {seen_share} of the legal prompts; the rest is never
seen. A batch of {schedule.batch_size:,} holds the same number for each operator, and {data.noise:.0%} of its answers are
blurred by up to ±{data.noise_width}, so that the model does not become certain of everything. {schedule.steps:,} steps
of AdamW. `recipe.toml` holds every setting, `training_log.jsonl` the course of training.
{kept}"""
