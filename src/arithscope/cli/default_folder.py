"""Where `arithscope run` puts its results unless --out says so: a folder for each model and choice of settings."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from arithscope.cli.options import ModelOptions, SettingsOptions
from arithscope.utils.files import user_path

OPERATOR_WORDS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
SETTING_WORDS = {
    name: name.replace("_", "-") for name in ("seed", "both_operands", "digits", "operands")
}  # before values
SETTING_WORDS |= {"max_operand": "max", "topk": "top"}


def default_folder(model: str, settings: SettingsOptions, options: ModelOptions) -> Path:
    """runs/tiny-llama with the default settings, otherwise runs/tiny-llama-paper-seed1; runs/EleutherAI--pythia-70m."""
    path = user_path(model)
    name = (path.stem if path.is_file() else path.resolve().name) if path.exists() else model.replace("/", "--")
    return Path("runs") / "-".join([name, *_settings_words(settings), *_model_words(options)])


def _settings_words(settings: SettingsOptions) -> Iterator[str]:
    """A word for each setting that is not the default one."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name == "operators" and set(value) < set(OPERATOR_WORDS):
            yield "-".join(word for operator, word in OPERATOR_WORDS.items() if operator in value)
        elif field.name != "operators" and value != field.default:
            yield SETTING_WORDS.get(field.name, "") + (
                "" if value is True else str(value).replace("_", "-").replace("+", "-")
            )


def _model_words(options: ModelOptions) -> Iterator[str]:
    """Words for prompts, number format and quantisation; the device makes no difference."""
    prompts = [options.template, options.prefix]
    for name in ("operator_words", "chat", "reply"):  # named, as each may be given without the others
        if (value := getattr(options, name)) != getattr(ModelOptions, name):
            prompts.append(f"{name}={value}")
    if prompts != [ModelOptions.template, ModelOptions.prefix]:
        yield f"prompts-{hashlib.sha256(repr(tuple(prompts)).encode()).hexdigest()[:6]}"
    if options.dtype != ModelOptions.dtype:
        yield options.dtype
    if options.quantize is not None:
        yield options.quantize
