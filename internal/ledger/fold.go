package ledger

import (
	"encoding/json"
	"fmt"
	"strings"
)

// folder turns events into rows of the projections. Append, Verify and
// Rebuild all go through it, so the projections are a pure function of the
// log.
type folder struct {
	t *tx
	x indexer
	// runs is a cache of agents that are known to exist, with their runs.
	// It is dropped whenever something is taken back.
	runs map[string]string
}

// A foldFunc does what one kind of event does to the projections. It checks
// its guards before its first write, so that one that fails has changed
// nothing.
type foldFunc func(f *folder, e *Event) error

// folds has every event of the vocabulary; nil for those that change no
// projection. Other names are stored as well, and change nothing either.
var folds = map[string]foldFunc{
	RunStarted:   foldRunStarted,
	RunClosed:    foldRunClosed,
	RunQuiescent: foldRunQuiescent,

	AgentSpawned:          foldAgentSpawned,
	AgentProvisioned:      foldAgentProvisioned,
	AgentStateChanged:     foldAgentStateChanged,
	AgentSteered:          nil,
	AgentEnded:            foldAgentEnded,
	AgentReleased:         nil,
	AgentCheckpointed:     foldAgentCheckpointed,
	AgentCheckpointFailed: foldAgentCheckpointFailed,
	AgentRecovered:        foldAgentRecovered,
	AgentTurnFailed:       nil,
	AgentTurnInterrupted:  nil,
	AgentStopped:          foldAgentStopped,
	AgentRevived:          foldAgentRevived,
	AgentDiagnosed:        nil,
	AgentQuotaExhausted:   nil,
	AgentForked:           foldAgentForked,

	MemorySet:     foldMemorySet,
	MemoryDeleted: foldMemoryDeleted,

	WaitOpened:   foldWaitOpened,
	WaitResolved: foldWaitResolved,
	WaitBlocked:  foldWaitResolved,
	BudgetDenied: nil,

	AdmissionQueued:  foldAdmissionQueued,
	AdmissionGranted: foldAdmissionOver,
	AdmissionTimeout: foldAdmissionOver,

	NotifyRegistered: foldNotifyRegistered,
	InboxQueued:      foldInboxQueued,
	InboxSending:     foldInboxSending,
	InboxDelivered:   foldInboxDelivered,
	InboxDropped:     foldInboxDropped,

	TurnRequested: foldTurnRequested,
	TurnStarted:   foldTurnStarted,
	TurnEnded:     foldTurnEnded,
	HandleSettled: foldHandleSettled,

	SnapshotCreated: foldSnapshotCreated,
	SandboxOrphaned: nil,
	SandboxRemoved:  foldSandboxRemoved,

	SessionStarted:      foldSession,
	SessionEnded:        foldSession,
	MessageEnded:        nil,
	ToolStarted:         nil,
	ToolEnded:           nil,
	PermissionRequested: foldPermissionRequested,
	PermissionResolved:  foldPermissionResolved,
	CompactionStarted:   nil,
	CompactionEnded:     nil,
	RetryStarted:        nil,
	RetryEnded:          nil,
	ExtensionError:      nil,

	SandboxIntended:    foldSandboxIntended,
	SandboxCreated:     foldSandboxCreated,
	SandboxReleased:    foldSandboxReleased,
	CheckpointPruned:   foldCheckpointPruned,
	CheckpointDamaged:  foldCheckpointDamaged,
	SnapshotIntended:   foldSnapshotIntended,
	SnapshotGone:       foldSnapshotGone,
	RequestAccepted:    foldRequestAccepted,
	CheckpointIntended: foldCheckpointIntended,
	PermissionAnswered: foldPermissionAnswered,
	DiagnosticStored:   nil,
	IntentStop:         foldIntentStop,
}

// bornHere are the events that may name an agent before it exists.
var bornHere = map[string]bool{RunStarted: true, AgentSpawned: true}

func newFolder(t *tx) *folder { return &folder{t: t, runs: map[string]string{}} }

// fold applies one event. An event of an agent that was never spawned is
// ErrConflict. An event that names its agent and no run gets the agent's.
func (f *folder) fold(e *Event) error {
	if e.AgentID != "" && !bornHere[e.Event] {
		run, known, err := f.agentRun(e.AgentID)
		if err != nil {
			return err
		}
		if !known {
			return conflict(e, "no agent %s", e.AgentID)
		}
		if e.RunID == "" {
			e.RunID = run
		}
		if e.RunID != run {
			return conflict(e, "agent %s is of run %s", e.AgentID, run)
		}
	}
	if fn := folds[e.Event]; fn != nil {
		if err := fn(f, e); err != nil {
			return err
		}
	}
	return f.x.add(f.t, e)
}

func (f *folder) agentRun(id string) (run string, known bool, err error) {
	if run, known = f.runs[id]; known {
		return run, true, nil
	}
	known, err = f.t.get("SELECT run_id FROM agents WHERE agent_id = ?", []any{id}, &run)
	if known {
		const most = 16384
		if len(f.runs) >= most {
			clear(f.runs)
		}
		f.runs[id] = run
	}
	return run, known, err
}

func conflict(e *Event, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", e.Event, fmt.Sprintf(format, args...), ErrConflict)
}

// decode reads an event's payload. One that is not readable can never be
// folded: Append refuses it, Verify and Rebuild set it aside.
func decode[T any](e *Event) (p T, err error) {
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return p, fmt.Errorf("%s: payload: %v: %w", e.Event, err, ErrInvalid)
	}
	return p, nil
}

// needAgent is the guard of events that only make sense with an agent.
func needAgent(e *Event) error {
	if e.AgentID == "" {
		return conflict(e, "names no agent")
	}
	return nil
}

// setAgent changes columns of the event's agent and notes the event as the
// last one that did. assignments is a constant text: "state = ?, reason = ?".
func (f *folder) setAgent(e *Event, assignments string, args ...any) error {
	_, err := f.t.exec("UPDATE agents SET "+assignments+", updated_seq = ? WHERE agent_id = ?",
		append(args, e.Seq, e.AgentID)...)
	return err
}

// setSession takes up what the harness said of its session. No session id
// means that nothing was said.
func (f *folder) setSession(e *Event, session string, messages int) error {
	if session == "" {
		return nil
	}
	return f.setAgent(e, "session_id = ?, messages = ?", session, messages)
}

func oneOf(s string, of ...string) bool {
	for _, o := range of {
		if s == o {
			return true
		}
	}
	return false
}

func orElse(s, other string) string {
	if strings.TrimSpace(s) == "" {
		return other
	}
	return s
}
