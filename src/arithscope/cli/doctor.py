"""`arithscope doctor`: what a model is, how it tokenizes prompts, whether it passes all checks, the memory it needs, and how
many prompts it answers correctly."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

import numpy as np

from arithscope.cli.layouts import compare_layouts
from arithscope.cli.wordings import compare_wordings
from arithscope.errors import UserError
from arithscope.experiments.accuracy import measure_accuracy
from arithscope.experiments.common.samples import ADVICE
from arithscope.models.checks import Check, float32_copy, rounding_noise, soundness_checks, tokenization_check
from arithscope.models.model import Model
from arithscope.pipeline.registry import all_stages
from arithscope.pipeline.runner import device_name, failed_checks
from arithscope.prompts import OPERATORS, Operands, Prompts, legal_prompts, random_source, sample
from arithscope.settings import Settings
from arithscope.stats.intervals import share

SAMPLE = 100  # prompts of each operator whose answers are computed


def examine(
    model: Model, operators: str, max_operand: int | None = None, operands: Operands | None = None
) -> Iterator[str]:
    """Yield lines for the terminal. Raises UserError if the model cannot be studied with these settings."""
    default = Settings(tuple(operators))
    possible = min(default.max_operand, model.limit - 1)
    settings = replace(default, max_operand=possible if max_operand is None else max_operand)
    yield from check_soundness(model, settings)
    yield from compare_wordings(model, settings)
    able = False
    if operands is not None or (max_operand is None and model.limit <= Settings.max_operand):
        able = yield from compare_layouts(model, settings.operators, operands)
    if operands is None and (max_operand is not None or model.limit > 10):  # more than the digits are single tokens
        able = (yield from _check_ability(model, settings)) or able
    if not able:
        raise _unable(model)


def check_soundness(model: Model, settings: Settings) -> Iterator[str]:
    """What the model is, how it tokenizes prompts, all checks of it, and the memory it needs. Raises UserError if one fails."""
    s, encoder = model.sizes, model.encoder
    yield f"model         {model.identity.name} {model.identity.revision}".rstrip()
    yield f"weights       sha256 {model.identity.weight_hash[:16]}…, {s.parameters:,} parameters"
    yield f"family        {model.family}"
    layer = f"{s.heads} heads of {s.head_dim} ({s.key_value_heads} for keys and values), {s.neurons} neurons per MLP"
    yield f"sizes         {s.layers} layers, {layer}, width {s.width}, vocabulary {s.vocabulary}"
    computing = [model.dtype_name, f"{model.attention_implementation} attention"]
    computing += [f"weights in {model.quantization}"] if model.quantization else []
    computing += ["some weights fetched in each pass"] if model.offloads else []
    yield f"computes in   {', '.join(computing)}, on {device_name(model)}"
    yield f"numbers       0…{encoder.limit - 1} are single tokens (limit {encoder.limit})"
    yield f"operators     {' '.join(encoder.operators)}"
    shape = "BOS + four tokens" if encoder.has_bos else "four tokens, as this tokenizer defines no BOS"
    yield f"prompt        {encoder.length} tokens; {'this is' if encoder.is_plain else 'this is not'} the plain {shape}"
    names = {index: f" ({name})" for name, index in encoder.positions.named().items()}
    examples = encoder.examples()
    for text, ids in zip(examples.text(encoder.template), encoder.encode(examples), strict=True):
        tokens = encoder.tokens(ids)[-12:]
        start = encoder.length - len(tokens)
        shown = "  ".join(f"{token!r}{names.get(i, '')}" for i, token in enumerate(tokens, start))
        yield f"  {text[-40:]!r} → {'… ' if start else ''}{shown}"
    if encoder.limit <= Settings.max_operand:
        left = f"as single tokens only --max-operand {encoder.limit - 1} (or less) is possible"
        yield f"note          this tokenizer splits larger numbers: {left}; larger ones take --digits or --operands"
    encoder.check(settings.operators, settings.max_operand)
    prompts = legal_prompts(settings.operators, settings.max_operand, encoder.limit)
    if len(prompts) == 0:
        raise UserError(f"There is no legal prompt with operands 0…{settings.max_operand}; use a larger --max-operand.")
    failed: list[Check] = []
    for heading, checks in _checks(model, prompts):
        yield heading
        for check in checks:
            yield f"  {'FAILS' if check.problem else 'ok':7}{check.name:14}{check.problem or check.detail}"
            failed += [check] if check.problem else []
    if failed:
        raise failed_checks(model, [(check.name, check.problem) for check in failed])
    weights = sum(p.numel() * p.element_size() for p in model.hf_model.parameters())
    yield f"memory        weights {_size(weights)}, plus for each stage:"
    for stage in all_stages():
        yield f"  {stage.name:17}{_size(stage.memory(model, settings))}"


def _check_ability(model: Model, settings: Settings) -> Generator[str, None, bool]:
    """How many prompts of whole numbers the model answers correctly. Returns whether it does better than one fixed answer."""
    prompts = legal_prompts(settings.operators, settings.max_operand, model.limit)
    yield "accuracy      beside that of always giving the most frequent answer, with 95 % intervals"
    able = []
    for operator in settings.operators:
        is_able, line = _accuracy(model, prompts[prompts.operator == OPERATORS.index(operator)], operator)
        able += [operator] if is_able else []
        yield f"  {operator}  {line}"
    if able:
        only = f" with --operators '{''.join(able)}'; with others it is no better than one fixed answer"
        yield f"This model can be studied{'' if len(able) == len(settings.operators) else only}."
    return bool(able)


def _unable(model: Model) -> UserError:
    return UserError(
        f"{model.identity.name} can be loaded and its tokenizer read, but it answers hardly any prompt correctly (with no "
        "operator more than by always giving the same answer), so a study would find nothing: a run leaves out every "
        "operator with fewer than three correct prompts, and stops if none is left or if all correct answers are equal; "
        f"{ADVICE}."
    )


def _accuracy(model: Model, prompts: Prompts, operator: str) -> tuple[bool, str]:
    """Whether the model answers a sample of an operator's legal prompts better than one number for all would, and a line."""
    if not len(prompts):
        return False, "there is no legal prompt"
    some = sample(prompts, SAMPLE, random_source(0, "doctor", operator))
    right = share(int(measure_accuracy(model, some).prompts.correct.sum()), len(some))
    numbers, counts = np.unique(some.answer, return_counts=True)
    baseline, sampled = float(counts.max()) / len(some), len(some) < len(prompts)
    measured = f"{right.value:.2f} ({right.low:.2f}–{right.high:.2f})" if sampled else f"{right.value:.2f}"
    of = f"{len(some)} random prompts" if sampled else f"all {len(some)} legal prompts"
    line = f"{measured} of {of}; {baseline:.2f} by always answering {numbers[counts.argmax()]}"
    return (right.low if sampled else right.value) > baseline, line


def _checks(model: Model, prompts: Prompts) -> Iterator[tuple[str, Iterable[Check]]]:
    """Checks with their headings. A model in lower precision is also checked in float32, if a copy fits into memory, and its
    rounding noise is measured, so that noise cannot hide an error."""
    yield "tokens", [tokenization_check(model, prompts)]
    noise = None
    if model.dtype_name not in ("float32", "float64"):
        if (wide := float32_copy(model)) is not None:
            yield "checks in float32", soundness_checks(wide)
            noise = rounding_noise(model, wide)
            yield "rounding", [Check("logits", f"{model.dtype_name} moves them by {noise:.1e} of their spread")]
        else:
            yield "checks in float32: skipped, as a float32 copy cannot be made or does not fit into memory", []
    yield f"checks in {model.dtype_name}", soundness_checks(model, noise)


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
