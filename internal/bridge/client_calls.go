package bridge

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Subscribe asks once for every record behind position after, first what the
// journal holds, then what comes; they arrive on Records in order, without
// gaps and without doubles. ErrGap: the journal ends before after, so it is not
// the one the position is from. Positions that were dropped come as one record
// of kind dropped.
func (c *Client) Subscribe(ctx context.Context, after int64) error {
	c.mu.Lock()
	if c.subscribed {
		c.mu.Unlock()
		return fmt.Errorf("second subscription of a connection: %w", ErrProtocol)
	}
	c.subscribed, c.pos = true, after
	c.mu.Unlock()
	_, err := c.call(ctx, request{Op: opSubscribe, Pos: after})
	if err != nil {
		return fmt.Errorf("subscribing from %d: %w", after, err)
	}
	return nil
}

// Ack tells the bridge that everything up to pos is stored: it may drop it.
func (c *Client) Ack(ctx context.Context, pos int64) error {
	if _, err := c.call(ctx, request{Op: opAck, Pos: pos}); err != nil {
		return fmt.Errorf("acknowledging %d: %w", pos, err)
	}
	return nil
}

// StartHarness starts a process of the harness, after killing what the last
// one left, and returns once its session is known. harness.ErrBusy while a
// turn is in progress; harness.ErrUnknown for a harness the bridge does not
// have; ErrHarness, with the exit code and the last words, when it ends first.
// A context that ends leaves the start going on.
func (c *Client) StartHarness(ctx context.Context, req StartRequest) (Hello, error) {
	r, err := c.call(ctx, request{Op: opStart, Start: &req})
	if err != nil {
		return Hello{}, fmt.Errorf("starting the harness %s: %w", req.Harness, err)
	}
	return helloOf(r)
}

func helloOf(r response) (Hello, error) {
	if r.Hello == nil {
		return Hello{}, fmt.Errorf("answer without a hello: %w", ErrProtocol)
	}
	return *r.Hello, nil
}

// StopHarness ends the harness: SIGINT to its group, SIGTERM after grace,
// SIGKILL after 2 s more. It returns when its exit is in the journal. None
// running is no error.
func (c *Client) StopHarness(ctx context.Context, grace time.Duration) error {
	if _, err := c.call(ctx, request{Op: opStop, GraceMs: grace.Milliseconds()}); err != nil {
		return fmt.Errorf("stopping the harness: %w", err)
	}
	return nil
}

// Deliver hands a turn over, exactly once by its ID: known says that the
// bridge had accepted it before, in this life or an earlier one. On a nil error
// the turn is on the bridge's disk, and exactly one turn.ended will follow
// unless the bridge is killed. Errors, which all mean that the turn was not
// accepted: harness.ErrBusy, harness.ErrNotReady, ErrDraining, ErrJournal,
// ErrTooLarge. ErrClosed and the context's error leave it open: deliver it
// again to know.
func (c *Client) Deliver(ctx context.Context, t Turn) (known bool, err error) {
	r, err := c.call(ctx, request{Op: opDeliver, Turn: &t})
	if err != nil {
		return false, fmt.Errorf("delivering turn %s: %w", t.ID, err)
	}
	return r.Known, nil
}

// Steer gives the turn in progress something more to consider. Like the other
// orders it returns when the harness took it: harness.ErrRefused with its words
// when it did not; harness.ErrNoTurn when there is nothing to steer. With an id
// the turn is told once, however often it is called, and a record says when the
// harness took it.
func (c *Client) Steer(ctx context.Context, id, text string) error {
	return c.order(ctx, Order{ID: id, Op: orderSteer, Text: text})
}

// FollowUp queues text behind the turn's own work.
func (c *Client) FollowUp(ctx context.Context, text string) error {
	return c.order(ctx, Order{Op: orderFollowUp, Text: text})
}

// Abort ends the turn in progress.
func (c *Client) Abort(ctx context.Context) error {
	return c.order(ctx, Order{Op: orderAbort})
}

// Answer decides a permission request: once, always or reject.
// harness.ErrUnknownRequest when no such request is open.
func (c *Client) Answer(ctx context.Context, requestID, decision, feedback string) error {
	return c.order(ctx, Order{Op: orderAnswer, Request: requestID, Decision: decision, Feedback: feedback})
}

func (c *Client) order(ctx context.Context, o Order) error {
	if _, err := c.call(ctx, request{Op: opOrder, Order: &o}); err != nil {
		return fmt.Errorf("order %s: %w", o.Op, err)
	}
	return nil
}

// Status returns the state as it is now.
func (c *Client) Status(ctx context.Context) (Hello, error) {
	r, err := c.call(ctx, request{Op: opStatus})
	if err != nil {
		return Hello{}, fmt.Errorf("asking for the bridge's status: %w", err)
	}
	return helloOf(r)
}

// Processes lists the sandbox's processes. Their words are the sandbox's own.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	r, err := c.call(ctx, request{Op: opProcesses})
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	return r.Processes, nil
}

// Stderr returns the last 64 KiB of the harness's standard error.
func (c *Client) Stderr(ctx context.Context) (string, error) {
	r, err := c.call(ctx, request{Op: opStderr})
	if err != nil {
		return "", fmt.Errorf("reading the harness's standard error: %w", err)
	}
	return r.Text, nil
}

// Drain lets no more turns in, until the next StartHarness, and returns when
// none is in progress.
func (c *Client) Drain(ctx context.Context) error {
	if _, err := c.call(ctx, request{Op: opDrain}); err != nil {
		return fmt.Errorf("draining: %w", err)
	}
	return nil
}

// Signal signals one process of the harness: ErrNoProcess for any other.
func (c *Client) Signal(ctx context.Context, pid int, sig syscall.Signal) error {
	if _, err := c.call(ctx, request{Op: opSignal, PID: pid, Signal: int(sig)}); err != nil {
		return fmt.Errorf("signalling process %d: %w", pid, err)
	}
	return nil
}
