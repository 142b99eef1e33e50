// Command modelserver serves the scripted model server of the tests, inside a
// sandbox that has no network: see package modelserver.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alineod/alineod/internal/modelserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := modelserver.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
