"""The command line, `flowctl`: one thin file per command."""
