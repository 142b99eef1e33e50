// Command fanout has one agent spawn three workers and a fourth that gathers
// their results, by nothing but alineod's HTTP API.
//
//	alineod serve &
//	go run ./examples/fanout
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"time"
)

func main() {
	daemon := flag.String("daemon", "http://127.0.0.1:4600", "address of the daemon")
	specFile := flag.String("spec", "", "spec of the agents, a JSON file (default: the scripted harness)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *daemon, *specFile, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, daemon, specFile string, out io.Writer) error {
	spec := map[string]any{"harness": "scripted"}
	if specFile != "" {
		raw, err := os.ReadFile(specFile)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &spec); err != nil {
			return fmt.Errorf("reading %s: %w", specFile, err)
		}
	}
	spec["spawnDepth"] = 1 // may spawn, its children may not
	d := client{daemon}

	var started struct{ RunID, RootAgentID string }
	if err := d.call(ctx, "POST", "/runs", map[string]any{"spec": spec, "prompt": "say ready"}, &started); err != nil {
		return err
	}
	if _, err := d.result(ctx, started.RootAgentID); err != nil {
		return err
	}
	spawn := func(prompt string, waitFor ...string) (string, error) {
		body := map[string]any{"spec": spec, "parentAgentId": started.RootAgentID, "prompt": prompt}
		if waitFor != nil {
			body["waitFor"] = waitFor
		}
		var spawned struct{ AgentID string }
		err := d.call(ctx, "POST", "/runs/"+started.RunID+"/agents", body, &spawned)
		return spawned.AgentID, err
	}
	var workers []string
	for _, part := range []string{"one", "two", "three"} {
		id, err := spawn("say part " + part)
		if err != nil {
			return err
		}
		workers = append(workers, id)
	}
	// Held until all three have settled; what they said is then in its sandbox.
	gatherer, err := spawn(`run cat "$ALINEO_INPUTS"/*.txt > parts; wc -l < parts`+"\nsay gathered", workers...)
	if err != nil {
		return err
	}
	for _, id := range append(workers, gatherer) {
		text, err := d.result(ctx, id)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, text)
	}
	return d.call(ctx, "DELETE", "/runs/"+started.RunID, nil, nil)
}

// client speaks with a daemon.
type client struct{ address string }

// result waits for an agent's turn to end well, and returns what it said last.
func (c client) result(ctx context.Context, agent string) (string, error) {
	for {
		var r struct {
			State   string
			Outcome string
			Result  string
			Error   string
		}
		if err := c.call(ctx, "GET", "/agents/"+agent+"/result?wait=60", nil, &r); err != nil {
			return "", err
		}
		if r.State != "settled" {
			continue
		}
		if r.Outcome != "success" {
			return "", fmt.Errorf("the turn of %s ended with %s: %s", agent, r.Outcome, r.Error)
		}
		return r.Result, nil
	}
}

func (c client) call(ctx context.Context, method, path string, body, answer any) error {
	var sent io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(raw)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.address+path, sent)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		var said struct{ Error string }
		_ = json.NewDecoder(res.Body).Decode(&said)
		return fmt.Errorf("%s %s: %w", method, path, errors.New(said.Error))
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(answer)
}
