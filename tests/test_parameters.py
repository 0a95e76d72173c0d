"""Parameters of the method: what estimators, documents and the code say of them is in the table."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any, get_args

import click
import pytest

from hmrf_dask.cli.commands import suggest_k
from hmrf_dask.cli.fit_command import ON_OFF, fit
from hmrf_dask.constraints.closure import OnConflict
from hmrf_dask.distortions import DISTORTIONS
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.fit.suggestion import Span
from hmrf_dask.jobs.job_file import Method
from hmrf_dask.parameters import (
    METHODS,
    PARAMETERS,
    REQUIRED,
    Range,
    check_parameter,
    in_files_of,
    taken_by,
)
from hmrf_dask.tasks.model import Inference, Penalty, Settings, WeightUpdate
from tests.support.published import PAGE, shown

ENTRY = re.compile(r"^(\w+) : (.+)\n((?:    .+\n|\n)*)", re.MULTILINE)


def documented(method: str) -> dict[str, tuple[str, str]]:
    """Return the type and the text of each parameter in the docstring of a class."""
    _, _, rest = inspect.getdoc(ESTIMATORS[method]).partition("Parameters\n----------\n")
    section = re.split(r"^\w+\n-+\n", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return {name: (kind, " ".join(text.split())) for name, kind, text in ENTRY.findall(section)}


def test_every_method_is_an_estimator() -> None:
    assert set(METHODS) == ESTIMATORS.keys()


@pytest.mark.parametrize("method", METHODS)
def test_signatures_are_those_of_the_table(method: str) -> None:
    signature = inspect.signature(ESTIMATORS[method]).parameters
    assert [*signature] == [parameter.name for parameter in taken_by(method)]
    for parameter in taken_by(method):
        default = signature[parameter.name].default
        assert (type(default), default) == (
            type(parameter.default_of(method)),
            parameter.default_of(method),
        )


@pytest.mark.parametrize("method", METHODS)
def test_defaults_may_be_used(method: str) -> None:
    for parameter in taken_by(method):
        if parameter.name != "random_state":
            check_parameter(parameter.name, parameter.default_of(method), method)
        if parameter.in_files not in (None, REQUIRED):
            check_parameter(parameter.name, parameter.in_files, method)


@pytest.mark.parametrize("method", METHODS)
def test_docstrings_say_what_the_table_says(method: str) -> None:
    entries = documented(method)
    if method == "HMRFKMeans":
        assert [*entries] == [parameter.name for parameter in taken_by(method)]
    assert entries.keys() <= {parameter.name for parameter in taken_by(method)}
    for name, (kind, text) in entries.items():
        parameter = PARAMETERS[name]
        assert ast.literal_eval(kind.partition("default=")[2]) == parameter.default_of(method)
        if choices := re.match(r"\{.*\}", kind):
            assert ast.literal_eval(choices[0]) == set(parameter.choices_of(method))
        elif isinstance(parameter.values, Range):
            assert kind.startswith("int" if parameter.values.whole else "float")
        elif True in parameter.values:
            assert kind.startswith('bool or "auto"' if "auto" in parameter.values else "bool, ")
        if method == parameter.methods[0]:
            assert text.replace('"', "").replace("`", "").startswith(parameter.help[:-1]), name


def test_literals_in_the_code_are_those_of_the_table() -> None:
    assert PARAMETERS["distortion"].values == tuple(DISTORTIONS)
    for name, literal in (
        ("weight_update", WeightUpdate),
        ("inference", Inference),
        ("on_conflict", OnConflict),
    ):
        assert PARAMETERS[name].values == get_args(literal)
    assert PARAMETERS["penalty"].values == ("auto", *get_args(Penalty))


def test_every_parameter_is_a_setting_of_the_fit() -> None:
    settings = {field.name for field in fields(Settings)}
    assert PARAMETERS.keys() - {"distortion", "random_state", "verbose"} <= settings


def test_a_value_is_checked_with_the_method() -> None:
    check_parameter("init", "auto", "HMRFKMeans")
    with pytest.raises(ConfigurationError, match="init must be one of 'k-means"):
        check_parameter("init", "auto", "KMeans")


@pytest.mark.parametrize("parameter", in_files_of("HMRFKMeans"), ids=lambda one: one.name)
def test_every_parameter_is_an_option_of_fit(parameter: Any) -> None:
    option = next(one for one in fit.params if one.name == parameter.name)
    assert isinstance(option, click.Option)
    assert option.help is not None
    assert option.help.startswith(parameter.help)
    assert option.required == (parameter.in_files is REQUIRED)
    if not option.required:
        default = ON_OFF.get(option.default, option.default)
        assert default == (parameter.default if parameter.in_files is None else parameter.in_files)


@pytest.mark.parametrize("method", METHODS)
def test_a_job_a_command_an_estimator_and_the_page_have_one_default(method: str) -> None:
    made = ESTIMATORS[method](**Method(name=method, n_clusters=3).parameters).get_params()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\|(.*?)\|", PAGE.read_text(), re.MULTILINE))
    for parameter in taken_by(method):
        name, alone = parameter.name, parameter.default_of(method)
        in_files = alone if parameter.in_files is None else parameter.in_files
        assert made[name] == (3 if in_files is REQUIRED else in_files), name
        said = [shown(alone)] if name not in parameter.defaults else [f"{method} {shown(alone)}"]
        if parameter.in_files not in (None, REQUIRED):
            said.append(f"files: {shown(in_files)}")
        assert [words for words in said if words not in rows[name]] == [], name


def test_the_command_tries_as_many_clusters_as_an_estimator() -> None:
    defaults = {option.name: option.default for option in suggest_k.params}
    assert Span() == (defaults["least"], defaults["most"])
