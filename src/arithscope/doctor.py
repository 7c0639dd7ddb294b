"""A look at a subject before it is studied: what it is, how it reads prompts, whether it is sound, what it will need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from arithscope.errors import UserError
from arithscope.prompts import Prompts, legal_prompts
from arithscope.settings import Settings
from arithscope.stages import STAGES
from arithscope.study import device_name, unsound_subject
from arithscope.subject.soundness import Check, in_float32, rounding_noise, soundness, tokenisation
from arithscope.subject.subject import Subject


def examine(subject: Subject, operators: str, max_operand: int | None) -> Iterator[str]:
    """Lines for a person to read. Raises UserError where the subject cannot be studied as asked."""
    s, encoder = subject.sizes, subject.encoder
    yield f"subject       {subject.identity.name} {subject.identity.revision}".rstrip()
    yield f"weights       sha256 {subject.identity.weight_hash[:16]}…, {s.parameters:,} parameters"
    yield f"family        {subject.family}"
    yield (
        f"sizes         {s.layers} layers, {s.heads} heads of {s.head_dim} ({s.key_value_heads} for keys and values), "
        f"{s.neurons} neurons per MLP, width {s.width}, vocabulary {s.vocabulary}"
    )
    computing = [subject.dtype_name, f"{subject.attention_implementation} attention"]
    computing += [f"weights in {subject.quantization}"] if subject.quantization else []
    computing += ["some weights fetched in each pass"] if subject.offloads else []
    yield f"computes in   {', '.join(computing)}, on {device_name(subject)}"
    yield f"numbers       0…{encoder.limit - 1} are single tokens (limit {encoder.limit})"
    yield f"operators     {' '.join(encoder.operators)}"
    shape = "BOS + four tokens" if encoder.has_bos else "four tokens, as this tokenizer defines no BOS"
    yield f"prompt        {encoder.length} tokens; {'this is' if encoder.is_plain else 'this is not'} the plain {shape}"
    examples = encoder.examples()
    for text, ids in zip(examples.text(encoder.template), encoder.encode(examples), strict=True):
        named = {index: name for name, index in encoder.positions.named().items()}
        tokens = encoder.tokens(ids)[-12:]
        start = encoder.length - len(tokens)
        shown = "  ".join(
            f"{t!r}" + (f" ({named[start + i]})" if start + i in named else "") for i, t in enumerate(tokens)
        )
        yield f"  {text[-40:]!r} → {'… ' if start else ''}{shown}"
    default = Settings(tuple(operators))
    if max_operand is None and encoder.limit <= default.max_operand:
        yield (
            f"note          this tokenizer splits larger numbers: only --max-operand {encoder.limit - 1} (or less) is "
            f"possible, with answers below {encoder.limit}"
        )
    possible = min(default.max_operand, encoder.limit - 1)
    settings = replace(default, max_operand=possible if max_operand is None else max_operand)
    encoder.check(settings.operators, settings.max_operand)
    prompts = legal_prompts(settings.operators, settings.max_operand, encoder.limit)
    if len(prompts) == 0:
        raise UserError(f"There is no legal prompt with operands 0…{settings.max_operand}; use a larger --max-operand.")
    failed: list[Check] = []
    for heading, checks in _checks(subject, prompts):
        yield heading
        for check in checks:
            yield f"  {'FAILS' if check.wrong else 'ok':7}{check.name:14}{check.wrong or check.says}"
            failed += [check] if check.wrong else []
    if failed:
        raise unsound_subject(subject, [(check.name, check.wrong) for check in failed])
    weights = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    yield f"memory        weights {_size(weights)}, and on top of them:"
    for stage in STAGES:
        yield f"  {stage.name:17}{_size(stage.memory(subject, settings))}"
    yield "This subject can be studied."


def _checks(subject: Subject, prompts: Prompts) -> Iterator[tuple[str, Iterable[Check]]]:
    """By the precision they are made in. If that of the subject is less than float32, also in float32, where there is room
    for a copy: then it is known what rounding does, and it cannot hide anything."""
    yield "tokens", [tokenisation(subject, prompts)]
    noise = None
    if subject.dtype_name not in ("float32", "float64"):
        if (wide := in_float32(subject)) is not None:
            yield "checks in float32", soundness(wide)
            noise = rounding_noise(subject, wide)
            yield "rounding", [Check("logits", f"{subject.dtype_name} moves them by {noise:.1e} of their spread")]
        else:
            yield "checks in float32: not tried, as a copy of the weights in float32 cannot be had or does not fit", []
    yield f"checks in {subject.dtype_name}", soundness(subject, noise)


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
