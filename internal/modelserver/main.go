package modelserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

// Main serves until ctx ends and returns the exit code: 0, 1 where it cannot
// serve, 2 for wrong arguments. Once it listens it prints
// "listening on ADDRESS" to stdout.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("modelserver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:8080", "`ADDRESS` to listen on")
	logPath := flags.String("log", "", "append each request to this `FILE`, as JSON lines")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := serve(ctx, *listen, *logPath, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "modelserver: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, listen, logPath string, stdout, stderr io.Writer) (err error) {
	var requests io.Writer
	if logPath != "" {
		f, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("opening the log: %w", err)
		}
		defer f.Close()
		requests = f
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	srv := &http.Server{
		Handler: New(requests), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(stderr, "modelserver: ", 0),
		// Held answers end with the server.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	fmt.Fprintf(stdout, "listening on %s\n", ln.Addr())
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	}
	err = srv.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
