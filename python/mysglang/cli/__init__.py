"""The command line `mysglang`: one file for each subcommand, and what the subcommands share."""
