package swarm

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/spec"
)

var (
	// errParentLost: there is nothing to fork from any more.
	errParentLost = errors.New("the agent to fork from has no sandbox any more")
	// errParentBusy: there will be, if one asks again.
	errParentBusy = errors.New("the agent to fork from has no sandbox just now")
	// errFork: the copy is not whole.
	errFork = errors.New("the fork misses files of its parent")
)

// labelFork is on the image of a fork: the agent it was made for.
const labelFork = "alineo.fork"

// beginFork copies the parent's file system for the agent's first sandbox.
func (o *owner) beginFork() {
	row := o.row
	o.begin("fork", o.s.Provisioning, func(ctx context.Context) func() {
		begun := o.s.Clock.Now()
		forked, err := o.s.fork(ctx, o.rt, row)
		return func() {
			switch {
			case err == nil:
				forked.TookMs = o.s.Clock.Since(begun).Milliseconds()
				if err := o.append(ledger.Entry{Event: ledger.AgentForked, Payload: forked}); err != nil {
					o.fail("recording a fork", err)
					return
				}
				hit("swarm.after-forked")
			case o.s.ctx.Err() != nil || o.row.StopMode != "":
			case errors.Is(err, errParentBusy):
				o.again()
			default:
				o.notProvisioned(err)
			}
		}
	})
}

// fork makes an image of the parent's sandbox. The parent is frozen for the
// moment of the copy; forks of one sandbox come one after another. Done again
// after a crash, it takes the place of what it made before.
func (s *Swarm) fork(ctx context.Context, rt runtime.Runtime, child ledger.Agent) (ledger.AgentForkedPayload, error) {
	parent, err := s.Ledger.Agent(ctx, child.ParentAgentID)
	if err != nil {
		return ledger.AgentForkedPayload{}, fmt.Errorf("looking for the agent to fork from: %w", err)
	}
	if !slices.Contains(parents, parent.State) {
		return ledger.AgentForkedPayload{}, fmt.Errorf("%w: %s is %s", errParentLost, parent.AgentID, parent.State)
	}
	if parent.SandboxID == "" || parent.State == StateRecovering {
		return ledger.AgentForkedPayload{}, fmt.Errorf("%w: %s is %s", errParentBusy, parent.AgentID, parent.State)
	}
	unlock, err := s.forks.Lock(ctx, parent.SandboxID)
	if err != nil {
		return ledger.AgentForkedPayload{}, err
	}
	defer unlock()
	isolated := rt.Capabilities().Isolated
	err = runScript(ctx, rt, parent.SandboxID, markScript(child.AgentID, isolated))
	marked := err == nil
	if err != nil && !errors.Is(err, runtime.ErrPaused) {
		return ledger.AgentForkedPayload{}, lostOr(err, fmt.Errorf("marking %s for a fork: %w", parent.SandboxID, err))
	}
	image, err := rt.Commit(ctx, parent.SandboxID, forkName(child.AgentID), map[string]string{labelFork: child.AgentID})
	if err != nil {
		return ledger.AgentForkedPayload{}, lostOr(err, fmt.Errorf("copying the sandbox %s: %w", parent.SandboxID, err))
	}
	hit("swarm.forked")
	if err := runScript(ctx, rt, parent.SandboxID, unmarkScript(child.AgentID, isolated)); err != nil {
		s.Log.Debug("removing the marks of a fork", zap.String("sandbox", parent.SandboxID), zap.Error(err))
	}
	return ledger.AgentForkedPayload{From: parent.AgentID, SandboxID: parent.SandboxID, Image: image.Ref, SetupHash: parent.SetupHash, Marked: marked}, nil
}

// lostOr is errParentBusy where the sandbox has just gone or ended: the ladder
// may be bringing its agent back.
func lostOr(err, other error) error {
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, runtime.ErrNotRunning) {
		return fmt.Errorf("%w: %w", errParentBusy, err)
	}
	return other
}

func forkName(agentID string) string { return "fork-" + strings.ReplaceAll(agentID, "_", "-") }

// marks are the files that show a copy to be whole: one in the home and, where
// more than that is copied, one outside.
func marks(agentID string, isolated bool) string {
	files := `"$HOME/.alineo-fork-` + agentID + `"`
	if isolated {
		files += ` "/var/tmp/.alineo-fork-` + agentID + `"`
	}
	return files
}

func markScript(agentID string, isolated bool) string {
	return "mkdir -p /var/tmp 2>/dev/null; for f in " + marks(agentID, isolated) + "; do echo " + agentID + ` >"$f" || exit 1; done`
}

func unmarkScript(agentID string, isolated bool) string { return "rm -f " + marks(agentID, isolated) }

func checkScript(agentID string, isolated bool) string {
	return "for f in " + marks(agentID, isolated) + `; do [ "$(cat "$f")" = ` + agentID + " ] || exit 1; done"
}

// unmark removes the marks from an agent's own sandbox, once that is recorded:
// before, a crash would have the sandbox checked again. One just after leaves
// two small files.
func (o *owner) unmark() {
	if !o.row.ForkMarked {
		return
	}
	rt, row := o.rt, o.row
	o.s.work.Go(func() {
		ctx, cancel := context.WithTimeout(o.s.ctx, runtime.DefaultCallTimeout)
		defer cancel()
		if err := runScript(ctx, rt, row.SandboxID, unmarkScript(row.AgentID, rt.Capabilities().Isolated)); err != nil {
			o.log.Debug("removing the marks of a fork", zap.String("sandbox", row.SandboxID), zap.Error(err))
		}
	})
}

// scriptError is a script that ended badly.
type scriptError struct {
	code int
	said string
}

func (e *scriptError) Error() string { return fmt.Sprintf("exit code %d: %s", e.code, e.said) }

func runScript(ctx context.Context, rt runtime.Runtime, sandboxID, script string) error {
	_, err := scriptOutput(ctx, rt, sandboxID, script)
	return err
}

func scriptOutput(ctx context.Context, rt runtime.Runtime, sandboxID, script string) (string, error) {
	var out, said bytes.Buffer
	code, err := rt.Exec(ctx, sandboxID, runtime.ExecRequest{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &said})
	if err == nil && code != 0 {
		err = &scriptError{code, strings.TrimSpace(said.String())}
	}
	return strings.TrimSpace(out.String()), err
}

// furnish completes a new sandbox before its harness starts: it holds the copy
// against its marks, installs what the parent's setup had not, and lays the
// results in that the agent waited for.
func (s *Swarm) furnish(ctx context.Context, rt runtime.Runtime, a ledger.Agent, sp *spec.Spec, sandboxID string, forked bool) error {
	if forked {
		if a.ForkMarked {
			err := runScript(ctx, rt, sandboxID, checkScript(a.AgentID, rt.Capabilities().Isolated))
			var missing *scriptError
			if errors.As(err, &missing) {
				err = errFork
			}
			if err != nil {
				return fmt.Errorf("checking the copy in %s: %w", sandboxID, err)
			}
		}
		if a.ForkSetup != a.SetupHash {
			h, err := s.Harness(a.Harness)
			if err != nil {
				return err
			}
			if err := s.setup.Apply(ctx, rt, sandboxID, sp, h); err != nil {
				return err
			}
		}
	}
	return s.layInputs(ctx, rt, a, sandboxID)
}

// inputs are the results that an agent waited for; nil for one that did not.
func (s *Swarm) inputs(ctx context.Context, a ledger.Agent) ([]input, error) {
	w, err := s.Ledger.Wait(ctx, a.AgentID)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := []input{}
	for _, m := range w.Answer.Settled {
		r, err := s.result(ctx, m.AgentID)
		if err != nil {
			return nil, err
		}
		in := input{AgentID: m.AgentID, Outcome: m.Outcome}
		if r.Result != nil {
			in.Result = *r.Result
		}
		all = append(all, in)
	}
	return all, nil
}

// input is one entry of inputs.json.
type input struct {
	AgentID string `json:"agentId"`
	Outcome string `json:"outcome"`
	Result  string `json:"result"`
}

const inputsDir = "inputs"

// layInputs writes /inputs/<agentId>.txt and /inputs.json, or the same below
// the home where that is all there is.
func (s *Swarm) layInputs(ctx context.Context, rt runtime.Runtime, a ledger.Agent, sandboxID string) error {
	all, err := s.inputs(ctx, a)
	if err != nil || all == nil {
		return err
	}
	list, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	now := s.Clock.Now()
	add := func(name string, mode int64, dir bool, content []byte) error {
		h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: now, Typeflag: tar.TypeReg}
		if dir {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	errs := []error{add(inputsDir+"/", 0o755, true, nil), add(inputsDir+".json", 0o644, false, append(list, '\n'))}
	for _, in := range all {
		errs = append(errs, add(inputsDir+"/"+in.AgentID+".txt", 0o644, false, []byte(in.Result)))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return fmt.Errorf("packing the inputs of %s: %w", a.AgentID, err)
	}
	root := "/"
	if !rt.Capabilities().Isolated {
		root = "."
	}
	if err := rt.CopyIn(ctx, sandboxID, root, &archive); err != nil {
		return fmt.Errorf("laying the inputs into %s: %w", sandboxID, err)
	}
	return nil
}

// places are the variables that tell a harness who it is, how its programs
// reach the daemon, and where things are in its sandbox.
func (s *Swarm) places(ctx context.Context, rt runtime.Runtime, a ledger.Agent, sandboxID string) (map[string]string, error) {
	env := map[string]string{bridge.EnvAgent: a.AgentID}
	if s.Guests.Token != nil {
		env[bridge.EnvToken] = s.Guests.Token(a.AgentID)
		s.Secrets.Add(env[bridge.EnvToken])
	}
	if _, err := s.Ledger.Wait(ctx, a.AgentID); errors.Is(err, ledger.ErrNotFound) {
		return env, nil
	} else if err != nil {
		return nil, err
	}
	dir := "/" + inputsDir
	if !rt.Capabilities().Isolated {
		home, err := scriptOutput(ctx, rt, sandboxID, `printf %s "$HOME"`)
		if err != nil {
			return nil, fmt.Errorf("asking for the home of %s: %w", sandboxID, err)
		}
		dir = home + dir
	}
	env["ALINEO_INPUTS"] = dir
	return env, nil
}

// sweepForks removes the images of forks that no agent needs any more.
func (s *Swarm) sweepForks(ctx context.Context, rt runtime.Runtime) {
	images, err := rt.Images(ctx)
	if err != nil {
		s.Log.Warn("listing images", zap.String("runtime", rt.Name()), zap.Error(err))
		return
	}
	for _, image := range images {
		id, ok := image.Labels[labelFork]
		if !ok {
			continue
		}
		a, err := s.Ledger.Agent(ctx, id)
		switch {
		case err == nil && isFinal(a.State):
		case errors.Is(err, ledger.ErrNotFound) && s.Clock.Since(image.CreatedAt) >= time.Minute:
		default:
			continue
		}
		if err := rt.RemoveImage(ctx, image.Ref); err != nil {
			s.Log.Warn("removing the image of a fork", zap.String("image", image.Ref), zap.Error(err))
			continue
		}
		s.Log.Info("removed the image of a fork", zap.String("image", image.Ref), zap.String("agent", id))
	}
}
