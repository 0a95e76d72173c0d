"""`hmrf-dask completion`: the script that lets a shell complete commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hmrf_dask.cli.group import HmrfCommand


@click.command(cls=HmrfCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
    bash:  hmrf-dask completion bash >> ~/.bashrc
    zsh:   hmrf-dask completion zsh >> ~/.zshrc
    fish:  hmrf-dask completion fish > ~/.config/fish/completions/hmrf-dask.fish
    """  # noqa: D301 - click wants the character itself
    kind = get_completion_class(shell)
    assert kind is not None
    group = ctx.find_root().command
    click.echo(kind(group, {}, "hmrf-dask", "_HMRF_DASK_COMPLETE").source())
