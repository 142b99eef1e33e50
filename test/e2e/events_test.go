package e2e_test

import (
	"context"
	"encoding/json"

	"github.com/alineod/alineod/internal/client"
)

// storedEvent is one event of a run, as the stream gives it.
type storedEvent struct {
	client.Event
	data map[string]any
}

func (e storedEvent) field(name string) string {
	s, _ := e.data[name].(string)
	return s
}

// allEvents reads all stored events of a run up to now, as a client does.
func (d *daemon) allEvents(run string) []storedEvent {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream := d.Events(ctx, run, 0)
	stream.Comments = true
	defer stream.Close()
	var all []storedEvent
	for {
		e, err := stream.Next()
		if err != nil {
			d.t.Fatal(err)
		}
		if e.Comment == client.LiveComment {
			return all
		}
		s := storedEvent{Event: e}
		if e.Seq == 0 || json.Unmarshal(e.Data, &s.data) != nil {
			continue
		}
		all = append(all, s)
	}
}
