"""``holdfast config``: the settings in effect, after flags, environment and file were put together."""

from holdfast.cli.shell import Shell, noun_app

app = noun_app()


@app.command()
def config(shell: Shell) -> None:
    """Show the settings in effect and where each comes from."""
    settings, sources = shell.resolved
    shell.out.table(
        {"setting": f"{section}.{key}", "value": value, "source": sources.get(f"{section}.{key}", "default")}
        for section, values in settings.model_dump(mode="json").items()  # this mode masks secrets
        for key, value in values.items()
    )
