"""`python -m baton COMMAND` is `baton COMMAND` where the script is not installed."""

from baton.workflows.command_line import main

main(prog_name="baton")
