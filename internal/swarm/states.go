package swarm

import "slices"

// States of an agent (lifecycle.md).
const (
	StateProvisioning = "provisioning"
	StateSpawning     = "spawning"
	StateRunning      = "running"
	StateBlocked      = "blocked"
	StatePaused       = "paused"
	StateDone         = "done"
	StateFailed       = "failed"
	StateStopped      = "stopped"
	StateCrashed      = "crashed"
	StateRecovering   = "recovering"
	StateAborted      = "aborted"
	StatePurged       = "purged"
	StateLost         = "lost"
)

// When a run closes.
const (
	closeExplicit  = "explicit"
	closeQuiescent = "quiescent"
)

// Who froze a paused agent: a client, or other people by way of the runtime.
const (
	pausedByUser    = "user"
	pausedByRuntime = "runtime"
)

// Outcomes of a turn that the daemon tells; the harness tells the others.
const (
	OutcomeSuccess     = "success"
	OutcomeFailed      = "failed"
	OutcomeAborted     = "aborted"
	OutcomeInterrupted = "interrupted"
	OutcomeLost        = "lost"
	OutcomeBudget      = "budget-exceeded"
)

// Classes of a diagnosis beside those a harness tells.
const (
	ClassSetupFailed        = "setup_failed"
	ClassRuntimeLost        = "runtime_lost"
	ClassRuntimeUnreachable = "runtime_unreachable"
	ClassBridgeUnresponsive = "bridge_unresponsive"
	ClassOutOfMemory        = "out_of_memory"
	ClassJournalLost        = "journal_lost"
	ClassTurnIdle           = "turn_idle"
	ClassDependency         = "dependency_failed"
	ClassParentLost         = "parent_lost"
	ClassAdmission          = "admission_timeout"
)

// Actions a client asks for.
const (
	actPrompt     = "prompt"
	actSteer      = "steer"
	actPause      = "pause"
	actResume     = "resume"
	actStop       = "stop"
	actRevive     = "revive"
	actRecover    = "recover"
	actCheckpoint = "checkpoint"
	actRollback   = "restore"
	actExec       = "exec"
	actAnswer     = "answer"
	actNotify     = "notify"
)

// final are the states nothing leads out of.
var final = []string{StateAborted, StatePurged}

// allowed is the one table of what may be asked of an agent in which state.
var allowed = map[string][]string{
	actPrompt:     {StateProvisioning, StateSpawning, StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateRecovering},
	actSteer:      {StateRunning, StateBlocked},
	actPause:      {StateRunning, StateBlocked, StateDone, StateFailed, StatePaused},
	actResume:     {StatePaused, StateBlocked},
	actStop:       {StateProvisioning, StateSpawning, StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateStopped, StateCrashed, StateRecovering, StateLost},
	actRevive:     {StateStopped, StateCrashed, StateLost},
	actRecover:    {StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateRecovering, StateLost, StateCrashed},
	actCheckpoint: {StateDone, StateFailed, StateBlocked},
	actRollback:   {StateDone, StateFailed, StateBlocked, StateStopped, StateCrashed, StateLost},
	actExec:       {StateRunning, StateBlocked, StateDone, StateFailed},
	actAnswer:     {StateRunning, StateBlocked, StatePaused, StateRecovering, StateDone, StateFailed},
	actNotify:     {StateProvisioning, StateSpawning, StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateStopped, StateCrashed, StateRecovering, StateLost},
}

func may(action, state string) bool { return slices.Contains(allowed[action], state) }

func isFinal(state string) bool { return slices.Contains(final, state) }

// States lists every state an agent can be in.
func States() []string {
	return []string{StateProvisioning, StateSpawning, StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateStopped, StateCrashed,
		StateRecovering, StateAborted, StatePurged, StateLost}
}
