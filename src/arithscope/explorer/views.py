"""The contents of each view of the explorer, as plain values and arrays."""

from dataclasses import asdict, fields
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arithscope.errors import UserError
from arithscope.experiments.carries import layer_span
from arithscope.experiments.common.explanation import answer_without
from arithscope.experiments.common.result import MEAN
from arithscope.experiments.localize import MLP
from arithscope.experiments.patterns import activation_map
from arithscope.explorer.runs import (
    NEURON,
    Criterion,
    MapName,
    NotFound,
    RunRegistry,
    ServedRun,
    ShortText,
    TableQuery,
    page,
)
from arithscope.heuristics.kinds import kind_name, parse
from arithscope.models.model import Model
from arithscope.prompts import OPERATORS, Place, Prompts
from arithscope.results.comparison import CURVES
from arithscope.results.neuron import ActivationMap
from arithscope.results.run import explanation_as_json
from arithscope.utils.progress import Advance

TINY = float(np.finfo(np.float64).tiny)  # of a probability, so that its logarithm is a number


class AblationRequest(BaseModel):
    """A prompt, and the neurons to ablate: those listed as [layer, neuron], and all that match one of the heuristics."""

    model_config = ConfigDict(extra="forbid")
    prompt: ShortText
    criterion: Criterion = "calibrated"
    neurons: list[tuple[Annotated[int, Field(ge=0, lt=2**15)], Annotated[int, Field(ge=0, lt=2**31)]]] = Field(
        default_factory=list, max_length=20_000
    )
    heuristics: list[ShortText] = Field(default_factory=list, max_length=5_000)


def run_info(served: ServedRun) -> dict[str, Any]:
    """What the page needs to know about a run before it requests anything else."""
    run, stages, is_layout = served.run, served.run.stages, served.layout is served
    classified = {"patterns", "classify"} <= set(stages)
    return {
        "name": served.name,
        **{name: run.manifest[name] for name in ("model", "version", "created")},
        "operators": run.accuracy.operators if "accuracy" in stages else run.operators if is_layout else [],
        **_stratum_info(served),
        "layout": _layout_info(served.layout) if served.layout else None,
        "limit": run.limit,
        **{name: run.configuration[name] for name in ("preset", "seed", "template")},
        "stages": stages,
        "checkpoints": run.training.checkpoints if "training" in stages else [],
        "neuron_layers": served.neurons.layers if classified else [],
        "kinds": served.neurons.kinds if classified else [],
        "classified_operators": run.classify.operators if classified else [],
    }


def _stratum_info(served: ServedRun) -> dict[str, Any]:
    """Operands on the two sides of the operand grid, legal answers, and which token of the answer is asked for."""
    stratum = served.run.stratum
    op1, op2 = (side.tolist() for side in stratum.sides)
    has_step = not stratum.whole and served.layout is not served
    return {
        "stratum": {
            "op1": op1,
            "op2": op2,
            "answers": stratum.answers,
            "layout": None if stratum.whole else stratum.layout_name,
            "asked": asdict(stratum.asked if has_step else Place()),
        },
        "step": {"number": stratum.step, "of": stratum.steps, "name": stratum.step_name} if has_step else None,
        "token": stratum.token_name if has_step else "answer",
    }


def _layout_info(whole: ServedRun) -> dict[str, Any]:
    """The name of a layout's run, and all its answer steps: with the names of their runs, or why they have none."""
    steps = [
        {
            "number": stratum.step,
            "name": stratum.step_name,
            "token": stratum.token_name,
            "asked": asdict(stratum.asked),
            "run": whole.step_name(stratum.step) if stratum.step in whole.run.steps else None,
            "left_out": whole.left_out.get(stratum.step),
        }
        for stratum in whole.run.stratum.every_step()
    ]
    return {"run": whole.name, "steps": steps}


def results(served: ServedRun) -> list[dict[str, Any]]:
    """Every finished stage with its summary and the names of its tables."""
    path, stages, summary = served.run.path, served.run.stages, served.run.folder.summary
    tables = {stage: sorted(file.stem for file in (path / stage).glob("*.parquet")) for stage in stages}
    return [{"stage": stage, "summary": summary.get(stage, {}), "tables": tables[stage]} for stage in stages]


def result_table(served: ServedRun, stage: str, name: str, query: TableQuery) -> dict[str, Any]:
    """One page of a table of a finished stage."""
    served.require(stage)
    tables = _tables(served.run.result(stage))
    if name not in tables:
        raise NotFound(f"The stage {stage} has no table {name[:80]!r}; choose from: {', '.join(tables) or 'none'}.")
    return page(tables[name], query)


def _tables(result: Any) -> dict[str, pd.DataFrame]:
    """The tables of a stage's result, by the names of its fields."""
    contents = {field.name: getattr(result, field.name) for field in fields(result)}
    return {name: value for name, value in contents.items() if isinstance(value, pd.DataFrame)}


def neuron_page(served: ServedRun, operator: str, layer: int, index: int) -> dict[str, Any]:
    """Everything about a neuron except its activations, which are sent as bytes."""
    served.require("neurons")
    run = served.run
    neuron = run.neuron(layer, index, operator)
    own_map = neuron.activation_map
    return {
        "name": neuron.name,
        "layer": layer,
        "neuron": index,
        "operator": operator,
        "effects": neuron.effects.to_dict("records"),
        "heuristics": neuron.heuristics.drop(columns=NEURON, errors="ignore").to_dict("records"),
        "best": neuron.best.drop(columns=NEURON, errors="ignore").to_dict("records"),
        "coverage": neuron.coverage,
        "top_for": [o for o in run.operators if o != operator and run.map_row(layer, index, o) is not None],
        "activation_map": None if own_map is None else _map_facts(own_map),
    }


def _map_facts(own_map: ActivationMap) -> dict[str, Any]:
    """What is known about a neuron's activation map, and the logits of its value vector."""
    shares = {f"variance_explained_{name}": share for name, share in own_map.variance_explained.items()}
    facts = {name: getattr(own_map, name) for name in ("rank", "alignment", "direct", "tokens")}
    return {**shares, **facts, "logits": [round(float(logit), 5) for logit in own_map.logits]}


def heuristic_prompts(served: ServedRun, operator: str, heuristic: str) -> NDArray[np.uint8]:
    """Over the operand grid: 1 for legal prompts that the heuristic holds for, 0 for all others."""
    try:
        rule = parse(heuristic)
    except UserError as error:
        raise NotFound(str(error)) from None
    prompts = served.run.stratum.grid(operator)
    return (served.run.stratum.legal(prompts) & rule.holds(prompts)).astype(np.uint8)


def circuit(served: ServedRun, operator: str, measure: str) -> dict[str, Any]:
    """Effects of all components, the circuit's heads with their attention patterns, and faithfulness by size."""
    served.require("localize", "circuit", "heads")
    run = served.run
    if operator not in run.circuit.operators:
        raise NotFound(f"The run {served.name} has no circuit for {operator}.")

    def rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
        return table[table.operator == operator].drop(columns="operator").to_dict("records")

    effects = run.localize.effects
    effects = effects[(effects.operator == operator) & (effects.measure == measure)]
    probe = None
    if "probe" in run.stages:
        probe = {"table": rows(run.probe.table), "first_answer_layer": run.probe.first_answer_layer}
    return {
        "operator": operator,
        "measure": measure,
        "ranked_by": run.configuration["effect"],
        "effects": {position: _effect_maps(at) for position, at in effects.groupby("position", sort=False)},
        "positions": run.heads.positions,
        "heads": rows(run.circuit.heads),
        "shared": run.circuit.shared(),
        "roles": rows(run.heads.roles.assign(attention_pattern=run.heads.attention.round(4).tolist())),
        "isolation": rows(run.heads.isolation),
        "curve": rows(run.circuit.curve),
        "summary": run.circuit.summary().get(operator, {}),
        "probe": probe,
    }


def _effect_maps(rows: pd.DataFrame) -> dict[str, Any]:
    """Mean and median effects at one position: of heads as [layers][heads], of MLPs as [layers]."""
    heads, mlps = rows[rows["head"] != MLP], rows[rows["head"] == MLP].sort_values("layer")
    maps = {}
    for statistic, column in (("mean", "value"), ("median", "median")):
        by_layer = heads.pivot(index="layer", columns="head", values=column).to_numpy().tolist()
        maps[statistic] = {"heads": by_layer, "mlps": mlps[column].tolist()}
    return maps


def carries(served: ServedRun) -> list[dict[str, Any]]:
    """Where each digit and each carry is held: positions and layers at which most answers follow, with the smallest share that
    does among these layers, and the largest of its control."""
    served.require("carries")
    found = served.run.carries
    rows = []
    for (operator, step, sources), held in found.held.groupby(["operator", "step", "sources"], sort=False):
        for position, low, high in found.path(operator, step, sources):
            here = held[held.layer.between(low, high)]
            share = here.loc[here.value.idxmin(), [*MEAN]].to_dict()
            place = {"position": position, "layers": layer_span(low, high)}
            rows.append(
                {
                    "operator": operator,
                    "step": step,
                    "sources": sources,
                    **place,
                    **share,
                    "control": here.control.max(),
                }
            )
    return rows


def training(served: ServedRun) -> dict[str, Any]:
    """Names of the checkpoints, and all curves over them."""
    served.require("training")
    curves = {name: table.to_dict("records") for name, table in _tables(served.run.training).items()}
    return {"checkpoints": served.run.training.checkpoints, **curves}


def comparison(registry: RunRegistry) -> dict[str, Any]:
    """Summaries and curves of all runs, under the names that the runs have here."""
    compared = registry.comparison
    names = dict(zip(compared.runs, (served.name for served in registry), strict=True))
    table, curves = (rows.assign(run=rows.run.map(names)) for rows in (compared.table, compared.curves))
    by_name = {name: curves[curves.curve == name].drop(columns="curve").to_dict("records") for name in CURVES}
    shown = {name: rows for name, rows in by_name.items() if rows}
    return {"runs": list(names.values()), "table": table.to_dict("records"), "curves": shown}


def explanation(registry: RunRegistry, served: ServedRun, prompt: str, criterion: str) -> dict[str, Any]:
    """A prompt explained by the heuristics that hold for it."""
    served.require("classify")
    served.run.prompt(prompt)  # raises before a model is loaded
    with registry.model(served.run):
        explained = explanation_as_json(served.run.explain(prompt, criterion))
    kinds = [{**row, "name": kind_name(row["kind"], row["on"])} for row in explained["kinds"]]
    return {**explained, "kinds": kinds}


def answer_steps(registry: RunRegistry, served: ServedRun, prompt: str) -> dict[str, Any]:
    """The model's answer to a prompt of a layout: at each step, given the right tokens before it, and by itself."""
    if served.layout is None:
        raise NotFound(f"The run {served.name} is not that of a layout, so its answers have no steps.")
    whole = served.layout.run
    parsed = whole.prompt(prompt)
    with registry.model(whole) as model:
        views = model.every_step()
        asked = [parsed.asking(view.encoder.asked) for view in views]
        given = [answer_without(view, own, ()) for view, own in zip(views, asked, strict=True)]
        written = _free_answer(views, parsed)
    return {
        "op1": int(parsed.op1[0]),
        "operator": OPERATORS[int(parsed.operator[0])],
        "op2": int(parsed.op2[0]),
        "answer": int(parsed.answer[0]),
        "steps": [{"right": int(own.result[0]), **asdict(one)} for own, one in zip(asked, given, strict=True)],
        "log_p": float(np.log([max(one.p_answer, TINY) for one in given]).sum()),
        "free": written,
    }


@torch.no_grad()
def _free_answer(views: list[Model], prompt: Prompts) -> str:
    """What a model writes by itself, as many tokens as the answer has."""
    ids = views[0].encode(prompt)
    for view in views:
        ids = torch.cat([ids, view.logits(ids).argmax(-1, keepdim=True)], dim=1)
    return "".join(str(views[0].tokenizer.decode([token])) for token in ids[0, -len(views) :].tolist())


def ablation(registry: RunRegistry, served: ServedRun, request: AblationRequest) -> dict[str, Any]:
    """The model's answer before and after zero-ablating neurons at the last position."""
    served.require("classify")
    run, prompt = served.run, served.run.prompt(request.prompt)
    operator = OPERATORS[int(prompt.operator[0])]
    matches = run.classify.matched(operator, request.criterion)
    if unknown := sorted(set(request.heuristics) - set(matches.heuristic)):
        raise NotFound(f"No neuron matches {unknown[0]!r} for {operator} ({request.criterion}).")
    matches = matches[matches.heuristic.isin(request.heuristics)]
    neurons = {*request.neurons, *zip(matches.layer.tolist(), matches.neuron.tolist(), strict=True)}
    with registry.model(run) as model:
        before = asdict(answer_without(model, prompt, ()))
        after = asdict(answer_without(model, prompt, sorted(neurons)))
    return {"right": int(prompt.result[0]), "neurons": len(neurons), "before": before, "after": after}


def computed_map(registry: RunRegistry, served: ServedRun, wanted: MapName, advance: Advance) -> NDArray[np.float32]:
    """An activation map, computed now."""
    run = served.at(wanted.checkpoint)
    with registry.model(run) as model:
        activations = activation_map(model, *wanted[:3], run.stratum, advance).astype("<f4")
    served.keep_map(wanted, activations)
    return activations
