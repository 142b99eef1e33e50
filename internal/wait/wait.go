// Package wait is what an agent may wait for before it starts: the settling of
// others. It reads such a wish, and says from who has settled whether it is
// fulfilled. It knows no clock and keeps nothing.
package wait

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// Modes: how many of the others, and how they must have ended.
const (
	Settled = "settled" // all, however they ended: the default
	All     = "all"     // all, well
	Any     = "any"     // one, well
	Quorum  = "quorum"  // k, well
)

// What to do when a dependency fails, or the deadline passes.
const (
	Fail    = "fail"
	Proceed = "proceed"
)

// Outcomes of an evaluation.
const (
	Pending   = "pending"
	Satisfied = "satisfied"
	Partial   = "partial" // going on without all that was wished for
	DepFail   = "depfail"
)

// success is how a turn ends well.
const success = "success"

// Wish is what an agent waits for, as a request has it.
type Wish struct {
	Agents       []string `json:"agents"`
	Mode         string   `json:"mode"`
	K            *int     `json:"k"`
	OnDepFailure string   `json:"onDepFailure"`
	DeadlineSec  *float64 `json:"deadlineSec"`
	OnDeadline   string   `json:"onDeadline"`
}

// Parse reads the field "waitFor" of a request: a list of agents, or a Wish.
// Deadlines become absolute from now. All that is wrong is told at once, with
// its path.
func Parse(raw json.RawMessage, now time.Time) (ledger.WaitOpenedPayload, []spec.Problem) {
	const path = "waitFor"
	var w Wish
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '[' {
		if err := json.Unmarshal(raw, &w.Agents); err != nil {
			return ledger.WaitOpenedPayload{}, []spec.Problem{{Path: path, Message: "must be a list of agents' ids"}}
		}
		return w.Check(path, path+".", now)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return ledger.WaitOpenedPayload{}, []spec.Problem{{Path: path,
			Message: fmt.Sprintf("must be a list of agents, or {agents, mode, k, onDepFailure, deadlineSec, onDeadline}: %v", err)}}
	}
	return w.Check(path+".agents", path+".", now)
}

// Check fills in what a wish leaves open and says what is wrong with it: agents
// is the path of its list, prefix is before the names of its other fields.
func (w Wish) Check(agents, prefix string, now time.Time) (ledger.WaitOpenedPayload, []spec.Problem) {
	var problems []spec.Problem
	bad := func(path, format string, args ...any) {
		problems = append(problems, spec.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	p := ledger.WaitOpenedPayload{Agents: w.Agents, Mode: cmp.Or(w.Mode, Settled), OnDeadline: w.OnDeadline}
	if len(p.Agents) == 0 {
		bad(agents, "names no agent")
	}
	for i, id := range p.Agents {
		if slices.Contains(p.Agents[:i], id) {
			bad(fmt.Sprintf("%s[%d]", agents, i), "%s is named twice", id)
		}
	}
	if !slices.Contains([]string{Settled, All, Any, Quorum}, p.Mode) {
		bad(prefix+"mode", "is %q; must be one of settled, all, any, quorum", p.Mode)
	}
	switch {
	case p.Mode == Quorum && w.K == nil:
		bad(prefix+"k", "is required with the mode quorum")
	case p.Mode == Quorum && (*w.K < 1 || *w.K > len(p.Agents)):
		bad(prefix+"k", "is %d; must be from 1 to the number of agents, %d", *w.K, len(p.Agents))
	case p.Mode == Quorum:
		p.K = *w.K
	case w.K != nil:
		bad(prefix+"k", "goes with the mode quorum only")
	}
	// Who waits for the others' end, however it comes, minds no failure.
	p.OnDepFail = cmp.Or(w.OnDepFailure, map[bool]string{true: Proceed, false: Fail}[p.Mode == Settled])
	if p.OnDepFail != Fail && p.OnDepFail != Proceed {
		bad(prefix+"onDepFailure", "is %q; must be fail or proceed", p.OnDepFail)
	}
	if w.DeadlineSec != nil {
		const most = 365 * 24 * 3600
		if *w.DeadlineSec <= 0 || *w.DeadlineSec > most {
			bad(prefix+"deadlineSec", "must be above 0 and at most %d", most)
		}
		p.DeadlineAt = now.Add(time.Duration(*w.DeadlineSec * float64(time.Second))).UnixMilli()
		p.OnDeadline = cmp.Or(p.OnDeadline, Fail)
	} else if p.OnDeadline != "" {
		bad(prefix+"onDeadline", "goes with deadlineSec only")
	}
	if p.OnDeadline != "" && p.OnDeadline != Fail && p.OnDeadline != Proceed {
		bad(prefix+"onDeadline", "is %q; must be fail or proceed", p.OnDeadline)
	}
	return p, problems
}

// Evaluate says what has come of a wish. outcomes has the outcome of each agent
// that has settled; late says that the deadline has passed.
func Evaluate(p ledger.WaitOpenedPayload, outcomes map[string]string, late bool) ledger.WaitResolvedPayload {
	a := ledger.WaitResolvedPayload{Outcome: Pending, Selected: []string{}, Settled: []ledger.WaitMember{}, Pending: []string{}}
	need := map[string]int{Settled: 0, All: len(p.Agents), Any: 1, Quorum: p.K}[p.Mode]
	well, badly := 0, 0
	for _, id := range p.Agents {
		outcome, settled := outcomes[id]
		if !settled {
			a.Pending = append(a.Pending, id)
			continue
		}
		a.Settled = append(a.Settled, ledger.WaitMember{AgentID: id, Outcome: outcome})
		if outcome == success {
			well++
			if p.Mode == All || well <= need {
				a.Selected = append(a.Selected, id)
			}
		} else {
			badly++
		}
	}
	switch {
	case badly > 0 && p.OnDepFail == Fail && (p.Mode == Settled || badly > len(p.Agents)-need):
		a.Outcome, a.Reason = DepFail, "a dependency failed"
	case p.Mode != Settled && well >= need:
		a.Outcome = Satisfied
	case len(a.Pending) == 0 && p.Mode == Settled:
		a.Outcome = Satisfied
	case len(a.Pending) == 0:
		a.Outcome, a.Reason = Partial, "a dependency failed"
	case late && p.OnDeadline == Proceed:
		a.Outcome, a.Reason = Partial, "the deadline has passed"
	case late:
		a.Outcome, a.Reason = DepFail, "the deadline has passed"
	}
	if p.Mode == Settled && a.Outcome == Satisfied || a.Outcome == Partial {
		for _, m := range a.Settled {
			if !slices.Contains(a.Selected, m.AgentID) {
				a.Selected = append(a.Selected, m.AgentID)
			}
		}
	}
	return a
}
