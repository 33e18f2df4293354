"""What the verbs of `thaw` have in common: options of several, and how each ends."""

import click

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key, as data.window.num_days=20. Repeatable.",
)


def config_options(command):  # type: ignore[no-untyped-def]
    """Adds --preset, --config and --set."""
    for option in (
        set_option,
        click.option(
            "--config", "config_path", type=click.Path(), help="The run's configuration document, a YAML file."
        ),
        click.option(
            "--preset",
            metavar="NAME",
            help="A document that Thaw ships: small, demo (the default), demo-lite, movielens, production.",
        ),
    ):
        command = option(command)
    return command


def finish(command, *arguments):  # type: ignore[no-untyped-def]
    """Call the command; a fault of the input or of the run is one message on stderr and exit status 1."""
    try:
        command(*arguments)
    except BrokenPipeError:
        raise  # whoever read the output has heard enough; click ends without a word
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
