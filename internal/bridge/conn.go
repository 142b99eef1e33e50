package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// maxConns bounds open connections; a newer one takes the oldest's place,
	// for the oldest is the likeliest to be dead.
	maxConns = 16
	// maxInFlight bounds the requests of one connection under way.
	maxInFlight = 32
	// byeTimeout is how long a connection's last word may take.
	byeTimeout = time.Second
)

// connTable holds the open connections.
type connTable struct {
	lock *os.File // of the directory, see server.lock

	mu     sync.Mutex
	seq    int
	open   []*conn // oldest first
	sub    *conn   // the subscriber, at most one
	closed bool
}

// conn is one connection, from the server's side.
type conn struct {
	s      *server
	c      *net.UnixConn
	r      *bufio.Reader
	seq    int
	cancel context.CancelFunc

	write   sync.Mutex
	credit  chan struct{}
	shown   chan Ephemeral
	knocks  chan struct{}
	pumping bool // a subscription was made; the reader's alone
	wg      sync.WaitGroup
}

// add registers a connection, in place of the oldest where there are too many.
func (t *connTable) add(c *conn) bool {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return false
	}
	t.seq++
	c.seq = t.seq
	t.open = append(t.open, c)
	var oldest *conn
	if len(t.open) > maxConns {
		oldest = t.open[0]
	}
	t.mu.Unlock()
	if oldest != nil {
		oldest.bye(fmt.Errorf("too many connections: %w", ErrSuperseded))
	}
	return true
}

func (t *connTable) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, o := range t.open {
		if o == c {
			t.open = append(t.open[:i], t.open[i+1:]...)
			break
		}
	}
	if t.sub == c {
		t.sub = nil
	}
}

// subscribe makes c the subscriber. The one before it, and every control
// connection older than c, belong to a daemon that is gone: they are closed.
func (t *connTable) subscribe(c *conn) {
	t.mu.Lock()
	var old []*conn
	for _, o := range t.open {
		if o != c && o.shown != nil && (o == t.sub || o.seq < c.seq) {
			old = append(old, o)
		}
	}
	t.sub = c
	t.mu.Unlock()
	for _, o := range old {
		o.bye(ErrSuperseded)
	}
}

// show gives an event to the subscriber, if it is quick enough.
func (t *connTable) show(e Ephemeral) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sub == nil {
		return
	}
	select {
	case t.sub.shown <- e:
	default:
	}
}

func (t *connTable) closeAll(why error) {
	t.mu.Lock()
	t.closed = true
	all := append([]*conn(nil), t.open...)
	t.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { c.bye(why) })
	}
	wg.Wait()
}

// serveConn serves one connection to its end.
func (s *server) serveConn(ctx context.Context, uc *net.UnixConn) {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{s: s, c: uc, r: bufio.NewReaderSize(uc, 32<<10), cancel: cancel}
	defer func() {
		cancel()
		_ = uc.Close()
		c.wg.Wait()
		s.conns.remove(c)
	}()
	if err := uc.SetReadDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return
	}
	frame, err := readFrame(c.r, maxHello)
	var hello helloRequest
	if err != nil || json.Unmarshal(frame, &hello) != nil {
		c.bye(fmt.Errorf("reading the first frame: %w", ErrProtocol))
		return
	}
	if err := uc.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	control := hello.Mode == modeControl || hello.Mode == ""
	if control {
		c.credit = make(chan struct{}, creditWindow)
		c.shown = make(chan Ephemeral, 64)
		c.knocks = make(chan struct{}, 1)
	}
	if !s.conns.add(c) {
		return
	}
	answer, err := s.hello(ctx)
	if err != nil || c.send(response{Hello: &answer}) != nil {
		return
	}
	switch {
	case hello.SandboxID != s.cfg.SandboxID:
		c.bye(fmt.Errorf("this is %s, not %q: %w", s.cfg.SandboxID, hello.SandboxID, ErrProtocol))
	case control:
		c.control(ctx)
	case hello.Mode == modePack && hello.Pack != nil:
		c.pack(ctx, *hello.Pack)
	case hello.Mode == modeVisit:
		c.visit(ctx)
	case hello.Mode == modeUnpack && hello.Unpack != nil:
		c.unpack(ctx, *hello.Unpack)
	default:
		c.bye(fmt.Errorf("stream mode %q: %w", hello.Mode, ErrProtocol))
	}
}

func (s *server) hello(ctx context.Context) (h Hello, err error) {
	err = s.keeper.do(ctx, func() { h = s.keeper.hello() })
	return h, err
}

// send writes one frame. It may wait for a slow client.
func (c *conn) send(r response) error {
	frame, err := encodeFrame(r)
	if err != nil {
		return err
	}
	return c.sendFrame(frame)
}

func (c *conn) sendFrame(frame []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	_, err := c.c.Write(frame)
	return err
}

// bye ends the connection with a last word, if the client still reads.
func (c *conn) bye(why error) {
	// The deadline also ends a write that is waiting and holds the lock.
	_ = c.c.SetWriteDeadline(time.Now().Add(byeTimeout))
	_ = c.send(response{Bye: toWire(why)})
	c.cancel()
	_ = c.c.Close()
}

// control serves requests until the client hangs up or breaks the protocol.
func (c *conn) control(ctx context.Context) {
	slots := make(chan struct{}, maxInFlight)
	for {
		frame, err := readFrame(c.r, MaxFrame)
		if err != nil {
			if errors.Is(err, ErrProtocol) {
				c.bye(err)
			}
			return
		}
		var req request
		if err := json.Unmarshal(frame, &req); err != nil {
			c.bye(fmt.Errorf("reading a request: %w: %w", ErrProtocol, err))
			return
		}
		switch req.Op {
		case opCredit:
			select {
			case c.credit <- struct{}{}:
			default: // more than was sent: worth nothing
			}
			continue
		case opSubscribe:
			c.subscribe(ctx, req)
			continue
		}
		slots <- struct{}{}
		c.wg.Go(func() {
			defer func() { <-slots }()
			r, err := c.handle(ctx, req)
			r.ID, r.Error = req.ID, toWire(err)
			if err := c.send(r); err != nil {
				c.cancel()
				_ = c.c.Close()
			}
		})
	}
}

// handle does one request.
func (c *conn) handle(ctx context.Context, req request) (r response, err error) {
	s, k := c.s, &c.s.keeper
	switch {
	case req.Op == opStatus:
		var h Hello
		h, err = s.hello(ctx)
		r.Hello = &h
	case req.Op == opAck:
		err = s.journal.ack(req.Pos)
	case req.Op == opStart && req.Start != nil:
		var h Hello
		h, err = s.startHarness(ctx, *req.Start)
		r.Hello = &h
	case req.Op == opStop:
		const most = 10 * time.Minute
		err = s.stopHarness(ctx, min(max(0, time.Duration(req.GraceMs)*time.Millisecond), most))
	case req.Op == opDeliver && req.Turn != nil:
		if doErr := k.do(ctx, func() { r.Known, err = k.deliver(*req.Turn) }); doErr != nil {
			err = doErr
		}
	case req.Op == opOrder && req.Order != nil:
		err = s.order(ctx, *req.Order)
	case req.Op == opProcesses:
		r.Processes, err = s.lineage.processes()
	case req.Op == opStderr:
		err = k.do(ctx, func() { r.Text = k.stderrTail() })
	case req.Op == opDrain:
		err = s.drain(ctx)
	case req.Op == opSignal:
		err = s.signal(req.PID, syscall.Signal(req.Signal))
	default:
		err = fmt.Errorf("request %q: %w", req.Op, ErrProtocol)
	}
	return r, err
}

// order hands an order to the harness and waits for its answer.
func (s *server) order(ctx context.Context, o Order) error {
	k := &s.keeper
	var id string
	var answer chan error
	var err error
	if doErr := k.do(ctx, func() { id, answer, err = k.order(o) }); doErr != nil || err != nil {
		return errors.Join(doErr, err)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		_ = k.do(context.WithoutCancel(ctx), func() { delete(k.orders, id) })
		return ctx.Err()
	}
}

// drain lets no new turn in and returns when none is in progress.
func (s *server) drain(ctx context.Context) error {
	k := &s.keeper
	for {
		var idle bool
		var changed chan struct{}
		if err := k.do(ctx, func() {
			k.draining = true
			idle, changed = k.turnID == "" && len(k.backlog) == 0, k.changed
		}); err != nil || idle {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// signal signals one process of the harness, and no other.
func (s *server) signal(pid int, sig syscall.Signal) error {
	if sig <= 0 || sig > 64 {
		return fmt.Errorf("signal %d: %w", sig, ErrProtocol)
	}
	found, err := s.lineage.leftovers()
	if err != nil {
		return err
	}
	for _, p := range found {
		if p.pid == pid {
			if err := signalProc(p, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("signalling process %d: %w", pid, err)
			}
			return nil
		}
	}
	return fmt.Errorf("process %d: %w", pid, ErrNoProcess)
}

// subscribe answers the request and begins to send what the journal holds.
func (c *conn) subscribe(ctx context.Context, req request) {
	s := c.s
	head := s.journal.flushed()
	var err error
	switch {
	case c.pumping:
		err = fmt.Errorf("second subscription of a connection: %w", ErrProtocol)
	case req.Pos < 0:
		err = fmt.Errorf("subscribing from %d: %w", req.Pos, ErrProtocol)
	case req.Pos > head:
		// The journal was lost or replaced: what comes next would bear
		// positions the client believes to have seen.
		err = fmt.Errorf("subscribing from %d, the journal ends at %d: %w", req.Pos, head, ErrGap)
	}
	if c.send(response{ID: req.ID, Error: toWire(err)}) != nil || err != nil {
		return
	}
	c.pumping = true
	s.conns.subscribe(c)
	for range creditWindow {
		select {
		case c.credit <- struct{}{}:
		default:
		}
	}
	c.wg.Go(func() {
		if err := c.pump(ctx, req.Pos); err != nil && ctx.Err() == nil {
			s.log.Warn("subscription ended", zap.Error(err))
			c.bye(err)
		}
	})
	c.wg.Go(func() { c.showAll(ctx) })
	c.wg.Go(func() { c.tellKnocks(ctx) })
	if s.door.anybody() {
		s.conns.knock()
	}
}

// pump sends the journal from behind after, for ever. Nothing is sent that a
// crash of the machine could take back: the client will not ask for it again.
func (c *conn) pump(ctx context.Context, after int64) error {
	j := c.s.journal
	cur := &cursor{j: j, pos: after}
	defer cur.close()
	for {
		if err := j.wait(ctx, cur.pos); err != nil {
			return err
		}
		select {
		case <-c.credit:
		case <-ctx.Done():
			return ctx.Err()
		}
		batch, err := cur.read()
		if err != nil {
			return err
		}
		if err := j.sync(cur.pos); err != nil {
			return err
		}
		if err := c.sendFrame(recordsFrame(batch)); err != nil {
			return err
		}
	}
}

// showAll sends what is shown only, several events in one frame where they
// come quickly.
func (c *conn) showAll(ctx context.Context) {
	const most, mostBytes = 64, 1 << 20
	for {
		var batch []Ephemeral
		select {
		case e := <-c.shown:
			batch = append(batch, e)
		case <-ctx.Done():
			return
		}
		size := len(batch[0].Event.Data)
		for more := true; more && len(batch) < most && size < mostBytes; {
			select {
			case e := <-c.shown:
				batch = append(batch, e)
				size += len(e.Event.Data)
			default:
				more = false
			}
		}
		frame, err := encodeFrame(response{Ephemerals: batch})
		if err != nil {
			continue // shown or not: nothing depends on it
		}
		if c.sendFrame(frame) != nil {
			return
		}
	}
}
