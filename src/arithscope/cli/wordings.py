"""How well a model answers prompts that are written in different ways, for `arithscope doctor`."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from arithscope.errors import UserError
from arithscope.experiments.accuracy import measure_accuracy
from arithscope.models.model import Model
from arithscope.models.tokenization import PromptEncoder
from arithscope.prompts import (
    OPERATORS,
    Prompts,
    Template,
    concatenate_prompts,
    legal_prompts,
    random_source,
    sample,
)
from arithscope.settings import Settings

SAMPLE = 50  # prompts of each operator
FEWEST_NUMBERS = 10  # a wording that leaves fewer single-token numbers is not compared
EXAMPLES = "7 + 2 = 9\n8 - 3 = 5\n2 * 4 = 8\n6 / 3 = 2\n"
WORDS = (("+", "plus"), ("-", "minus"), ("*", "times"), ("/", "over"))
QUESTION = "What is {op1} {operator} {op2}?"
PLAIN = (
    Template(),
    Template("{op1} {operator} {op2} = "),
    Template("{op1} {operator} {op2} = ", EXAMPLES),
    Template(QUESTION + " Answer: ", words=WORDS),
)
IN_CHAT = (
    Template(QUESTION + " Answer with the number only.", chat=True),
    Template(QUESTION, chat=True, reply="The answer is "),
)


def compare_wordings(model: Model, settings: Settings) -> Iterator[str]:
    """Measure accuracy with a few ways to write prompts, and say which is the best.

    All of them are asked the same prompts, whose numbers are single tokens in each.

    Args:
        model: The model, with the wording in use.
        settings: Operators, and the largest operand to ask about.

    Yields:
        For each wording its accuracy, as options of the command line, and how an example is read; then the best wording.
    """
    models, refused = _with_each_wording(model, settings.operators)
    limit = min(each.limit for each in models)
    largest = min(settings.max_operand, limit - 1)
    prompts = _some_prompts(settings.operators, largest, limit)
    yield f"wordings      accuracy on up to {SAMPLE} prompts of each operator with operands 0…{largest}; → is in use"
    totals = []  # of all operators that were asked for; those that cannot be asked count as never right
    for each in models:
        asked = prompts[_can_be_asked(each, prompts)]
        score = _accuracy(each, asked)
        totals.append(sum(score.values()))
        shown = "  ".join(f"{o} {score[o]:.2f}" if o in score else f"{o} none" for o in settings.operators)
        yield f"  {'→' if each is model else ' '} {shown}  {wording_options(each.encoder.template)}"
        yield f"      {_example(each.encoder, asked[:1])}"
    for template, reason in refused:
        yield f"    cannot be used: {wording_options(template)} ({reason})"
    best = models[totals.index(max(totals))]  # of equally good ones the one in use
    yield f"best wording  {'the one in use' if best is model else wording_options(best.encoder.template)}"


def wording_options(template: Template) -> str:
    """The options of the command line that give this template."""
    given = {
        "--template": "" if template.text == Template.text else template.text,
        "--prefix": template.prefix,
        "--operator-words": ",".join(f"{operator}={word}" for operator, word in dict(template.words).items()),
        "--reply": template.reply,
    }
    on_one_line = {name: text.replace("\n", "\\n") for name, text in given.items() if text}
    options = [f"{name} {shlex.quote(text)}" for name, text in on_one_line.items()]
    return " ".join(["--chat"] * template.chat + options) or "no options"


def _with_each_wording(model: Model, operators: Sequence[str]) -> tuple[list[Model], list[tuple[Template, str]]]:
    """The model with each wording that can be used, the one in use first; and the others, with the reason why not."""
    in_use = model.encoder.template
    conversations = IN_CHAT if getattr(model.tokenizer, "chat_template", None) else ()
    usable, refused = [model], []
    for template in (*PLAIN, *conversations):
        if template == in_use:
            continue
        try:
            other = model.with_template(template)
        except UserError as error:
            refused.append((template, str(error)))
            continue
        longest = getattr(model.hf_model.config.get_text_config(), "max_position_embeddings", other.encoder.length)
        if other.encoder.length > longest:
            refused.append((template, f"it takes {other.encoder.length} tokens, but the model reads only {longest}"))
        elif other.limit < min(FEWEST_NUMBERS, model.limit):
            refused.append((template, f"only the numbers 0…{other.limit - 1} are single tokens"))
        elif not set(operators) & set(other.encoder.operators):
            refused.append((template, f"{' '.join(operators)} cannot be written as single tokens"))
        else:
            usable.append(other)
    return usable, refused


def _example(encoder: PromptEncoder, prompt: Prompts) -> str:
    """The text of a prompt, and its tokens from op1 on with the names of their positions."""
    [text], [ids] = prompt.text(encoder.template), encoder.encode(prompt)
    names = {at: f" ({name})" for name, at in encoder.positions.named().items()}
    tokens = list(enumerate(encoder.tokens(ids)))[encoder.positions.op1 :]
    return f"{text[-40:]!r} → {'  '.join(f'{token!r}' + names.get(at, '') for at, token in tokens)}"


def _some_prompts(operators: Sequence[str], largest: int, limit: int) -> Prompts:
    """Legal prompts of each operator."""
    drawn = [sample(legal_prompts(o, largest, limit), SAMPLE, random_source(0, "wordings", o)) for o in operators]
    return concatenate_prompts(drawn)


def _can_be_asked(model: Model, prompts: Prompts) -> NDArray[np.bool_]:
    """Mask of the prompts whose operator is a single token in this wording."""
    return np.array([operator in model.encoder.operators for operator in OPERATORS])[prompts.operator]


def _accuracy(model: Model, prompts: Prompts) -> dict[str, float]:
    """Accuracy by operator."""
    measured = measure_accuracy(model, prompts).prompts
    return {str(operator): float(rows.correct.mean()) for operator, rows in measured.groupby("operator")}
