"""The command line: one file per subcommand, results on stdout, everything else on stderr."""
