package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// PackStream is an archive that comes from a sandbox. Read returns io.EOF only
// after the bridge said that the archive is whole; anything else is ErrArchive.
type PackStream struct {
	c     *Client
	r     chunkReader
	stats ArchiveStats
	end   error
	stop  func() bool
}

// Pack asks for an archive of the sandbox's home, on a connection of its own,
// which it owns from now on. ctx ending ends the stream. The result is a
// *PackStream; errors of the greeting are those of Connect.
func Pack(ctx context.Context, rwc io.ReadWriteCloser, sandboxID string, req PackRequest, opts ...Option) (io.ReadCloser, error) {
	c := newClient(rwc, opts)
	if err := c.greet(ctx, sandboxID, helloRequest{Mode: modePack, Pack: &req}); err != nil {
		_ = rwc.Close()
		return nil, fmt.Errorf("packing the home of %s: %w", sandboxID, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = rwc.Close() })
	return &PackStream{c: c, r: chunkReader{r: c.r}, stop: stop}, nil
}

// Read implements io.Reader.
func (p *PackStream) Read(b []byte) (int, error) {
	if p.end != nil {
		return 0, p.end
	}
	n, err := p.r.Read(b)
	if err == nil || n > 0 {
		return n, nil
	}
	p.end = err
	sent := p.r.left == 0 && (err == io.EOF || errors.Is(err, errSender))
	if sent {
		// The result follows the last chunk, good or bad.
		stats, resultErr := readResult(p.c)
		p.stats = stats
		if resultErr != nil {
			p.end = resultErr
		}
	}
	if p.end != io.EOF {
		p.end = fmt.Errorf("packing: %w", p.end)
	}
	return 0, p.end
}

// Stats says what the archive held, after io.EOF.
func (p *PackStream) Stats() ArchiveStats { return p.stats }

// Close ends the stream; the bridge stops packing.
func (p *PackStream) Close() error {
	p.stop()
	_ = p.c.rwc.Close() // it may be closed already, and nothing is lost by it
	return nil
}

// readResult reads the JSON frame at the end of an archive stream.
func readResult(c *Client) (ArchiveStats, error) {
	frame, err := readFrame(c.r, maxHello)
	if err != nil {
		return ArchiveStats{}, fmt.Errorf("no result: %w: %w", ErrArchive, err)
	}
	var r response
	if err := json.Unmarshal(frame, &r); err != nil {
		return ArchiveStats{}, fmt.Errorf("reading the result: %w: %w", ErrArchive, err)
	}
	switch {
	case r.Bye != nil:
		return ArchiveStats{}, fmt.Errorf("%w: %w", ErrArchive, r.Bye.err())
	case r.Error != nil:
		return ArchiveStats{}, r.Error.err()
	case r.Archive == nil:
		return ArchiveStats{}, fmt.Errorf("no result: %w", ErrArchive)
	}
	return *r.Archive, nil
}

// Unpack makes the sandbox's home exactly what the archive r holds, on a
// connection of its own, which it closes. ErrArchive when either side failed or
// the archive was refused, harness.ErrBusy while a harness runs; errors of the
// greeting are those of Connect.
func Unpack(ctx context.Context, rwc io.ReadWriteCloser, sandboxID string, req UnpackRequest, r io.Reader, opts ...Option) (ArchiveStats, error) {
	c := newClient(rwc, opts)
	defer rwc.Close()
	if err := c.greet(ctx, sandboxID, helloRequest{Mode: modeUnpack, Unpack: &req}); err != nil {
		return ArchiveStats{}, fmt.Errorf("unpacking into %s: %w", sandboxID, err)
	}
	defer context.AfterFunc(ctx, func() { _ = rwc.Close() })()

	// The bridge may refuse in the middle. Its words are read while the archive
	// is written, and end the writing.
	var stats ArchiveStats
	var resultErr error
	var reader sync.WaitGroup
	refused := make(chan struct{})
	reader.Go(func() {
		stats, resultErr = readResult(c)
		if resultErr != nil {
			close(refused)
			_ = rwc.Close()
		}
	})
	sourceErr := sendArchive(chunkWriter{rwc}, r, refused)
	reader.Wait()
	switch {
	case ctx.Err() != nil:
		return ArchiveStats{}, fmt.Errorf("unpacking into %s: %w: %w", sandboxID, ErrArchive, ctx.Err())
	case sourceErr != nil:
		return ArchiveStats{}, fmt.Errorf("unpacking into %s: reading the archive: %w: %w", sandboxID, ErrArchive, sourceErr)
	case resultErr != nil:
		return ArchiveStats{}, fmt.Errorf("unpacking into %s: %w", sandboxID, resultErr)
	}
	return stats, nil
}

// sendArchive sends all of r. It returns only what went wrong with r: the rest
// the bridge tells better.
func sendArchive(w chunkWriter, r io.Reader, refused <-chan struct{}) error {
	buf := make([]byte, chunkBytes)
	for {
		select {
		case <-refused:
			return nil
		default:
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return nil
			}
		}
		if err == io.EOF {
			_ = w.end(false)
			return nil
		}
		if err != nil {
			_ = w.end(true)
			return err
		}
	}
}
