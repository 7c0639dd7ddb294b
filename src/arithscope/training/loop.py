"""Training a model from scratch: seeded and resumable, with checkpoints that are complete Hugging Face folders."""

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
Outcome = dict[str, dict[str, tuple[Tensor, Tensor]]]  # seen/unseen → operator → (correct, probability of the answer)


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train a model from a recipe (a TOML file), or continue a training that was stopped, and return its folder `out`: the
    model, its checkpoints, the training log and the model card.

    Raises:
        UserError: If the recipe is wrong, or `out` holds something other than a training of this recipe.
    """
    recipe = read_recipe(recipe_path)
    training = _Training(recipe, device)  # before the folder is created: the recipe may ask for an impossible model
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        text = recipe_path.read_text(encoding="utf-8")
        if (out / RECIPE).exists():
            if (out / RECIPE).read_text(encoding="utf-8") != text:
                raise UserError(f"{out} holds a training of another recipe; choose another --out.")
        elif {entry.name for entry in out.iterdir()} - {LOCK, f".{RECIPE}.tmp"}:
            raise UserError(f"{out} is not empty and holds no training; choose another --out.")
        with locked(out):
            if not (out / RECIPE).exists():
                write_text(out / RECIPE, text)
            if not (out / FINISHED).exists():
                training.run(out, progress)
            (out / RESUME).unlink(missing_ok=True)
    return out


class _Training:
    """Model, optimizer and data of a recipe."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.recipe = recipe
        self.tokenizer = number_tokenizer(recipe.data.numbers)
        self.encoder = PromptEncoder(self.tokenizer, Template())
        model: Any = untrained_model(recipe.model.family, recipe.model.config, self.tokenizer, recipe.seed)
        self.model = model.to(device)
        self.optimizer = _optimizer(self.model, recipe, device)
        self.batches = Batches(recipe, self.encoder, device)

    def run(self, out: Path, progress: Progress) -> None:
        recipe, steps = self.recipe, self.recipe.schedule.steps
        checkpoints = set(recipe.checkpoint_steps())
        evaluated = {round(steps * i / EVALUATIONS) for i in range(EVALUATIONS + 1)} | checkpoints
        samples = {
            kind: {o: sample(p, SAMPLE, random_source(recipe.seed, "look", kind, o)) for o, p in prompts.items()}
            for kind, prompts in _by_kind(recipe).items()
        }
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
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) is large] for large in (True, False))
    decayed = {"params": matrices, "weight_decay": recipe.schedule.weight_decay}
    groups = [decayed, {"params": vectors, "weight_decay": 0.0}]
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


def _by_kind(recipe: Recipe) -> Samples:
    pairs = split_pairs(recipe.data, recipe.seed)
    return {kind: {o: pair[i] for o, pair in pairs.items()} for i, kind in enumerate(("seen", "unseen"))}


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
    outcome = {
        kind: {o: _predict(stored, encoder, p) for o, p in prompts.items() if len(p)}
        for kind, prompts in _by_kind(recipe).items()
    }
    return model_card(recipe, sum(p.numel() for p in model.parameters()), outcome)


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
    checkpoints = f"\n`checkpoints/` holds {schedule.checkpoints} stages of training, evenly spaced from step 0 on; "
    checkpoints = f"{checkpoints}the folder itself is the final one.\n" if schedule.checkpoints else ""
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


class _Log:
    """training_log.jsonl, one row per evaluation. Rows after the step at which training resumes are dropped."""

    def __init__(self, path: Path, done: int):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.path, self.rows = path, {row["step"]: row for row in map(json.loads, lines) if row["step"] <= done}

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["step"]] = row | {"loss": None if math.isnan(row["loss"]) else row["loss"]}
        write_text(self.path, "".join(json.dumps(r) + "\n" for r in self.rows.values()))
