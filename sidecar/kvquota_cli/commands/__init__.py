"""One module per command, imported when it runs: `run(arguments) -> ExitCode`; `kvquota_cli.options` declares them."""
