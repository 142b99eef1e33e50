package bridge_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/alineod/alineod/internal/harness"
)

// msg is a line of the fake harness, in both directions.
type msg struct {
	T    string `json:"t"`
	ID   string `json:"id,omitempty"`
	Text string `json:"text,omitempty"`
	Err  string `json:"err,omitempty"`
}

// fake is a harness of the tests' own. Its prompts are obeyed line by line.
type fake struct{}

func (fake) Name() string                     { return "fake" }
func (fake) Trusted() bool                    { return true }
func (fake) Setup(string) []harness.SetupStep { return nil }
func (fake) Launch(l harness.Launch) (harness.Command, error) {
	if l.Provider == "missing" {
		return harness.Command{Args: []string{"no-such-program"}}, nil
	}
	return harness.Command{Args: []string{l.Self, roleArg, "harness"}, Env: map[string]string{"FROM_HARNESS": "h", "BOTH": "h"}}, nil
}
func (fake) NewProtocol(harness.Launch) harness.Protocol {
	return &fakeProtocol{state: harness.StateStarting, asked: map[string]bool{}}
}

type fakeProtocol struct {
	state   harness.State
	session string
	n       int
	asked   map[string]bool
}

func event(name string, data any) harness.Event {
	b, _ := json.Marshal(data)
	return harness.Event{Name: name, Data: b}
}

func say(m msg) harness.Output {
	b, _ := json.Marshal(m)
	return harness.Output{Write: [][]byte{b}}
}

func (p *fakeProtocol) Open() harness.Output { return say(msg{T: "hello"}) }

func (p *fakeProtocol) Prompt(pr harness.Prompt) (harness.Output, error) {
	switch p.state {
	case harness.StateBusy:
		return harness.Output{}, harness.ErrBusy
	case harness.StateIdle:
	default:
		return harness.Output{}, harness.ErrNotReady
	}
	if pr.Text == "protocol-refuses" {
		return harness.Output{}, harness.ErrNotReady
	}
	p.state = harness.StateBusy
	return say(msg{T: "prompt", Text: pr.Text}), nil
}

func (p *fakeProtocol) order(t, order, text string) (harness.Output, error) {
	if p.state != harness.StateBusy {
		return harness.Output{}, harness.ErrNoTurn
	}
	return say(msg{T: t, ID: order, Text: text}), nil
}
func (p *fakeProtocol) Steer(o, text string) (harness.Output, error) {
	return p.order("steer", o, text)
}
func (p *fakeProtocol) FollowUp(o, text string) (harness.Output, error) {
	return p.order("follow-up", o, text)
}
func (p *fakeProtocol) Abort(o string) (harness.Output, error) { return p.order("abort", o, "") }
func (p *fakeProtocol) Answer(o, id, decision, feedback string) (harness.Output, error) {
	if !p.asked[id] {
		return harness.Output{}, harness.ErrUnknownRequest
	}
	delete(p.asked, id)
	out := say(msg{T: "answer", ID: id, Text: decision + " " + feedback})
	out.Events = []harness.Event{event("permission.resolved", map[string]string{"requestId": id, "decision": decision})}
	out.Replies = []harness.Reply{{Order: o}}
	return out, nil
}

func (p *fakeProtocol) end(outcome, class string) harness.Event {
	p.state = harness.StateIdle
	return event("turn.ended", harness.TurnEnd{Outcome: outcome, Class: class, SessionID: p.session, Messages: p.n})
}

func (p *fakeProtocol) Line(line []byte) (out harness.Output) {
	var m msg
	if json.Unmarshal(line, &m) != nil {
		out.Events = []harness.Event{event("diagnostic.stored", map[string]string{"class": "protocol_error", "error": "not JSON"})}
		return out
	}
	switch m.T {
	case "session":
		p.state, p.session = harness.StateIdle, m.ID
		out.Events = []harness.Event{event("session.started", map[string]string{"sessionId": m.ID})}
	case "say":
		p.n++
		out.Events = []harness.Event{{Name: "message.ended", Body: json.RawMessage(line)}}
	case "delta":
		out.Events = []harness.Event{event(harness.MessageUpdated, map[string]string{"delta": m.Text})}
	case "ask":
		p.asked[m.ID] = true
		out.Events = []harness.Event{event("permission.requested", map[string]string{"requestId": m.ID})}
	case "reply":
		out.Replies = []harness.Reply{{Order: m.ID, Err: m.Err}}
	case "end":
		out.Events = []harness.Event{p.end(m.Text, "")}
	}
	return out
}

func (p *fakeProtocol) Exited(harness.Exit) (out harness.Output) {
	if p.state == harness.StateBusy {
		out.Events = append(out.Events, p.end(harness.OutcomeFailed, harness.ClassSessionFailed))
	}
	p.state = harness.StateExited
	return out
}

func (p *fakeProtocol) Status() harness.Status {
	return harness.Status{State: p.state, SessionID: p.session, Messages: p.n}
}

// fakeProcess is the program itself.
type fakeProcess struct {
	mu    sync.Mutex
	out   *bufio.Writer
	abort chan struct{}
	gone  chan struct{}
}

func (f *fakeProcess) write(m msg) {
	b, _ := json.Marshal(m)
	f.raw(append(b, '\n'))
}

func (f *fakeProcess) raw(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.Write(b)
	f.out.Flush()
}

func fakeMain() int {
	f := &fakeProcess{out: bufio.NewWriter(os.Stdout)}
	switch os.Getenv("FAKE_MODE") {
	case "dies":
		fmt.Fprintln(os.Stderr, "cannot open the session")
		return 3
	case "silent":
		select {}
	case "stubborn":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	case "graceful":
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGINT)
		go func() {
			<-end
			fmt.Fprintln(os.Stderr, "bye")
			os.Exit(7)
		}()
	case "deaf":
		f.write(msg{T: "session", ID: "deaf"})
		select {}
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var m msg
		json.Unmarshal(in.Bytes(), &m)
		switch m.T {
		case "hello":
			f.write(msg{T: "session", ID: "session-" + strconv.Itoa(os.Getpid())})
		case "prompt":
			f.abort, f.gone = make(chan struct{}), make(chan struct{})
			go f.turn(m.Text, f.abort, f.gone)
		case "steer", "follow-up":
			if m.Text == "no" {
				f.write(msg{T: "reply", ID: m.ID, Err: "I would rather not"})
				continue
			}
			f.write(msg{T: "say", Text: m.T + ": " + m.Text})
			f.write(msg{T: "reply", ID: m.ID})
		case "abort":
			close(f.abort)
			<-f.gone
			f.write(msg{T: "reply", ID: m.ID})
		case "answer":
			f.write(msg{T: "say", Text: "answered " + m.ID + " " + m.Text})
		}
	}
	return 0
}

// turn obeys a prompt.
func (f *fakeProcess) turn(prompt string, abort, gone chan struct{}) {
	defer close(gone)
	for _, line := range strings.Split(prompt, "\n") {
		op, arg, _ := strings.Cut(line, " ")
		n, _ := strconv.Atoi(arg)
		switch op {
		case "say":
			f.write(msg{T: "say", Text: arg})
		case "deltas":
			for i := range n {
				f.write(msg{T: "delta", Text: strconv.Itoa(i)})
			}
		case "flood": // n lines of 1 KiB
			for i := range n {
				f.write(msg{T: "say", ID: strconv.Itoa(i), Text: strings.Repeat("x", 1024)})
			}
		case "endless": // n bytes and no end of line
			for range n / 1000 {
				f.raw([]byte(strings.Repeat("y", 1000)))
			}
			f.raw([]byte("\n"))
		case "garbage":
			f.raw([]byte("\x00\xff{]\n"))
		case "ask":
			f.write(msg{T: "ask", ID: arg})
		case "env":
			f.write(msg{T: "say", Text: arg + "=" + os.Getenv(arg)})
		case "where":
			wd, _ := os.Getwd()
			score, _ := os.ReadFile("/proc/self/oom_score_adj")
			f.write(msg{T: "say", Text: fmt.Sprintf("%s %d:%d %s", wd, os.Getuid(), os.Getgid(), strings.TrimSpace(string(score)))})
		case "stderr":
			fmt.Fprintln(os.Stderr, arg)
		case "stderr-flood":
			for range n {
				fmt.Fprintln(os.Stderr, strings.Repeat("e", 99))
			}
		case "leave": // processes that outlive this one, the first with its output
			f.leave(arg)
		case "wait":
			<-abort
			f.write(msg{T: "end", Text: harness.OutcomeAborted})
			return
		case "exit":
			os.Exit(n)
		case "half-line-and-die":
			f.raw([]byte(`{"t":"say","text":"ha`))
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "die":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	f.write(msg{T: "end", Text: harness.OutcomeSuccess})
}

// leave starts three processes: one in the group that keeps the output open,
// one in a session of its own, and one whose parent is dead already and that
// bears no marks.
func (f *fakeProcess) leave(file string) {
	self, _ := os.Executable()
	var pids []string
	for i := range 2 {
		cmd := exec.Command(self, roleArg, "sleeper")
		if i == 1 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		} else {
			cmd.Stderr = os.Stderr
		}
		out, _ := cmd.StdoutPipe()
		cmd.Start()
		pid, _ := bufio.NewReader(out).ReadString('\n')
		pids = append(pids, strings.TrimSpace(pid))
	}
	cmd := exec.Command("/bin/sh", "-c", "env -i setsid "+self+" "+roleArg+" sleeper & exit 0")
	r, w, _ := os.Pipe()
	cmd.Stdout = w
	cmd.Run()
	pid, _ := bufio.NewReader(r).ReadString('\n')
	pids = append(pids, strings.TrimSpace(pid))
	tmp := filepath.Join(filepath.Dir(file), "pids.tmp")
	os.WriteFile(tmp, []byte(strings.Join(pids, " ")), 0o600)
	os.Rename(tmp, file)
}
