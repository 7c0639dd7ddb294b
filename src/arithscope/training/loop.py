"""Trains a model from scratch: seeded and resumable, with checkpoints that are complete Hugging Face folders."""

import copy
import json
import math
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.load import silence_libraries
from arithscope.models.sources import RECIPE
from arithscope.models.untrained import untrained_model
from arithscope.prompts import Prompts, random_source, sample
from arithscope.training.batches import Batches, Writer
from arithscope.training.evaluation import answer_logits, model_card, predict
from arithscope.training.pairs import split_pairs
from arithscope.training.recipe import Recipe, read_recipe
from arithscope.training.sparsity import Sparsity
from arithscope.utils.files import LOCK, atomic_file, atomic_folder, explain_write_errors, locked, write_text
from arithscope.utils.progress import Progress

EVALUATIONS = 20  # evenly spaced over training, on samples
SAMPLE = 2000  # prompts per operator in an evaluation, seen and unseen each
FINISHED = "README.md"  # the model card, written last
RESUME = "resume.safetensors"


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train a model from a recipe (a TOML file), or continue a training run that was stopped, and return its folder `out`:
    the model, its checkpoints, the training log and the model card. Raises UserError if the recipe is wrong, or `out` holds
    something other than a training run of this recipe."""
    recipe = read_recipe(recipe_path)
    silence_libraries()
    training = Training(recipe, device)  # before the folder is created: the recipe may ask for an impossible model
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        text = recipe_path.read_text(encoding="utf-8")
        if (out / RECIPE).exists():
            if (out / RECIPE).read_text(encoding="utf-8") != text:
                raise UserError(f"{out} holds a training run of another recipe; choose another --out.")
        elif {entry.name for entry in out.iterdir()} - {LOCK, f".{RECIPE}.tmp"}:
            raise UserError(f"{out} is not empty and holds no training run; choose another --out.")
        with locked(out):
            if not (out / RECIPE).exists():
                write_text(out / RECIPE, text)
            if not (out / FINISHED).exists():
                training.run(out, progress)
            (out / RESUME).unlink(missing_ok=True)
    return out


class Training:
    """Model, optimizer and data of a recipe."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.recipe = recipe
        schedule = recipe.schedule
        self.writer = Writer(recipe.data)
        model: Any = untrained_model(recipe.model.family, recipe.model.config, self.writer.tokenizer, recipe.seed)
        self.model = model.to(device)
        if device.type == "cpu":  # which is slow at fused attention over such short texts
            self.model.set_attn_implementation("eager")
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]  # biases and norms
        groups = [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        fused = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, schedule.learning_rate, betas=(0.9, 0.98), fused=fused)
        self.batches = Batches(recipe, self.writer, device)
        self.sparsity = Sparsity(self.model, recipe.model.family, schedule.early) if schedule.sparsity else None
        # Half-precision matrix products, where the device is fast at them; sums and weights stay in single precision.
        self.half_precision = _multiplies_bfloat16(device)

    def run(self, out: Path, progress: Progress) -> None:
        seed, steps, n = self.recipe.seed, self.recipe.schedule.steps, self.recipe.schedule.checkpoints
        checkpoints = {steps * i // n for i in range(n)}
        evaluated = {round(steps * i / EVALUATIONS) for i in range(EVALUATIONS + 1)} | checkpoints
        pairs = split_pairs(self.recipe.data, seed)
        samples = {
            kind: {o: sample(pair[i], SAMPLE, random_source(seed, "look", kind, o)) for o, pair in pairs.items()}
            for i, kind in enumerate(("seen", "unseen"))
        }
        done, log = self._resume(out / RESUME), out / "training_log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        rows = {row["step"]: row for row in map(json.loads, lines) if row["step"] <= done}
        started, loss = time.monotonic(), torch.tensor(math.nan)
        with ExitStack() as stack:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high")  # TF32 matrix products on GPUs
            advance = stack.enter_context(progress.task(f"training {self.recipe.name}", steps))
            advance(done)
            for step in range(done, steps + 1):
                if step in evaluated and step not in rows:
                    last_loss = None if loss.isnan() else loss.item()
                    seconds = round(time.monotonic() - started, 1)
                    rows[step] = {"step": step, "loss": last_loss, "seconds": seconds, **self._evaluate(samples)}
                    write_text(log, "".join(json.dumps(row) + "\n" for row in rows.values()))
                if step in checkpoints:
                    with atomic_folder(out / "checkpoints" / f"step-{step:05d}") as folder:
                        self._save_model(folder)
                if step in evaluated and step > done:
                    self._save_state(out / RESUME, step)
                if step < steps:
                    loss = self.step(step)
                    advance(1)
        self._save_model(out)
        write_text(out / FINISHED, model_card(self.recipe, self.model, self.writer))

    def step(self, step: int) -> Tensor:
        """One step; the learning rate warms up linearly and falls along half a cosine to 2 % of its peak."""
        schedule, batch = self.recipe.schedule, self.batches[step]
        warm = min(1.0, (step + 1) / max(1, schedule.warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.learning_rate * warm * (0.02 + 0.98 * cosine)
        self.model.train()
        autocast = torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.half_precision)
        with autocast, self.sparsity or nullcontext():
            logits, targets = answer_logits(self.model, batch)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        if self.sparsity:
            loss = loss + schedule.sparsity * self.sparsity.penalty(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _evaluate(self, samples: dict[str, dict[str, Prompts]]) -> dict[str, dict[str, float | None]]:
        """Accuracy per operator on seen and unseen samples, and the answer's mean probability on correct prompts."""
        row: dict[str, dict[str, float | None]] = {}
        for kind, by_operator in samples.items():
            accuracy, confidence = row[f"{kind}_accuracy"], row[f"{kind}_p_answer"] = {}, {}
            for operator, prompts in by_operator.items():
                if len(prompts):
                    correct, p = predict(self.model, self.writer, prompts)
                    accuracy[operator] = round(correct.double().mean().item(), 4)
                    confidence[operator] = round(p[correct].double().mean().item(), 4) if correct.any() else None
        return row

    def _save_model(self, folder: Path) -> None:
        """Weights in half precision, configuration and tokenizer."""
        copy.deepcopy(self.model).half().cpu().save_pretrained(folder)
        self.writer.tokenizer.save_pretrained(folder)

    def _save_state(self, path: Path, step: int) -> None:
        """Everything needed to continue from this step, without pickle."""
        tensors = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
        with atomic_file(path) as temporary:
            save_file({k: v.contiguous().cpu().clone() for k, v in tensors.items()}, temporary, {"step": str(step)})

    def _resume(self, path: Path) -> int:
        """Load the saved state and return its step; 0 if there is none or it is damaged."""
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


def _multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products of bfloat16 matrices. Older versions of torch do not tell for a CPU."""
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return device.type == "cuda"
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
