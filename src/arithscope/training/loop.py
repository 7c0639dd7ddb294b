"""Trains a model from scratch: seeded and resumable, with checkpoints that are complete Hugging Face folders."""

import copy
import json
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from jinja2 import Environment, PackageLoader, StrictUndefined
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arithscope.errors import UserError
from arithscope.models.tokenization import PromptEncoder
from arithscope.models.untrained import number_tokenizer, untrained_model
from arithscope.prompts import Prompts, Template, legal_prompts, random_source, sample
from arithscope.stats.effects import log_probability
from arithscope.training.recipe import DataRecipe, Recipe, read_recipe
from arithscope.utils.files import LOCK, atomic_file, atomic_folder, explain_write_errors, locked, write_text
from arithscope.utils.progress import Progress

EVALUATIONS = 20  # evenly spaced over training, on samples
SAMPLE = 2000  # prompts per operator in an evaluation, seen and unseen each
ROWS = 16384  # prompts per forward pass in an evaluation
FINISHED = "README.md"  # the model card, written last
RESUME = "resume.safetensors"
RECIPE = "recipe.toml"
_TEMPLATES = Environment(
    loader=PackageLoader(__package__), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)


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
    """`batches[step]`: token ids and target tokens, drawn with replacement, equally many for each operator; they depend only on
    seed and step. A share `noise` of the answers is changed by up to ±`noise_width`."""

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


def train(recipe_path: Path, out: Path, device: torch.device, progress: Progress) -> Path:
    """Train a model from a recipe (a TOML file), or continue a training run that was stopped, and return its folder `out`:
    the model, its checkpoints, the training log and the model card. Raises UserError if the recipe is wrong, or `out` holds
    something other than a training run of this recipe."""
    recipe = read_recipe(recipe_path)
    training = _Training(recipe, device)  # before the folder is created: the recipe may ask for an impossible model
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


class _Training:
    """Model, optimizer and data of a recipe."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.recipe = recipe
        schedule = recipe.schedule
        self.tokenizer = number_tokenizer(recipe.data.numbers)
        self.encoder = PromptEncoder(self.tokenizer, Template())
        model: Any = untrained_model(recipe.model.family, recipe.model.config, self.tokenizer, recipe.seed)
        self.model = model.to(device)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]  # biases and norms
        groups = [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        fused = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, schedule.learning_rate, betas=(0.9, 0.98), fused=fused)
        self.batches = Batches(recipe, self.encoder, device)

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
                    self._save_state(out / RESUME, step)
                if step < steps:
                    loss = self._step(step)
                    advance(1)
        self._save_model(out)
        write_text(out / FINISHED, _model_card(self.recipe, self.model, self.encoder))

    def _step(self, step: int) -> Tensor:
        """One step; the learning rate warms up linearly and falls along half a cosine to 2 % of its peak."""
        schedule, (inputs, targets) = self.recipe.schedule, self.batches[step]
        warm = min(1.0, (step + 1) / max(1, schedule.warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.learning_rate * warm * (0.02 + 0.98 * cosine)
        self.model.train()
        loss = torch.nn.functional.cross_entropy(_last_logits(self.model, inputs), targets)
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
                    correct, p = _predict(self.model, self.encoder, prompts)
                    accuracy[operator] = round(correct.double().mean().item(), 4)
                    confidence[operator] = round(p[correct].double().mean().item(), 4) if correct.any() else None
        return row

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


def _last_logits(model: Any, inputs: Tensor) -> Tensor:
    hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state[:, -1]
    return model.get_output_embeddings()(hidden).float()


@torch.no_grad()
def _predict(model: Any, encoder: PromptEncoder, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """For each prompt, whether the top token is the answer, and the answer's probability."""
    model.eval()
    device = next(model.parameters()).device
    correct, probability = torch.zeros(len(prompts), dtype=torch.bool), torch.zeros(len(prompts))
    for start in range(0, len(prompts), ROWS):
        rows = slice(start, start + ROWS)
        logits = _last_logits(model, encoder.encode(prompts[rows]).to(device))
        answers = encoder.answers(prompts[rows]).to(device)
        correct[rows] = (logits.argmax(-1) == answers).cpu()
        probability[rows] = log_probability(logits, answers).exp().cpu()
    return correct, probability


def _model_card(recipe: Recipe, model: torch.nn.Module, encoder: PromptEncoder) -> str:
    """The model card as Markdown, measured on the weights as stored: rounded to half precision."""
    stored, measured = copy.deepcopy(model).half().float(), {}
    for operator, pairs in split_pairs(recipe.data, recipe.seed).items():
        outcomes = [_predict(stored, encoder, prompts) for prompts in pairs]
        counts = [(len(correct), int(correct.sum())) for correct, _ in outcomes]
        measured[operator] = *counts, sum(float(p[correct].double().sum()) for correct, p in outcomes)
    parameters = sum(p.numel() for p in model.parameters())
    given = dict(recipe=recipe, data=recipe.data, schedule=recipe.schedule, parameters=parameters, measured=measured)
    return _TEMPLATES.get_template("model_card.md").render(given)
