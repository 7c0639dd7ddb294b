"""Training a subject from scratch: seeded, resumable, with checkpoints that are complete Hugging Face folders."""

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
from arithscope.utils.files import LOCK, locked, new_file, new_folder, write_text, writing
from arithscope.utils.progress import Progress

LOOKS = 20  # evenly spaced looks at the accuracy, on samples
SAMPLE = 2000  # prompts per operator, seen and unseen each, in such a look
ROWS = 16384  # prompts in one pass when measuring
FINISHED = "README.md"  # the model card is written last
RESUME = "resume.safetensors"
RECIPE = "recipe.toml"


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train as the recipe says, or go on with a training that was stopped, and return the finished subject's folder."""
    recipe = read_recipe(recipe_path)
    built = _built(recipe, device)  # a recipe that cannot be followed claims no folder
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        text = recipe_path.read_text(encoding="utf-8")
        _refuse_others(out, text)
        with locked(out):
            if not (out / RECIPE).exists():
                write_text(out / RECIPE, text)
            if not (out / FINISHED).exists():
                _train(recipe, *built, out, progress)
            (out / RESUME).unlink(missing_ok=True)
    return out


def _built(
    recipe: Recipe, device: torch.device
) -> tuple[Any, PromptEncoder, torch.nn.Module, torch.optim.Optimizer, Batches]:
    """Tokenizer, encoder, model, optimizer and batches, as the recipe says."""
    tokenizer = number_tokenizer(recipe.data.numbers)
    encoder = PromptEncoder(tokenizer, Template())
    model = untrained_model(recipe.model.family, recipe.model.config, tokenizer, recipe.seed).to(device)
    return tokenizer, encoder, model, _optimizer(model, recipe, device), Batches(recipe, encoder, device)


def _train(
    recipe: Recipe,
    tokenizer: Any,
    encoder: PromptEncoder,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    out: Path,
    progress: Progress,
) -> None:
    steps, checkpoints = recipe.schedule.steps, set(recipe.checkpoint_steps())
    looks = _looks(recipe)
    look_at = {round(steps * i / LOOKS) for i in range(LOOKS + 1)} | checkpoints
    done = _resume(out, model, optimizer)
    log = _Log(out / "training_log.jsonl", done)
    started, loss = time.monotonic(), torch.tensor(math.nan)

    with progress.task(f"training {recipe.name}", steps) as advance, _fast_matrix_products():
        advance(done)
        for step in range(done, steps + 1):
            if step in look_at and not log.has(step):
                spent = {"step": step, "loss": loss.item(), "seconds": round(time.monotonic() - started, 1)}
                log.add({**spent, **_measure(model, encoder, looks)})
            if step in checkpoints:
                with new_folder(out / "checkpoints" / f"step-{step:05d}") as folder:
                    _save_model(folder, model, tokenizer)
                _save_state(out, step, model, optimizer)
            if step < steps:
                loss = _step(model, optimizer, *batches[step], learning_rate=_learning_rate(recipe, step))
                advance(1)

    _save_model(out, model, tokenizer)
    write_text(out / FINISHED, measured_card(recipe, model, encoder))


def measured_card(recipe: Recipe, model: torch.nn.Module, encoder: PromptEncoder) -> str:
    """The card of a finished subject. What is measured is what is stored: the weights as rounded to half precision."""
    stored = copy.deepcopy(model).half().float()
    pairs = split_pairs(recipe.data, recipe.seed)
    outcome = {
        kind: {o: predict(stored, encoder, pair[i]) for o, pair in pairs.items() if len(pair[i])}
        for i, kind in enumerate(("seen", "unseen"))
    }
    return model_card(recipe, sum(p.numel() for p in model.parameters()), outcome)


@contextmanager
def _fast_matrix_products() -> Iterator[None]:
    """Training may round matrix products on a GPU to fewer bits; measuring may not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _refuse_others(out: Path, recipe_text: str) -> None:
    """A folder that holds something else than a training of this recipe is left alone."""
    if (out / RECIPE).exists():
        if (out / RECIPE).read_text(encoding="utf-8") != recipe_text:
            raise UserError(f"{out} holds a training of another recipe; choose another --out.")
    elif {entry.name for entry in out.iterdir()} - {LOCK, f".{RECIPE}.tmp"}:
        raise UserError(f"{out} is not empty and holds no training; choose another --out.")


def _optimizer(model: torch.nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.schedule.learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda")


def _learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then half a cosine down to 2 % of the peak."""
    schedule = recipe.schedule
    warm = min(1.0, (step + 1) / max(1, schedule.warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return schedule.learning_rate * warm * (0.02 + 0.98 * cosine)


def _last_logits(model: Any, inputs: Tensor) -> Tensor:
    hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state[:, -1]
    return model.get_output_embeddings()(hidden).float()


def _step(
    model: Any, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, learning_rate: float
) -> Tensor:
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    loss = torch.nn.functional.cross_entropy(_last_logits(model, inputs), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _looks(recipe: Recipe) -> dict[str, dict[str, Prompts]]:
    """Fixed samples of seen and unseen pairs per operator, for the log."""
    pairs = split_pairs(recipe.data, recipe.seed)
    return {
        kind: {o: sample(pair[i], SAMPLE, random_source(recipe.seed, "look", kind, o)) for o, pair in pairs.items()}
        for i, kind in enumerate(("seen", "unseen"))
    }


@torch.no_grad()
def predict(model: Any, encoder: PromptEncoder, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """For each prompt whether the argmax is the answer, and the answer's probability."""
    model.eval()
    device = next(model.parameters()).device
    right, probability = [], []
    ids, answers = encoder.encode(prompts), encoder.answers(prompts)
    for x, y in zip(ids.split(ROWS), answers.split(ROWS), strict=True):
        logits, y = _last_logits(model, x.to(device)), y.to(device)
        right.append(logits.argmax(-1) == y)
        probability.append(log_probability(logits, y).exp())
    return torch.cat(right).cpu(), torch.cat(probability).cpu()


def _measure(model: Any, encoder: PromptEncoder, looks: dict[str, dict[str, Prompts]]) -> dict[str, Any]:
    """Accuracy per operator on the log's samples, and the mean probability of the answer where it is right."""
    row: dict[str, Any] = {}
    for kind, samples in looks.items():
        accuracy, confidence = {}, {}
        for operator, prompts in samples.items():
            if len(prompts):
                right, probability = predict(model, encoder, prompts)
                accuracy[operator] = round(right.double().mean().item(), 4)
                confidence[operator] = round(probability[right].double().mean().item(), 4) if right.any() else None
        row |= {f"{kind}_accuracy": accuracy, f"{kind}_p_answer": confidence}
    return row


def _save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Weights in half precision, configuration and tokenizer."""
    copy.deepcopy(model).half().cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _save_state(out: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Everything needed to go on from this step, without pickle."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
    with new_file(out / RESUME) as temporary:
        save_file({k: v.contiguous().cpu().clone() for k, v in tensors.items()}, temporary, {"step": str(step)})


def _resume(out: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last saved state, if there is one, and return its step."""
    path = out / RESUME
    if not path.exists():
        return 0
    try:
        with safe_open(path, "pt") as file:
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a mapping)
            step = int(file.metadata()["step"])
    except (OSError, SafetensorError):
        return 0  # damaged: from the beginning
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


class _Log:
    """training_log.jsonl: one row a look, in order of steps. What a stopped training logged behind the step at which it is
    taken up again is forgotten."""

    def __init__(self, path: Path, done: int):
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["step"] <= done]

    def has(self, step: int) -> bool:
        return any(row["step"] == step for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
        write_text(self.path, "".join(json.dumps(r) + "\n" for r in self.rows))
