package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/alineod/alineod/internal/ledger"
)

// DefaultRetain is how many checkpoints are kept (checkpoints.retain).
const DefaultRetain = 3

// stateKept is the state of a row whose archive is not to be removed.
const stateKept = "kept"

// Prunable returns the rows of one agent whose archives may go, given all of
// its rows, newest first in ledger order. A retain below one means
// DefaultRetain.
//
// Kept are the newest retain intact checkpoints of the agent, across all its
// sandboxes. That is at most retain per sandbox, and retain in all however
// often the agent is restored. A new sandbox, which has none of its own yet,
// takes nothing from those of the sandbox before it: only the checkpoints it
// takes push older ones out, one for one. So a second loss before its first
// turn restores what the first loss restored, and a damaged newest checkpoint
// always has older ones behind it.
//
// A checkpoint known to be damaged does not count and goes, unless the agent
// has no intact one at all: then the newest damaged ones are all that a person
// could still look into.
//
// After a rollback the caller records the checkpoint it went back to once
// more, for the new sandbox. It is then the newest in ledger order; the archive
// that both rows name goes only when both may.
func Prunable(list []ledger.Checkpoint, retain int) []ledger.Checkpoint {
	if retain < 1 {
		retain = DefaultRetain
	}
	intact := 0
	for _, c := range list {
		if c.State == stateKept && c.Damaged == "" {
			intact++
		}
	}
	keep := map[string]bool{} // by reference
	for _, c := range list {
		if c.State != stateKept || intact > 0 && c.Damaged != "" {
			continue
		}
		if len(keep) < retain {
			keep[c.SnapshotRef] = true
		}
	}
	var out []ledger.Checkpoint
	for _, c := range list {
		if c.State == stateKept && !keep[c.SnapshotRef] {
			out = append(out, c)
		}
	}
	return out
}

// Candidates returns the rows a restore tries, best first, given the rows of
// one agent, newest first in ledger order: the kept ones as they stand, those
// that an earlier restore found damaged last, since the cause may have been in
// the reading. An archive named by several rows is tried once.
func Candidates(list []ledger.Checkpoint) []ledger.Checkpoint {
	var good, damaged []ledger.Checkpoint
	seen := map[string]bool{}
	for _, c := range list {
		if c.State != stateKept || seen[c.SnapshotRef] {
			continue
		}
		seen[c.SnapshotRef] = true
		if c.Damaged == "" {
			good = append(good, c)
		} else {
			damaged = append(damaged, c)
		}
	}
	return append(good, damaged...)
}

// Sweep removes from the store all that is not known: archives that no event
// names and what a crash left unfinished. known holds the references of the
// rows that are kept, of all agents. It is for the boot, before any checkpoint
// is taken: an archive whose event is about to be written is not known yet.
//
// What cannot be removed does not stop the rest; the errors come joined.
func Sweep(ctx context.Context, store Store, known map[string]bool) (removed []string, err error) {
	refs, err := store.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweeping checkpoints: %w", err)
	}
	var errs []error
	for _, ref := range refs {
		if known[ref] {
			continue
		}
		if err := store.Remove(ctx, ref); err != nil {
			errs = append(errs, fmt.Errorf("sweeping checkpoint %s: %w", ref, err))
			continue
		}
		removed = append(removed, ref)
	}
	return removed, errors.Join(errs...)
}
