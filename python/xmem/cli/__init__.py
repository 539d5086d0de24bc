"""The command line: one file a subcommand, results on stdout, everything else on stderr."""
