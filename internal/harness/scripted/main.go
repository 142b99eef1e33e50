package scripted

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// maxOrder bounds one line to the process, in bytes.
const maxOrder = 16 << 20

// Exit codes of Main.
const (
	exitOK      = 0
	exitFailed  = 1
	exitBadArgs = 2
)

// Main is the process of the harness. ctx should end with SIGINT and SIGTERM. It returns the exit code: 0 after stdin
// was closed or ctx ended, 1 where the session cannot be opened or written, 2
// for wrong arguments, and whatever `exit CODE` says. A turn in progress is
// aborted first, with the processes of its tool call.
//
// A read of stdin that ctx cannot interrupt outlives Main; the caller is
// expected to end the process.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(Subcommand, flag.ContinueOnError)
	flags.SetOutput(stderr)
	continued := flags.Bool("continue", false, "continue the newest session of the home directory")
	id := flags.String("session", "", "continue the session with this `ID`")
	if err := flags.Parse(args); err != nil {
		return exitBadArgs
	}
	home, err := os.UserHomeDir()
	if err != nil {
		fmt.Fprintf(stderr, "scripted harness: finding the home directory: %v\n", err)
		return exitFailed
	}
	a := &agent{home: home, out: stdout, asks: map[string]chan order{}}
	if err := a.open(*continued, *id); err != nil {
		fmt.Fprintf(stderr, "scripted harness: %v\n", err)
		return exitFailed
	}
	defer a.session.file.Close()
	code, err := a.serve(ctx, stdin)
	if err != nil {
		fmt.Fprintf(stderr, "scripted harness: %v\n", err)
	}
	return code
}

// open opens the session to continue, or a new one, and reports it.
func (a *agent) open(continued bool, id string) error {
	dir := filepath.Join(a.home, ".scripted", "sessions")
	var err error
	if continued && id == "" {
		if id, err = newestSession(dir); err != nil {
			return err
		}
	}
	if id != "" {
		a.session, err = openSession(dir, id)
	} else {
		a.session, err = newSession(dir)
	}
	if err != nil {
		return err
	}
	a.emit(report{Ev: evReady, Session: a.session.id, Messages: a.session.messages, Continued: id != ""})
	return nil
}

// serve takes orders until stdin ends, ctx ends or a turn exits the process.
func (a *agent) serve(ctx context.Context, stdin io.Reader) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	prompts := make(chan prompt)
	turns := make(chan error, 1)
	go func() { turns <- a.turns(ctx, prompts) }()

	// The reader is not waited for: nothing but the end of the process ends a
	// read of a terminal or a pipe that stays open.
	go func() { cancel(a.read(ctx, stdin, prompts)) }()

	err := <-turns
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit), nil
	}
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, errStdinClosed) && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// errStdinClosed is why the turns end when the other side is gone.
var errStdinClosed = errors.New("standard input was closed")

// read hands out the orders and returns why it stopped.
func (a *agent) read(ctx context.Context, stdin io.Reader, prompts chan<- prompt) error {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(make([]byte, 64<<10), maxOrder)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		if o.Op != opPrompt {
			a.take(o)
			continue
		}
		p, err := a.begin(ctx, o)
		if err != nil {
			return err
		}
		select {
		case prompts <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading orders: %w", err)
	}
	return errStdinClosed
}

// prompt is a turn to be run, in a context of its own.
type prompt struct {
	order
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// begin makes the turn take orders before the next line is read: an abort that
// follows its prompt at once finds the turn there.
func (a *agent) begin(ctx context.Context, o order) (prompt, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy {
		return prompt{}, errors.New("a prompt came while a turn was in progress")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a.busy, a.abort = true, cancel
	return prompt{order: o, ctx: ctx, cancel: cancel}, nil
}

// agent is the process's state. The turn runs in one goroutine, orders arrive
// in another; mu guards what both touch.
type agent struct {
	home    string
	session *session // used by the turn only
	calls   int      // numbers tool calls and requests; used by the turn only

	outMu sync.Mutex
	out   io.Writer

	mu       sync.Mutex
	busy     bool                    // from a prompt to the report of the turn's end
	abort    context.CancelCauseFunc // nil where no orders are taken
	aborts   []string                // orders to be answered once the turn has ended
	steering []string
	followUp []string
	asks     map[string]chan order
}

// emit writes one report. A reader that is gone is noticed by stdin's end.
func (a *agent) emit(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("marshalling a report: %v", err))
	}
	a.outMu.Lock()
	defer a.outMu.Unlock()
	_, _ = a.out.Write(append(line, '\n'))
}

// take carries out an order that belongs to the turn in progress.
func (a *agent) take(o order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.abort == nil {
		a.emit(report{Ev: evReply, ID: o.ID, Error: "no turn is in progress"})
		return
	}
	switch o.Op {
	case opSteer:
		a.steering = append(a.steering, o.Text)
	case opFollowUp:
		a.followUp = append(a.followUp, o.Text)
	case opAbort:
		// Answered when the turn has ended, so that the answer means it.
		a.aborts = append(a.aborts, o.ID)
		a.abort(errAborted)
		return
	case opAnswer:
		asked, open := a.asks[o.Request]
		if !open {
			a.emit(report{Ev: evReply, ID: o.ID, Error: "no such request is open"})
			return
		}
		delete(a.asks, o.Request)
		asked <- o
	default:
		a.emit(report{Ev: evReply, ID: o.ID, Error: fmt.Sprintf("unknown order %q", o.Op)})
		return
	}
	a.emit(report{Ev: evReply, ID: o.ID})
	if o.Op != opAnswer {
		a.emit(report{Ev: evQueue, Steering: len(a.steering), FollowUp: len(a.followUp)})
	}
}
