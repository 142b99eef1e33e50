package ledger

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// blockSize is the number of events in a block of the log. When a block is
// full, the sequence numbers of each agent's and each run's events in it are
// written as one row each. Readers find older events by these rows, and scan
// only the block that is not full yet. A larger block costs such a scan more;
// a smaller one costs the writer more rows.
const blockSize = 2048

func blockOf(seq int64) int64 { return seq / blockSize }

// indexed is what the index needs to know of an event.
type indexed struct {
	seq          int64
	agentID, run string
}

// indexer collects the events of the block that is not full yet.
type indexer struct {
	open []indexed
}

// add takes an event up and, when it is the first one of a new block, writes
// the rows of the one before, in the transaction that stores the event. Hence
// in any state of the file all blocks before that of the last event have
// their rows, and no other block has.
func (x *indexer) add(t *tx, e *Event) error {
	if n := len(x.open); n > 0 && blockOf(x.open[n-1].seq) != blockOf(e.Seq) {
		if err := x.seal(t); err != nil {
			return err
		}
	}
	x.open = append(x.open, indexed{e.Seq, e.AgentID, e.RunID})
	return nil
}

func (x *indexer) seal(t *tx) error {
	lists := map[string][]byte{}
	last := map[string]int64{}
	block := blockOf(x.open[0].seq)
	for _, e := range x.open {
		for _, key := range [2]string{e.agentID, e.run} {
			if key == "" {
				continue
			}
			from, ok := last[key]
			if !ok {
				from = block * blockSize
			}
			lists[key] = binary.AppendUvarint(lists[key], uint64(e.seq-from))
			last[key] = e.seq
		}
	}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		_, err := t.exec("INSERT INTO seq_index (key, block, seqs) VALUES (?, ?, ?)", key, block, lists[key])
		if err != nil {
			return err
		}
	}
	// A fresh slice: the writer may still hold the old one to go back to.
	x.open = nil
	return nil
}

var errIndex = errors.New("row of the index cannot be read")

// decodeSeqs reads a row of the index.
func decodeSeqs(block int64, b []byte) ([]int64, error) {
	seqs := make([]int64, 0, len(b))
	at := block * blockSize
	for len(b) > 0 {
		d, n := binary.Uvarint(b)
		if n <= 0 || d >= blockSize {
			return nil, errIndex
		}
		at += int64(d)
		seqs = append(seqs, at)
		b = b[n:]
	}
	return seqs, nil
}
