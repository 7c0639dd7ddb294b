"""Training a model from scratch: seeded and resumable, with checkpoints that are complete Hugging Face folders."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.tokenization import PromptEncoder
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Prompts, Template, random_source, sample
from arithscope.stats.effects import log_probability
from arithscope.training.card import model_card
from arithscope.training.data import Batches, split_pairs
from arithscope.training.recipe import Recipe, read_recipe
from arithscope.utils.files import LOCK, atomic_file, atomic_folder, explain_write_errors, locked, write_text
from arithscope.utils.progress import Progress

EVALUATIONS = 20  # evenly spaced over training, on samples
SAMPLE = 2000  # prompts per operator in an evaluation, seen and unseen each
ROWS = 16384  # prompts per forward pass in an evaluation
FINISHED = "README.md"  # the model card, written last
RESUME = "resume.safetensors"
RECIPE = "recipe.toml"

Samples = dict[str, dict[str, Prompts]]  # seen/unseen → operator → prompts


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train a model from a recipe, or continue a training that was stopped.

    Args:
        recipe_path: The recipe, a TOML file.
        out: Folder for the model, its checkpoints, the training log and the model card.
        device: Device to train on.
        progress: Shows the steps.

    Returns:
        The folder of the finished model, `out`.

    Raises:
        UserError: If the recipe is wrong, or `out` holds something other than a training of this recipe.
    """
    recipe = read_recipe(recipe_path)
    training = _Training(recipe, device)  # before the folder is created: the recipe may ask for an impossible model
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        text = recipe_path.read_text(encoding="utf-8")
        _refuse_other_content(out, text)
        with locked(out):
            if not (out / RECIPE).exists():
                write_text(out / RECIPE, text)
            if not (out / FINISHED).exists():
                training.run(out, progress)
            (out / RESUME).unlink(missing_ok=True)
    return out


def _refuse_other_content(out: Path, recipe_text: str) -> None:
    if (out / RECIPE).exists():
        if (out / RECIPE).read_text(encoding="utf-8") != recipe_text:
            raise UserError(f"{out} holds a training of another recipe; choose another --out.")
    elif {entry.name for entry in out.iterdir()} - {LOCK, f".{RECIPE}.tmp"}:
        raise UserError(f"{out} is not empty and holds no training; choose another --out.")


class _Training:
    """Model, optimizer and data of a recipe."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.recipe = recipe
        self.tokenizer = number_tokenizer(recipe.data.numbers)
        self.encoder = PromptEncoder(self.tokenizer, Template())
        self.model: Any = untrained_model(recipe.model.family, recipe.model.config, self.tokenizer, recipe.seed).to(
            device
        )
        self.optimizer = _optimizer(self.model, recipe, device)
        self.batches = Batches(recipe, self.encoder, device)

    def run(self, out: Path, progress: Progress) -> None:
        recipe, steps = self.recipe, self.recipe.schedule.steps
        checkpoints = set(recipe.checkpoint_steps())
        evaluated = {round(steps * i / EVALUATIONS) for i in range(EVALUATIONS + 1)} | checkpoints
        samples = _evaluation_samples(recipe)
        done = self._resume(out / RESUME)
        log = _Log(out / "training_log.jsonl", done)
        started, loss = time.monotonic(), torch.tensor(math.nan)

        with progress.task(f"training {recipe.name}", steps) as advance, _fast_matrix_products():
            advance(done)
            for step in range(done, steps + 1):
                if step in evaluated and step not in log.rows:
                    row = {"step": step, "loss": loss.item(), "seconds": round(time.monotonic() - started, 1)}
                    log.add(row | _evaluate(self.model, self.encoder, samples))
                if step in checkpoints:
                    with atomic_folder(out / "checkpoints" / f"step-{step:05d}") as folder:
                        self._save_model(folder)
                    self._save_state(out / RESUME, step)
                if step < steps:
                    loss = self._step(*self.batches[step], _learning_rate(recipe, step))
                    advance(1)

        self._save_model(out)
        write_text(out / FINISHED, _measured_card(recipe, self.model, self.encoder))

    def _step(self, inputs: Tensor, targets: Tensor, learning_rate: float) -> Tensor:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = torch.nn.functional.cross_entropy(_last_logits(self.model, inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _save_model(self, folder: Path) -> None:
        """Weights in half precision, configuration and tokenizer."""
        copy.deepcopy(self.model).half().cpu().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _save_state(self, path: Path, step: int) -> None:
        """Everything needed to continue from this step, without pickle."""
        tensors = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
        with atomic_file(path) as temporary:
            save_file({k: v.contiguous().cpu().clone() for k, v in tensors.items()}, temporary, {"step": str(step)})

    def _resume(self, path: Path) -> int:
        """Load the saved state and return its step; 0 if there is none or it is damaged."""
        if not path.exists():
            return 0
        try:
            with safe_open(path, "pt") as file:
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a mapping)
                step = int(file.metadata()["step"])
        except (OSError, SafetensorError):
            return 0
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                state.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        return step


def _optimizer(model: torch.nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.schedule.learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda")


def _learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then half a cosine down to 2 % of the peak."""
    schedule = recipe.schedule
    warm = min(1.0, (step + 1) / max(1, schedule.warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return schedule.learning_rate * warm * (0.02 + 0.98 * cosine)


@contextmanager
def _fast_matrix_products() -> Iterator[None]:
    """Allow TF32 matrix products on GPUs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _last_logits(model: Any, inputs: Tensor) -> Tensor:
    hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state[:, -1]
    return model.get_output_embeddings()(hidden).float()


@torch.no_grad()
def _predict(model: Any, encoder: PromptEncoder, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """For each prompt, whether the top token is the answer, and the answer's probability."""
    model.eval()
    device = next(model.parameters()).device
    correct, probability = [], []
    for ids, answers in zip(encoder.encode(prompts).split(ROWS), encoder.answers(prompts).split(ROWS), strict=True):
        logits, answers = _last_logits(model, ids.to(device)), answers.to(device)
        correct.append(logits.argmax(-1) == answers)
        probability.append(log_probability(logits, answers).exp())
    return torch.cat(correct).cpu(), torch.cat(probability).cpu()


def _evaluation_samples(recipe: Recipe) -> Samples:
    """Fixed samples of seen and unseen pairs per operator, for the log."""
    pairs = split_pairs(recipe.data, recipe.seed)
    return {
        kind: {o: sample(pair[i], SAMPLE, random_source(recipe.seed, "look", kind, o)) for o, pair in pairs.items()}
        for i, kind in enumerate(("seen", "unseen"))
    }


def _evaluate(model: Any, encoder: PromptEncoder, samples: Samples) -> dict[str, Any]:
    """Accuracy per operator on the samples, and the answer's mean probability on correct prompts."""
    row: dict[str, Any] = {}
    for kind, by_operator in samples.items():
        accuracy, confidence = {}, {}
        for operator, prompts in by_operator.items():
            if len(prompts):
                correct, probability = _predict(model, encoder, prompts)
                accuracy[operator] = round(correct.double().mean().item(), 4)
                confidence[operator] = round(probability[correct].double().mean().item(), 4) if correct.any() else None
        row |= {f"{kind}_accuracy": accuracy, f"{kind}_p_answer": confidence}
    return row


def _measured_card(recipe: Recipe, model: torch.nn.Module, encoder: PromptEncoder) -> str:
    """The model card, measured on the weights as stored: rounded to half precision."""
    stored = copy.deepcopy(model).half().float()
    pairs = split_pairs(recipe.data, recipe.seed)
    outcome = {
        kind: {o: _predict(stored, encoder, pair[i]) for o, pair in pairs.items() if len(pair[i])}
        for i, kind in enumerate(("seen", "unseen"))
    }
    return model_card(recipe, sum(p.numel() for p in model.parameters()), outcome)


class _Log:
    """training_log.jsonl, one row per evaluation. Rows after the step at which training resumes are dropped."""

    def __init__(self, path: Path, done: int):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.path, self.rows = path, {row["step"]: row for row in map(json.loads, lines) if row["step"] <= done}

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["step"]] = row | {"loss": None if math.isnan(row["loss"]) else row["loss"]}
        write_text(self.path, "".join(json.dumps(r) + "\n" for r in self.rows.values()))
