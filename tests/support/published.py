"""What is published from the code: JSON schemas, pages of reference, the table of modules.

`python -m tests.support.published` (`make published`) writes them again.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmrf_dask.documents import manifest
from hmrf_dask.jobs import job_file
from hmrf_dask.parameters import COST_MUST_BE, METHODS, PARAMETERS, REQUIRED, Parameter, Range
from hmrf_dask.report import content
from tests.support.reference import commands_page, exit_codes_page, job_page, manifest_page

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "data_manifests" / "schema"
PAGE = ROOT / "docs" / "parameters.md"
MODULES = ROOT / "docs" / "design" / "modules.md"
REFERENCE = ROOT / "docs" / "reference"
BEGIN, END = "<!-- parameters: `make published` writes them -->\n", "<!-- end of parameters -->\n"

MODULES_HEAD = """# Modules

Every module with its first sentence, upper layers first: a layer imports those below it, never the
other way, and `make lint` refuses what does. `kernels` and `storage` know nothing of each other;
nor do `checkpoints` and `releases`, or `measures`, `text` and `tasks`. Dask is imported by `flow`,
`corpus` and `cli/connect.py`; `storage/remote.py` reads its configuration. `make published` writes
this page; a test compares it with the tree.
"""


def shown(value: Any) -> str:
    """Return a value as a job file has it."""
    return f"`{'null' if value is None else json.dumps(value).strip(chr(34))}`"


def values_of(parameter: Parameter) -> str:
    """Return the values of a parameter, and what else Python takes."""
    if parameter.is_cost:
        words = COST_MUST_BE.removeprefix("must be ")
    elif isinstance(parameter.values, Range):
        words = " to ".join(
            f"{end:,g}" if not parameter.values.whole else f"{end:,}" for end in parameter.values
        )
    else:
        words = ", ".join(map(shown, parameter.values))
    return f"{words}; {parameter.objects}" if parameter.objects else words


def default_of(parameter: Parameter) -> str:
    """Return the default, with those of methods and files that have another one."""
    others = [f"{name} {shown(value)}" for name, value in parameter.defaults.items()]
    if parameter.python_alone:
        others.append("Python alone")
    if parameter.in_files is REQUIRED:
        others.append("files: none")
    elif parameter.in_files is not None:
        others.append(f"files: {shown(parameter.in_files)}")
    return "; ".join([shown(parameter.default), *others])


def methods_of(parameter: Parameter) -> str:
    """Return the classes that take a parameter."""
    missing = [name for name in METHODS if name not in parameter.methods]
    if len(missing) < 3:
        return f"all but {', '.join(missing)}" if missing else "all"
    return ", ".join(parameter.methods)


def table() -> str:
    """Return the parameters as a table in Markdown."""
    rows = [("parameter", "values", "default", "taken by", "what"), ("---",) * 5]
    rows += [
        (f"`{one.name}`", values_of(one), default_of(one), methods_of(one), one.help)
        for one in PARAMETERS.values()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page() -> str:
    """Return the page of parameters with the table in its place."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def modules() -> str:
    """Return every module with the sentence that says what it is for, by layer."""
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows = layers["contracts"][0]["layers"]
    text = MODULES_HEAD
    for packages in rows:
        for package in re.split(r" [|:] ", packages):
            folder = ROOT / "hmrf_dask" / package
            files = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
            text += f"\n## {package}\n\n"
            for file in files:
                first = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]
                if file.name == "__init__.py":
                    text = text.removesuffix("\n") + f"\n{first}\n\n"
                else:
                    text += f"- `{file.relative_to(ROOT / 'hmrf_dask')}`: {first}\n"
    return text


def schema(of: Callable[[], dict[str, Any]]) -> Callable[[], str]:
    """Return what gives a schema as the text of its file."""
    return lambda: json.dumps(of(), indent=2, ensure_ascii=False) + "\n"


PUBLISHED: dict[Path, Callable[[], str]] = {
    SCHEMAS / "job-v1.json": schema(job_file.json_schema),
    SCHEMAS / "manifest-v1.json": schema(manifest.json_schema),
    SCHEMAS / "report-v1.json": schema(content.json_schema),
    PAGE: page,
    MODULES: modules,
    REFERENCE / "job.md": job_page,
    REFERENCE / "manifest.md": manifest_page,
    REFERENCE / "commands.md": commands_page,
    REFERENCE / "exit-codes.md": exit_codes_page,
}

if __name__ == "__main__":
    for path, text in PUBLISHED.items():
        path.write_text(text())
