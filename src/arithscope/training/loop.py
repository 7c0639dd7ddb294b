"""Training a subject from scratch: seeded, resumable, with checkpoints that are complete Hugging Face folders."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from arithscope.errors import UserError
from arithscope.files import new_folder, write_text
from arithscope.prompts import Prompts, Template, random_source, sample
from arithscope.subject.encoding import PromptEncoder
from arithscope.subject.fresh import fresh_model, number_tokenizer
from arithscope.training.card import model_card
from arithscope.training.data import Batches, split_pairs
from arithscope.training.recipe import Recipe, read_recipe

EVALUATIONS = 20  # evenly spaced looks at the accuracy, on samples
SAMPLE = 2000  # prompts per operator, seen and unseen each, in such a look
Progress = Callable[[int, int, str], None]  # steps done, steps in all, what to say


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train as the recipe says, or go on with a training that was stopped, and return the finished subject's folder."""
    recipe = read_recipe(recipe_path)
    text = recipe_path.read_text(encoding="utf-8")
    _claim(out, text)
    if (out / "README.md").exists():
        return out
    torch.set_float32_matmul_precision("high")
    tokenizer = number_tokenizer(recipe.data.numbers)
    encoder = PromptEncoder(tokenizer, Template())
    model = fresh_model(recipe.model.family, recipe.model.config, tokenizer, recipe.seed).to(device)
    optimizer = _optimizer(model, recipe, device)
    log = _Log(out / "training_log.jsonl")
    done = _resume(out, model, optimizer)
    log.rewind(done)
    batches = Batches(recipe, encoder, device)
    looks = _looks(recipe)
    steps, checkpoints = recipe.schedule.steps, set(recipe.checkpoint_steps())
    evaluate_at = {round(steps * i / EVALUATIONS) for i in range(EVALUATIONS)} | checkpoints
    started, loss = time.monotonic(), math.nan

    for step in range(done, steps + 1):
        if step in evaluate_at or step == steps:
            loss = float(loss.detach()) if isinstance(loss, Tensor) else loss
            seconds = time.monotonic() - started
            log.add({"step": step, "loss": loss, "seconds": round(seconds, 1), **_measure(model, encoder, looks)})
            progress(step, steps, f"loss {loss:.3f}, held-out accuracy {log.rows[-1]['unseen_accuracy']}")
        if step in checkpoints and step >= done:
            _save_subject(out / "checkpoints" / f"step-{step:05d}", model, tokenizer)
            _save_state(out, step, model, optimizer)
        if step == steps:
            break
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(recipe, step)
        inputs, targets = batches[step]
        loss = torch.nn.functional.cross_entropy(_last_logits(model, inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            progress(step, steps, "training")

    # What is measured for the card is what is stored: the weights as rounded to half precision.
    stored = copy.deepcopy(model).half().float()
    everything = {kind: {o: p[i] for o, p in split_pairs(recipe.data, recipe.seed).items()}
                  for i, kind in enumerate(("seen", "unseen"))}
    card = model_card(recipe, sum(p.numel() for p in model.parameters()), _measure_all(stored, encoder, everything))
    _save_subject(out, model, tokenizer, fresh=False)
    (out / "resume.safetensors").unlink(missing_ok=True)
    write_text(out / "README.md", card)
    return out


def _claim(out: Path, recipe_text: str) -> None:
    """Take a folder for this recipe, or refuse one that holds something else."""
    kept = out / "recipe.toml"
    try:
        if kept.exists():
            if kept.read_text(encoding="utf-8") != recipe_text:
                raise UserError(f"{out} holds a training of another recipe; choose another --out.")
        elif out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no training; choose another --out.")
        else:
            out.mkdir(parents=True, exist_ok=True)
            write_text(kept, recipe_text)
    except OSError as error:
        raise UserError(f"Cannot write to {out} ({error.strerror}); choose another --out.") from None


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


def _looks(recipe: Recipe) -> dict[str, dict[str, Prompts]]:
    """Fixed samples of seen and unseen pairs per operator, for the log."""
    pairs = split_pairs(recipe.data, recipe.seed)
    return {
        kind: {o: sample(pair[i], SAMPLE, random_source(recipe.seed, "look", kind, o)) for o, pair in pairs.items()}
        for i, kind in enumerate(("seen", "unseen"))
    }


@torch.no_grad()
def _predict(model: Any, encoder: PromptEncoder, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """For each prompt whether the argmax is the answer, and the answer's probability."""
    model.eval()
    device = next(model.parameters()).device
    right, probability = [], []
    ids, answers = encoder.encode(prompts), encoder.answers(prompts)
    for x, y in zip(ids.split(16384), answers.split(16384), strict=True):
        logits, y = _last_logits(model, x.to(device)), y.to(device)
        right.append(logits.argmax(-1) == y)
        probability.append(logits.softmax(-1).gather(1, y[:, None])[:, 0])
    return torch.cat(right).cpu(), torch.cat(probability).cpu()


def _measure(model: Any, encoder: PromptEncoder, looks: dict[str, dict[str, Prompts]]) -> dict[str, Any]:
    """Accuracy per operator on the log's samples, and the mean probability of the answer where it is right."""
    row: dict[str, Any] = {}
    for kind, samples in looks.items():
        accuracy, confidence = {}, {}
        for operator, prompts in samples.items():
            if len(prompts):
                right, probability = _predict(model, encoder, prompts)
                accuracy[operator] = round(right.double().mean().item(), 4)
                confidence[operator] = round(probability[right].double().mean().item(), 4) if right.any() else None
        row |= {f"{kind}_accuracy": accuracy, f"{kind}_p_answer": confidence}
    return row


def _measure_all(
    model: Any, encoder: PromptEncoder, pairs: dict[str, dict[str, Prompts]]
) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    return {
        kind: {o: _predict(model, encoder, p) for o, p in prompts.items() if len(p)} for kind, prompts in pairs.items()
    }


def _save_subject(folder: Path, model: Any, tokenizer: Any, fresh: bool = True) -> None:
    """Weights in half precision, configuration and tokenizer."""
    half = copy.deepcopy(model).half().cpu()
    if fresh:
        folder.parent.mkdir(exist_ok=True)
        with new_folder(folder) as new:
            half.save_pretrained(new)
            tokenizer.save_pretrained(new)
    else:
        half.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _save_state(out: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Everything needed to go on from this step, without pickle."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
    temporary = out / ".resume.safetensors.tmp"
    save_file({k: v.contiguous().cpu().clone() for k, v in tensors.items()}, temporary, {"step": str(step)})
    temporary.replace(out / "resume.safetensors")


def _resume(out: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last saved state, if there is one, and return its step."""
    path = out / "resume.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a mapping)
        step = int(file.metadata()["step"])
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
    """training_log.jsonl: one row a look, in order of steps."""

    def __init__(self, path: Path):
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def rewind(self, step: int) -> None:
        """Forget what a stopped training logged from the step on at which it is taken up again."""
        self.rows = [row for row in self.rows if row["step"] < step]

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
        write_text(self.path, "".join(json.dumps(r) + "\n" for r in self.rows))
