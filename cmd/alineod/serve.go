package main

import "github.com/spf13/cobra"

// addServerCommands adds the commands that are no clients.
func addServerCommands(*cobra.Command) {}
