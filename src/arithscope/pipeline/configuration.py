"""What a run's configuration says about its prompts: how they are written, and the stratum that was studied."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from arithscope.models.model import Model
from arithscope.prompts import Stratum, stratum_from_json, whole_numbers

_ENCODING = ("template", "prefix", "operator_words", "chat", "reply", "surroundings", "stratum")


def encoding_of(model: Model) -> dict[str, Any]:
    """How prompts are written, in a conversation also what is around them; and the stratum unless numbers are whole."""
    encoder = model.encoder
    chat = {"surroundings": asdict(encoder.surroundings)} if encoder.template.chat else {}
    stratum = {} if encoder.stratum is None else {"stratum": encoder.stratum.as_json()}
    return {**encoder.template.as_json(), **chat, **stratum}


def stored_encoding(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a configuration that `encoding_of` wrote."""
    return {name: configuration[name] for name in _ENCODING if name in configuration}


def stored_stratum(configuration: Mapping[str, Any], limit: int) -> Stratum:
    """The stratum that was studied."""
    record = configuration.get("stratum")
    return whole_numbers(int(configuration["max_operand"]), limit) if record is None else stratum_from_json(record)
