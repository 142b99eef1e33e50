package bridge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

func TestTurn(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.connect(t)
		h := c.Hello()
		if h.SandboxID != b.args.SandboxID || h.Harness.State != harness.StateNone || h.PID != 0 || h.Head != 1 || h.Home != b.args.Home || h.Workdir != b.args.Home {
			t.Errorf("hello %+v", h)
		}
		if err := c.Subscribe(ctx, 0); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.Subscribe(ctx, 0), bridge.ErrProtocol)
		_, err := c.Deliver(ctx, bridge.Turn{ID: "t_early", Prompt: harness.Prompt{Text: "say hi"}})
		wantErr(t, err, harness.ErrNotReady)
		h, err = c.StartHarness(ctx, startRequest(nil))
		if err != nil || h.Harness.State != harness.StateIdle || h.PID == 0 || h.Name != "fake" || !strings.HasPrefix(h.Harness.SessionID, "session-") {
			t.Fatalf("StartHarness = %+v, %v", h, err)
		}
		deliver(t, c, "t_1", "say <one> & two\ndeltas 3\nsay three")
		records := until(t, c, "turn.ended")
		checkPositions(t, 0, records)
		if diff := cmp.Diff([]string{"<one> & two", "three"}, said(records)); diff != "" {
			t.Error(diff)
		}
		var kinds []string
		for _, r := range records {
			kinds = append(kinds, r.Kind)
			if r.Kind == bridge.KindTurn && (!has(r, "turn.started") || r.TurnID != "t_1") {
				t.Errorf("turn's record %+v", r)
			}
			if has(r, "turn.ended") && r.TurnID != "t_1" {
				t.Errorf("end's record %+v", r)
			}
		}
		want := []string{"boot", "started", "line", "turn", "line", "line", "line", "line", "line", "line"}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Error(diff)
		}
		for i := range 3 {
			e := <-c.Ephemerals()
			if e.TurnID != "t_1" || e.Event.Name != harness.MessageUpdated || !strings.Contains(string(e.Event.Data), fmt.Sprint(i)) {
				t.Errorf("ephemeral %+v", e)
			}
		}
		h, err = c.Status(ctx)
		if err != nil || h.Harness.State != harness.StateIdle || h.TurnID != "" || h.LastTurnID != "t_1" || h.Head != 10 || h.Oldest != 1 || h.Harness.Messages != 2 {
			t.Errorf("status %+v, %v", h, err)
		}
		known, err := c.Deliver(ctx, bridge.Turn{ID: "t_1", Prompt: harness.Prompt{Text: "say again"}})
		if err != nil || !known {
			t.Errorf("second Deliver = %v, %v", known, err)
		}
	})
}

func TestOrders(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.ready(t, nil)
		wantErr(t, c.Steer(ctx, "", "nothing to steer"), harness.ErrNoTurn)
		wantErr(t, c.Abort(ctx), harness.ErrNoTurn)
		wantErr(t, c.Answer(ctx, "nope", "once", ""), harness.ErrUnknownRequest)
		deliver(t, c, "t_1", "ask q1\nwait")
		_, err := c.Deliver(ctx, bridge.Turn{ID: "t_2", Prompt: harness.Prompt{Text: "say no"}})
		wantErr(t, err, harness.ErrBusy)
		_, err = c.StartHarness(ctx, startRequest(nil))
		wantErr(t, err, harness.ErrBusy)
		records := until(t, c, "permission.requested")
		if err := c.Answer(ctx, "q1", "reject", "too dear"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.Answer(ctx, "q1", "once", ""), harness.ErrUnknownRequest)
		for range 2 { // a named order is told once
			if err := c.Steer(ctx, "s1", "left"); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.FollowUp(ctx, "then right"); err != nil {
			t.Fatal(err)
		}
		err = c.Steer(ctx, "s2", "no")
		wantErr(t, err, harness.ErrRefused)
		if err == nil || !strings.Contains(err.Error(), "I would rather not") {
			t.Errorf("refusal without its words: %v", err)
		}
		if err := c.Abort(ctx); err != nil {
			t.Fatal(err)
		}
		records = append(records, until(t, c, "turn.ended")...)
		checkPositions(t, 0, records)
		if diff := cmp.Diff([]string{"answered q1 reject too dear", "steer: left", "follow-up: then right"}, said(records)); diff != "" {
			t.Error(diff)
		}
		var orders []bridge.Order
		var taken []string
		for _, r := range records {
			taken = append(taken, r.Taken...)
			if r.Kind == bridge.KindOrder {
				orders = append(orders, *r.Order)
			}
		}
		want := []bridge.Order{
			{Op: "answer", Request: "q1", Decision: "reject", Feedback: "too dear"},
			{ID: "s1", Op: "steer", Text: "left"}, {Op: "follow-up", Text: "then right"}, {ID: "s2", Op: "steer", Text: "no"}, {Op: "abort"},
		}
		if diff := cmp.Diff(want, orders); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"s1"}, taken); diff != "" {
			t.Errorf("taken orders: %s", diff)
		}
		// The turn that was refused as busy was not accepted.
		deliver(t, c, "t_2", "say yes")
		if got := said(until(t, c, "turn.ended")); !slices.Equal(got, []string{"yes"}) {
			t.Errorf("said %q", got)
		}
	})
}

func TestHarnessDeath(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.ready(t, nil)
		for i, tc := range []struct {
			prompt string
			code   int
			signal string
			said   []string
		}{
			{"say a\nstderr last words\nexit 9", 9, "", []string{"a"}},
			{"say b\nstderr last words\nhalf-line-and-die", -1, "SIGKILL", []string{"b"}},
		} {
			deliver(t, c, fmt.Sprintf("t_%d", i), tc.prompt)
			records := untilRecord(t, c, func(r bridge.Record) bool { return r.Kind == bridge.KindExit })
			last := records[len(records)-1]
			if last.Exit.Code != tc.code || last.Exit.Signal != tc.signal || last.Exit.OOMHint || !strings.Contains(last.Exit.Stderr, "last words\n") {
				t.Errorf("exit %+v", last.Exit)
			}
			if !has(last, "turn.ended") || last.TurnID != fmt.Sprintf("t_%d", i) || !strings.Contains(string(last.Events[0].Data), harness.ClassSessionFailed) {
				t.Errorf("exit's record %+v", last)
			}
			if diff := cmp.Diff(tc.said, said(records)); diff != "" {
				t.Error(diff)
			}
			h, err := c.Status(ctx)
			if err != nil || h.Harness.State != harness.StateExited || h.PID != 0 || h.Exit == nil || h.Exit.Code != tc.code || h.TurnID != "" {
				t.Errorf("status %+v, %v", h, err)
			}
			if tail, err := c.Stderr(ctx); err != nil || !strings.Contains(tail, "last words") {
				t.Errorf("Stderr = %q, %v", tail, err)
			}
			wantErr(t, c.Abort(ctx), harness.ErrNoTurn)
			_, err = c.Deliver(ctx, bridge.Turn{ID: "t_never"})
			wantErr(t, err, harness.ErrNotReady)
			if _, err := c.StartHarness(ctx, startRequest(nil)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.connect(t)
		_, err := c.StartHarness(ctx, startRequest(map[string]string{"FAKE_MODE": "dies"}))
		wantErr(t, err, bridge.ErrHarness)
		if err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "cannot open the session") {
			t.Errorf("error tells too little: %v", err)
		}
		_, err = c.StartHarness(ctx, bridge.StartRequest{Harness: "other"})
		wantErr(t, err, harness.ErrUnknown)
		_, err = c.StartHarness(ctx, bridge.StartRequest{Harness: "fake", Launch: harness.Launch{Provider: "missing"}})
		wantErr(t, err, bridge.ErrHarness)
		if _, err := c.StartHarness(ctx, startRequest(nil)); err != nil {
			t.Errorf("a good start after failed ones: %v", err)
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.ready(t, map[string]string{"FAKE_MODE": "graceful"})
		if err := c.StopHarness(ctx, patience); err != nil {
			t.Fatal(err)
		}
		h, err := c.Status(ctx)
		if err != nil || h.Exit == nil || h.Exit.Code != 7 || h.Exit.Stderr != "bye\n" {
			t.Errorf("status %+v, %v", h, err)
		}
		if err := c.StopHarness(ctx, patience); err != nil {
			t.Errorf("stopping what is stopped: %v", err)
		}
		if _, err := c.StartHarness(ctx, startRequest(map[string]string{"FAKE_MODE": "stubborn"})); err != nil {
			t.Fatal(err)
		}
		deliver(t, c, "t_1", "wait")
		if err := c.StopHarness(ctx, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		h, err = c.Status(ctx)
		if err != nil || h.Exit == nil || h.Exit.Signal != "SIGKILL" || h.TurnID != "" {
			t.Errorf("status %+v, %v", h, err)
		}
		until(t, c, "turn.ended")
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	args.Workdir = "work/here"
	b := start(t, "serve", args)
	c := b.ready(t, map[string]string{"BOTH": "spec", "SECRET": "s3cret-value"})
	deliver(t, c, "t_1", "env FROM_HARNESS\nenv BOTH\nenv HOME\nenv ALINEO_SANDBOX\nenv ALINEO_HARNESS\nwhere")
	got := said(until(t, c, "turn.ended"))
	want := []string{"FROM_HARNESS=h", "BOTH=spec", "HOME=" + args.Home, "ALINEO_SANDBOX=" + args.SandboxID, "ALINEO_HARNESS=1"}
	if diff := cmp.Diff(want, got[:5]); diff != "" {
		t.Error(diff)
	}
	var dir, ids string
	var score int
	fmt.Sscan(got[5], &dir, &ids, &score)
	if dir != args.Home+"/work/here" || score < 500 {
		t.Errorf("runs in %q with OOM score %d", dir, score)
	}
	if files := grep(t, args.Dir, "s3cret-value"); len(files) > 0 {
		t.Errorf("secret stands in %q", files)
	}
}

func TestProcessesAndSignal(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.ready(t, nil)
		h, err := c.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		found := map[int]bridge.Process{}
		for _, p := range list {
			found[p.PID] = p
		}
		p := found[h.PID]
		if !strings.Contains(p.Command, "harness") || p.PPID != b.cmd.Process.Pid || p.User == "" || p.RSSBytes <= 0 || time.Since(time.UnixMilli(p.StartedAt)).Abs() > time.Hour {
			t.Errorf("harness among the processes: %+v", p)
		}
		wantErr(t, c.Signal(ctx, b.cmd.Process.Pid, syscall.SIGKILL), bridge.ErrNoProcess)
		wantErr(t, c.Signal(ctx, syscall.Getpid(), syscall.SIGURG), bridge.ErrNoProcess)
		if err := c.Signal(ctx, h.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		records := untilRecord(t, c, func(r bridge.Record) bool { return r.Kind == bridge.KindExit })
		if e := records[len(records)-1].Exit; e.Signal != "SIGTERM" {
			t.Errorf("exit %+v", e)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		c := b.ready(t, nil)
		deliver(t, c, "t_1", "say a\nwait")
		until(t, c, "message.ended")
		drained := make(chan error, 1)
		go func() { drained <- c.Drain(ctx) }()
		// The next turn is refused as soon as the drain has come through.
		for {
			_, err := c.Deliver(ctx, bridge.Turn{ID: "t_2", Prompt: harness.Prompt{Text: "say b"}})
			if errors.Is(err, bridge.ErrDraining) {
				break
			}
			if !errors.Is(err, harness.ErrBusy) {
				t.Fatalf("Deliver: %v", err)
			}
		}
		select {
		case err := <-drained:
			t.Fatalf("drained under a turn: %v", err)
		default:
		}
		if err := c.Abort(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		if known, err := c.Deliver(ctx, bridge.Turn{ID: "t_1"}); err != nil || !known {
			t.Errorf("Deliver of a known turn = %v, %v", known, err)
		}
	})
}

func TestLines(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	args.MaxLine = 10_000
	b := start(t, "serve", args)
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "say a\nendless 5000000\nsay b\ngarbage\nsay c\nstderr-flood 2000\nstderr end")
	records := until(t, c, "turn.ended")
	checkPositions(t, 0, records)
	if diff := cmp.Diff([]string{"a", "b", "c"}, said(records)); diff != "" {
		t.Error(diff)
	}
	diagnostics := 0
	for _, r := range records {
		if has(r, "diagnostic.stored") {
			diagnostics++
			if len(r.Events[0].Body) > 5000 {
				t.Errorf("diagnostic of %d bytes", len(r.Events[0].Body))
			}
		}
	}
	if diagnostics != 2 {
		t.Errorf("%d diagnostics, want one for the endless line, one for the garbage", diagnostics)
	}
	tail, err := c.Stderr(testContext(t))
	if err != nil || len(tail) > 64<<10 || !strings.HasSuffix(tail, "end\n") {
		t.Errorf("stderr of %d bytes, %v", len(tail), err)
	}
}

func TestProtocolRefusesAfterAcceptance(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "protocol-refuses")
	last := until(t, c, "turn.ended")
	r := last[len(last)-1]
	if r.TurnID != "t_1" || !strings.Contains(string(r.Events[0].Data), harness.OutcomeFailed) {
		t.Errorf("%+v", r)
	}
}
