"""Training data of a recipe: which pairs of operands are seen, and batches that depend only on seed and step."""

import torch
from jaxtyping import Int
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.tokenization import PromptEncoder
from arithscope.prompts import Prompts, legal_prompts, random_source
from arithscope.training.recipe import DataRecipe, Recipe


def split_pairs(data: DataRecipe, seed: int) -> dict[str, tuple[Prompts, Prompts]]:
    """For each operator, a random split of its legal prompts into (seen, unseen); training never uses the unseen ones."""
    pairs = {}
    for operator, share in data.seen.items():
        prompts = legal_prompts(operator, data.max_operand, data.numbers)
        order = random_source(seed, "seen pairs", operator).permutation(len(prompts))
        cut = round(share * len(prompts))
        pairs[operator] = prompts[order[:cut]], prompts[order[cut:]]
    return pairs


class Batches:
    """`batches[step]`: token ids and target tokens, drawn with replacement, equally many of each operator.

    A share `noise` of the answers is changed by up to ±`noise_width`.
    """

    def __init__(self, recipe: Recipe, encoder: PromptEncoder, device: torch.device):
        self.recipe, self.device = recipe, device
        seen = [seen for seen, _ in split_pairs(recipe.data, recipe.seed).values() if len(seen)]
        if not seen:
            raise UserError("The recipe leaves nothing to train on; give a larger share in [data.seen].")
        self.inputs = [encoder.encode(p).to(device) for p in seen]
        self.results = [torch.from_numpy(p.answer).to(device) for p in seen]
        self.answer_tokens = encoder.answer_tokens.to(device)

    def __getitem__(self, step: int) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
        data = self.recipe.data
        random = torch.Generator(self.device).manual_seed(self.recipe.seed * 1_000_003 + step)

        def draw(low: int, high: int, size: int) -> Tensor:
            return torch.randint(low, high, (size,), generator=random, device=self.device)

        size = max(1, self.recipe.schedule.batch_size // len(self.inputs))
        rows = [draw(0, len(x), size) for x in self.inputs]
        inputs = torch.cat([x[r] for x, r in zip(self.inputs, rows, strict=True)])
        results = torch.cat([x[r] for x, r in zip(self.results, rows, strict=True)])
        offset = draw(-data.noise_width, data.noise_width + 1, len(results))
        noisy = torch.rand(len(results), generator=random, device=self.device) < data.noise
        results = torch.where(noisy, (results + offset).clamp(0, data.numbers - 1), results)
        return inputs, self.answer_tokens[results]
