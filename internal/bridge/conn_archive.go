package bridge

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
)

// After the hello, an archive travels in chunks: four bytes of length, big
// endian, then that many bytes. Length 0 is the archive's good end; chunkError
// says that its sender failed. Only the good end makes the reader see io.EOF,
// so a stream that was cut is never taken for a short archive. After the last
// chunk the server sends one JSON frame with the result.
const (
	chunkBytes = 256 << 10
	chunkError = ^uint32(0)
)

// chunkWriter cuts what is written to it into chunks.
type chunkWriter struct{ w io.Writer }

func (c chunkWriter) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		part := b[:min(len(b), chunkBytes)]
		var head [4]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(part)))
		if _, err := c.w.Write(head[:]); err != nil {
			return n, err
		}
		m, err := c.w.Write(part)
		n += m
		if err != nil {
			return n, err
		}
		b = b[len(part):]
	}
	return n, nil
}

// end tells the other side that this was all, or that it never will be.
func (c chunkWriter) end(failed bool) error {
	var head [4]byte
	if failed {
		binary.BigEndian.PutUint32(head[:], chunkError)
	}
	_, err := c.w.Write(head[:])
	return err
}

// errSender: the other side could not go on, and said so.
var errSender = errors.New("its sender failed")

// chunkReader puts chunks together again.
type chunkReader struct {
	r    *bufio.Reader
	left int
	err  error
}

func (c *chunkReader) Read(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if c.left == 0 {
		var head [4]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return 0, c.fail(fmt.Errorf("stream was cut: %w: %w", ErrArchive, err))
		}
		switch n := binary.BigEndian.Uint32(head[:]); {
		case n == 0:
			return 0, c.fail(io.EOF)
		case n == chunkError:
			return 0, c.fail(fmt.Errorf("%w: %w", ErrArchive, errSender))
		case n > chunkBytes:
			return 0, c.fail(fmt.Errorf("chunk of %d bytes: %w", n, ErrArchive))
		default:
			c.left = int(n)
		}
	}
	n, err := c.r.Read(b[:min(len(b), c.left)])
	c.left -= n
	if err != nil {
		err = c.fail(fmt.Errorf("stream was cut: %w: %w", ErrArchive, err))
	}
	return n, err
}

func (c *chunkReader) fail(err error) error {
	c.err = err
	return err
}

// pack streams an archive to the client.
func (c *conn) pack(ctx context.Context, req PackRequest) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The client has nothing more to say: its hanging up is the end.
	c.wg.Go(func() {
		_, _ = c.r.ReadByte()
		cancel()
		c.cancel()
		_ = c.c.Close()
	})
	var stats ArchiveStats
	var err error
	w := chunkWriter{c.c}
	if c.s.cfg.Pack == nil {
		err = fmt.Errorf("this bridge packs nothing: %w", ErrArchive)
	} else {
		buffered := bufio.NewWriterSize(w, chunkBytes)
		req.Home = c.s.home
		stats, err = c.s.cfg.Pack(ctx, buffered, req)
		if err == nil {
			err = buffered.Flush()
		}
	}
	c.finishArchive("packing", w.end(err != nil), stats, err)
}

// unpack lays an archive from the client over the home. No harness may run.
func (c *conn) unpack(ctx context.Context, req UnpackRequest) {
	stats, err := c.unpackStream(ctx, req)
	c.finishArchive("unpacking", nil, stats, err)
	if err != nil {
		// The client may still be sending. Closing at once would make it see a
		// broken pipe instead of the reason, so it is given time to stop.
		_, _ = io.Copy(io.Discard, c.r)
	}
}

func (c *conn) unpackStream(ctx context.Context, req UnpackRequest) (ArchiveStats, error) {
	s := c.s
	if s.cfg.Unpack == nil {
		return ArchiveStats{}, fmt.Errorf("this bridge unpacks nothing: %w", ErrArchive)
	}
	unlock, err := s.lockLifecycle(ctx)
	if err != nil {
		return ArchiveStats{}, err
	}
	defer unlock()
	var running bool
	if err := s.keeper.do(ctx, func() { running = s.keeper.child != nil }); err != nil {
		return ArchiveStats{}, err
	}
	if running {
		return ArchiveStats{}, fmt.Errorf("unpacking under a running harness: %w", harness.ErrBusy)
	}
	r := &chunkReader{r: c.r}
	req.Home = s.home
	stats, err := s.cfg.Unpack(ctx, r, req)
	if err == nil {
		// An archive may end before its stream does; the stream must end well.
		if _, rest := io.Copy(io.Discard, r); rest != nil {
			err = rest
		}
	}
	return stats, err
}

func (c *conn) finishArchive(doing string, sendErr error, stats ArchiveStats, err error) {
	r := response{Archive: &stats}
	if err != nil {
		if !errors.Is(err, harness.ErrBusy) && !errors.Is(err, ErrArchive) {
			err = fmt.Errorf("%w: %w", ErrArchive, err)
		}
		r = response{Error: toWire(fmt.Errorf("%s the home: %w", doing, err))}
		c.s.log.Warn("archive failed", zap.String("doing", doing), zap.Error(err))
	}
	if sendErr == nil {
		_ = c.send(r)
	}
}
