package alineo_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alineod/alineod/alineo"
)

func Example() {
	alineo.Init()
	ctx := context.Background()
	s, err := alineo.Open(ctx, alineo.Options{StateDir: "/var/lib/my-program"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	a, err := s.Start(ctx, map[string]any{"harness": "pi", "provider": "anthropic", "model": "claude-sonnet-4-5",
		"env": map[string]string{"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY}"}, "checkpoint": true}, alineo.StartOptions{})
	if err != nil {
		log.Fatal(err)
	}
	limit, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	result, err := a.Ask(limit, "Add tests for the parser.")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome, result.Text)
}
