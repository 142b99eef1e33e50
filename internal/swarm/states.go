package swarm

import "slices"

// States of an agent (lifecycle.md).
const (
	StateProvisioning = "provisioning"
	StateSpawning     = "spawning"
	StateRunning      = "running"
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
)

// final are the states nothing leads out of.
var final = []string{StateAborted, StatePurged}

// allowed is the one table of what may be asked of an agent in which state.
var allowed = map[string][]string{
	actPrompt:     {StateProvisioning, StateSpawning, StateRunning, StatePaused, StateDone, StateFailed, StateRecovering},
	actSteer:      {StateRunning},
	actPause:      {StateRunning, StateDone, StateFailed, StatePaused},
	actResume:     {StatePaused},
	actStop:       {StateProvisioning, StateSpawning, StateRunning, StatePaused, StateDone, StateFailed, StateStopped, StateCrashed, StateRecovering, StateLost},
	actRevive:     {StateStopped, StateCrashed, StateLost},
	actRecover:    {StateRunning, StatePaused, StateDone, StateFailed, StateRecovering, StateLost, StateCrashed},
	actCheckpoint: {StateDone, StateFailed},
	actRollback:   {StateDone, StateFailed, StateStopped, StateCrashed, StateLost},
	actExec:       {StateRunning, StateDone, StateFailed},
	actAnswer:     {StateRunning},
}

func may(action, state string) bool { return slices.Contains(allowed[action], state) }

func isFinal(state string) bool { return slices.Contains(final, state) }

// States lists every state an agent can be in.
func States() []string {
	return []string{StateProvisioning, StateSpawning, StateRunning, StatePaused, StateDone, StateFailed, StateStopped, StateCrashed,
		StateRecovering, StateAborted, StatePurged, StateLost}
}
