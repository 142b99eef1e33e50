package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

var version = "dev"

func newDemo() *cobra.Command { return &cobra.Command{Use: "demo"} }

func main() {
	root := &cobra.Command{Use: "alineod", SilenceUsage: true}
	addServerCommands(root)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
