package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/jonboulle/clockwork"
)

// Client is a daemon's connection to a bridge. All methods are safe for
// concurrent use. A request whose context ends, or whose connection does
// (ErrClosed), may have been carried out all the same.
type Client struct {
	rwc   io.ReadWriteCloser
	r     *bufio.Reader
	clock clockwork.Clock
	hello Hello

	out     chan []byte // to the writer
	records chan []Record
	shown   chan Ephemeral
	knocks  chan struct{}
	batches chan []Record // from the reader to the pump, within the credit
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	mu         sync.Mutex
	err        error
	lastID     int64
	waiting    map[int64]chan response
	subscribed bool
	pos        int64 // last position received; the reader's after subscribing
}

// Option changes a connection.
type Option func(*Client)

// WithClock replaces the clock that HelloTimeout is measured with.
func WithClock(c clockwork.Clock) Option { return func(cl *Client) { cl.clock = c } }

// Connect says hello to the bridge of a sandbox at the other end of rwc, whose
// Close must end its reads and writes. The client owns rwc from now on, also
// when Connect fails.
//
// Errors: ErrNoAnswer when nothing comes within HelloTimeout or the stream
// ends first; ErrProtocol when what comes is no hello, or another sandbox's;
// ErrVersion; the context's own error when that ends first, which says nothing
// about the bridge.
func Connect(ctx context.Context, rwc io.ReadWriteCloser, sandboxID string, opts ...Option) (*Client, error) {
	c := newClient(rwc, opts)
	if err := c.greet(ctx, sandboxID, helloRequest{Mode: modeControl}); err != nil {
		_ = rwc.Close()
		return nil, fmt.Errorf("connecting to the bridge of %s: %w", sandboxID, err)
	}
	c.wg.Go(c.read)
	c.wg.Go(c.write)
	c.wg.Go(c.pump)
	return c, nil
}

func newClient(rwc io.ReadWriteCloser, opts []Option) *Client {
	c := &Client{
		rwc: rwc, r: bufio.NewReaderSize(rwc, 32<<10), clock: clockwork.NewRealClock(),
		out: make(chan []byte), records: make(chan []Record), shown: make(chan Ephemeral, 256), knocks: make(chan struct{}, 1),
		batches: make(chan []Record, creditWindow), done: make(chan struct{}),
		waiting: make(map[int64]chan response),
	}
	for _, o := range opts {
		o(c)
	}
	return c
}

// greet exchanges the first frames. It returns once nothing uses the stream
// any more; on failure the stream is closed for that.
func (c *Client) greet(ctx context.Context, sandboxID string, hello helloRequest) error {
	hello.Version, hello.SandboxID = ProtocolVersion, sandboxID
	frame, err := encodeFrame(hello)
	if err != nil {
		return err
	}
	if len(frame) > maxHello {
		return fmt.Errorf("first frame of %d bytes: %w", len(frame), ErrTooLarge)
	}
	result := make(chan error, 1)
	go func() { result <- c.exchange(frame, sandboxID) }()
	timer := c.clock.NewTimer(HelloTimeout)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.Chan():
		err = fmt.Errorf("%w within %s", ErrNoAnswer, HelloTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = c.rwc.Close()
	<-result
	return err
}

func (c *Client) exchange(frame []byte, sandboxID string) error {
	if _, err := c.rwc.Write(frame); err != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	answer, err := readFrame(c.r, maxHello)
	if errors.Is(err, ErrProtocol) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	var r response
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("reading its hello: %w: %w", ErrProtocol, err)
	}
	switch {
	case r.Bye != nil:
		return r.Bye.err()
	case r.Hello == nil:
		return fmt.Errorf("its first frame is no hello: %w", ErrProtocol)
	case r.Hello.Version != ProtocolVersion:
		return fmt.Errorf("version %d, want %d: %w", r.Hello.Version, ProtocolVersion, ErrVersion)
	case r.Hello.SandboxID != sandboxID:
		return fmt.Errorf("it is the bridge of %q: %w", r.Hello.SandboxID, ErrProtocol)
	}
	c.hello = *r.Hello
	return nil
}

// Hello returns what the bridge said when the connection was made.
func (c *Client) Hello() Hello { return c.hello }

// Knocks yields when programs of the sandbox wait to speak with the daemon:
// take them in with Visit until there is ErrNobody. It is never closed.
func (c *Client) Knocks() <-chan struct{} { return c.knocks }

// Records returns the subscription's batches. It is closed when the connection
// ends. A reader that is slow holds back the bridge's sending and nothing
// else: requests are answered, and the bridge's memory does not grow.
func (c *Client) Records() <-chan []Record { return c.records }

// Ephemerals returns what is shown and never stored; what is not read in time
// is left out. It is closed when the connection ends.
func (c *Client) Ephemerals() <-chan Ephemeral { return c.shown }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended; nil before that. It is of kind ErrClosed,
// and of kind ErrSuperseded, ErrProtocol or ErrGap where one of these is why.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for its goroutines. The bridge and the
// harness go on.
func (c *Client) Close() error {
	c.fail(nil)
	c.wg.Wait()
	return nil
}

// fail ends the connection.
func (c *Client) fail(why error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.err = ErrClosed
		if why != nil && !errors.Is(why, ErrClosed) {
			c.err = fmt.Errorf("%w: %w", ErrClosed, why)
		}
		c.mu.Unlock()
		close(c.done)
		_ = c.rwc.Close()
	})
}

// read takes the bridge's frames. It never waits for anyone: records come
// within the credit, answers have their places, the rest is dropped.
func (c *Client) read() {
	defer close(c.batches)
	defer close(c.shown)
	for {
		frame, err := readFrame(c.r, MaxFrame)
		if err != nil {
			c.fail(err)
			return
		}
		if err := c.take(frame); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Client) take(frame []byte) error {
	// Lists are read element by element, up to a bound: the bridge may have
	// been taken over by what it guards.
	var r struct {
		response
		Processes  json.RawMessage `json:"processes"`
		Ephemerals json.RawMessage `json:"ephemerals"`
	}
	if err := json.Unmarshal(frame, &r); err != nil {
		return fmt.Errorf("reading a frame: %w: %w", ErrProtocol, err)
	}
	switch {
	case r.Bye != nil:
		return r.Bye.err()
	case r.Knock:
		select {
		case c.knocks <- struct{}{}:
		default:
		}
		return nil
	case r.Records != nil:
		return c.takeRecords(r.Records)
	case r.Ephemerals != nil:
		shown, err := decodeList[Ephemeral](r.Ephemerals, 1024)
		if err != nil {
			return err
		}
		for _, e := range shown {
			select {
			case c.shown <- e:
			default:
			}
		}
		return nil
	}
	list, err := decodeList[Process](r.Processes, 1<<16)
	if err != nil {
		return err
	}
	r.response.Processes = list
	c.mu.Lock()
	answer := c.waiting[r.ID]
	delete(c.waiting, r.ID)
	c.mu.Unlock()
	if answer != nil {
		answer <- r.response
	}
	return nil
}

func (c *Client) takeRecords(list json.RawMessage) error {
	c.mu.Lock()
	subscribed := c.subscribed
	c.mu.Unlock()
	if !subscribed {
		return fmt.Errorf("records without a subscription: %w", ErrProtocol)
	}
	raw, err := decodeList[json.RawMessage](list, 2*batchRecords)
	if err != nil {
		return err
	}
	var batch []Record
	for _, b := range raw {
		w, err := decodeRecord(b)
		if err != nil {
			return err
		}
		if batch, err = expand(batch, &c.pos, w); err != nil {
			return err
		}
		if len(batch) > batchRecords+2*maxRun {
			return fmt.Errorf("batch of more than %d records: %w", len(batch), ErrProtocol)
		}
	}
	select {
	case c.batches <- batch:
		return nil
	default:
		return fmt.Errorf("more records than asked for: %w", ErrProtocol)
	}
}

// pump passes batches on and gives the bridge credit for each one taken.
func (c *Client) pump() {
	defer close(c.records)
	for batch := range c.batches {
		select {
		case c.records <- batch:
		case <-c.done:
			return
		}
		frame, err := encodeFrame(request{Op: opCredit})
		if err != nil {
			c.fail(err)
			return
		}
		select {
		case c.out <- frame:
		case <-c.done:
			return
		}
	}
}

// write sends frames one after another.
func (c *Client) write() {
	for {
		select {
		case frame := <-c.out:
			if _, err := c.rwc.Write(frame); err != nil {
				c.brokenWrite(err)
				return
			}
		case <-c.done:
			return
		}
	}
}

// brokenWrite ends the connection after a failed write. The bridge's last word
// may still stand in the stream and says more than the failure does: the
// reader is left a moment to find it.
func (c *Client) brokenWrite(err error) {
	timer := c.clock.NewTimer(byeTimeout)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.Chan():
		c.fail(err)
	}
}

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, req request) (response, error) {
	answer := make(chan response, 1)
	c.mu.Lock()
	c.lastID++
	req.ID = c.lastID
	c.waiting[req.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, req.ID)
		c.mu.Unlock()
	}()
	frame, err := encodeFrame(req)
	if err != nil {
		return response{}, err
	}
	select {
	case c.out <- frame:
	case <-c.done:
		return response{}, c.Err()
	case <-ctx.Done():
		return response{}, ctx.Err()
	}
	select {
	case r := <-answer:
		return r, r.Error.err()
	case <-c.done:
		// The answer may have come just before the end.
		select {
		case r := <-answer:
			return r, r.Error.err()
		default:
			return response{}, c.Err()
		}
	case <-ctx.Done():
		return response{}, ctx.Err()
	}
}
