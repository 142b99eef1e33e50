package faketest

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

// SessionFile is the file of a home that says which session is in it: its JSON
// is a harness.Status.
const SessionFile = "session.json"

// The frames of the wire, as far as they are spoken here (internal/bridge).
type (
	greeting struct {
		Mode      string `json:"mode"`
		SandboxID string `json:"sandboxId"`
	}
	request struct {
		ID    int64                `json:"id"`
		Op    string               `json:"op"`
		Start *bridge.StartRequest `json:"start"`
	}
	answer struct {
		ID      int64                `json:"id,omitempty"`
		Hello   *bridge.Hello        `json:"hello,omitempty"`
		Archive *bridge.ArchiveStats `json:"archive,omitempty"`
		Error   *failure             `json:"error,omitempty"`
	}
	failure struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
)

// serve is one connection to the bridge of a sandbox, to its end.
func (r *Runtime) serve(c net.Conn, sb *Sandbox, epoch string) {
	in, out := bufio.NewReader(c), json.NewEncoder(c)
	var g greeting
	if readJSON(in, &g) != nil {
		return
	}
	r.mu.Lock()
	silent := sb.Silent
	r.mu.Unlock()
	if silent {
		_, _ = io.Copy(io.Discard, in) // until the other side has had enough
		return
	}
	if out.Encode(answer{Hello: r.hello(sb, epoch)}) != nil {
		return
	}
	if g.Mode == "unpack" {
		_ = out.Encode(r.unpack(in, sb))
		return
	}
	for {
		var req request
		if readJSON(in, &req) != nil {
			return
		}
		a, ok := r.handle(sb, epoch, req)
		if ok && out.Encode(a) != nil {
			return
		}
	}
}

func readJSON(in *bufio.Reader, v any) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func (r *Runtime) hello(sb *Sandbox, epoch string) *bridge.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &bridge.Hello{Version: bridge.ProtocolVersion, SandboxID: sb.SandboxID, Epoch: epoch, Harness: sb.Harness}
	if sb.Harness.State == harness.StateExited {
		h.Exit = &harness.Exit{Code: 1}
	}
	return h
}

// handle does one request; not ok: it is never answered.
func (r *Runtime) handle(sb *Sandbox, epoch string, req request) (a answer, ok bool) {
	a.ID = req.ID
	r.mu.Lock()
	switch {
	case req.Op == "start" && req.Start != nil:
		switch {
		case sb.StartError != "":
			sb.Harness = harness.Status{State: harness.StateExited}
			a.Error = &failure{"harness", sb.StartError}
		case sb.Hangs > 0:
			sb.Hangs--
			sb.Harness = harness.Status{State: harness.StateStarting}
			r.mu.Unlock()
			return a, false
		case !req.Start.Launch.Continue:
			sb.Harness = harness.Status{State: harness.StateIdle, SessionID: "fresh"}
		case sb.Session.SessionID == "":
			sb.Harness = harness.Status{State: harness.StateExited}
			a.Error = &failure{"harness", "no session to continue"}
		default:
			sb.Harness = sb.Session
		}
	case req.Op == "stop":
		sb.Stops++
		sb.Harness = harness.Status{State: harness.StateExited}
	case req.Op != "status":
		a.Error = &failure{"protocol", fmt.Sprintf("the fake bridge has no %q", req.Op)}
	}
	r.mu.Unlock()
	if a.Error == nil {
		a.Hello = r.hello(sb, epoch)
	}
	return a, true
}

// unpack takes an archive. As in the real bridge no harness may run.
func (r *Runtime) unpack(in *bufio.Reader, sb *Sandbox) answer {
	session, err := readSession(&chunks{r: in})
	r.mu.Lock()
	defer r.mu.Unlock()
	switch state := sb.Harness.State; {
	case state != harness.StateNone && state != harness.StateExited:
		return answer{Error: &failure{"busy", "unpacking under a running harness"}}
	case err != nil:
		return answer{Error: &failure{"archive", err.Error()}}
	}
	sb.Session = session
	sb.Unpacked++
	return answer{Archive: &bridge.ArchiveStats{Files: 1}}
}

// readSession reads an archive to its end and finds the session in it.
func readSession(r io.Reader) (found harness.Status, err error) {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return found, errors.Join(err, drain(r))
		}
		if path.Base(h.Name) == SessionFile {
			if err := json.NewDecoder(t).Decode(&found); err != nil {
				return found, errors.Join(err, drain(r))
			}
		}
	}
	return found, drain(r)
}

func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// chunks reads what an archive travels in: a length of four bytes, then that
// many; length 0 is the good end, all ones a bad one.
type chunks struct {
	r    *bufio.Reader
	left uint32
	end  error
}

func (c *chunks) Read(b []byte) (int, error) {
	if c.end != nil {
		return 0, c.end
	}
	if c.left == 0 {
		c.end = binary.Read(c.r, binary.BigEndian, &c.left)
		if c.end == nil && c.left == 0 {
			c.end = io.EOF
		}
		if c.left == ^uint32(0) {
			c.end = errors.New("its sender failed")
		}
		if c.end != nil {
			return 0, c.end
		}
	}
	n, err := c.r.Read(b[:min(len(b), int(c.left))])
	c.left -= uint32(n)
	return n, err
}
