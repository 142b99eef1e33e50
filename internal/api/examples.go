package api

import (
	"encoding/json"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// What the examples of the document are about.
const (
	exRun     = "r_5b2f6c01aa9d"
	exParent  = "a_1d4f00c2be77"
	exAgent   = "a_c3f19be0427a"
	exSandbox = "s_90ad14f7722b"
	exTurn    = "t_6e21b8d0ff43"
	exTime    = 1764885600000
	exHash    = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	exRef     = exAgent + "/" + exSandbox + "/3"
)

// example is a body that a route takes, and what it answers.
type example struct{ body, answer any }

var (
	exCall     = ledger.ToolCall{ID: "c1", Name: "bash"}
	exSpec     = json.RawMessage(`{"name":"worker","harness":"pi","checkpoint":true,"env":{"ANTHROPIC_API_KEY":"${ANTHROPIC_API_KEY}"}}`)
	exAccepted = scopedView{AgentID: exAgent, State: swarm.StateRunning}
	exScope    = example{scopedBody{}, exAccepted}
	exWait     = ledger.WaitResolvedPayload{Outcome: "satisfied", Selected: []string{exAgent},
		Settled: []ledger.WaitMember{{AgentID: exAgent, Outcome: swarm.OutcomeSuccess}}, Pending: []string{}}
	exCheckpoint = swarm.CheckpointView{Turn: 3, TurnID: exTurn, SnapshotRef: exRef, SandboxID: exSandbox, SHA256: exHash, Bytes: 184320, Files: 61, TakenAt: exTime}
	exWay        = swarm.WayBack{AgentID: exAgent, SandboxID: exSandbox, Rung: "restored", Turn: 3, Checkpoint: &ledger.CheckpointSummary{Turn: 3, Ref: exRef}}
	exView       = swarm.AgentView{AgentID: exAgent, RunID: exRun, ParentAgentID: bare(exParent), Depth: 1, State: swarm.StateRunning, SpecName: "worker",
		SandboxID: bare(exSandbox), CreatedAt: exTime, Harness: "pi", Model: "claude-sonnet-4-5", Runtime: "docker", Isolated: true, Turn: 4,
		Checkpoint: &exCheckpoint, Transport: "socket", SessionStats: &swarm.SessionStats{SessionID: "5f0c", Messages: 12, Harness: "busy", PID: 17, TurnID: exTurn}}
	exPermission = swarm.PermissionView{RequestID: "q7", TurnID: exTurn, Title: "Run rm -r build?", State: "pending",
		Request: json.RawMessage(`{"method":"confirm"}`), RequestedAt: exTime}
	exMemory = swarm.MemoryView{Key: "plan", Value: json.RawMessage(`{"step":2}`), UpdatedAt: exTime}
	exLedger = example{answer: ledgerView{OK: true, Events: 812, Differences: []string{}, Notes: []string{}}}
)

// examples are those of each operation that has a body or an answer in JSON.
var examples = map[string]example{
	"startRun": {startRunBody{Spec: exSpec, Prompt: "Fix the build", Budget: &swarm.Budget{SpawnDepth: bare(2), MaxAgentsTotal: bare(20)}},
		swarm.StartRunAnswer{RunID: exRun, RootAgentID: exParent, State: swarm.StateProvisioning}},
	"listRuns": {answer: swarm.RunsView{Runs: []swarm.RunSummary{{RunID: exRun, RootAgentID: exParent, State: "open", CreatedAt: exTime, Agents: 4}}}},
	"getRun": {answer: swarm.RunView{RunID: exRun, RootAgentID: exParent, AsOf: 812, CloseWhen: "explicit", State: "open", CreatedAt: exTime,
		Agents: []swarm.AgentView{exView}}},
	"spawn": {spawnBody{ParentAgentID: exParent, Spec: exSpec, Prompt: "Write the tests", WaitFor: json.RawMessage(`{"agents":["` + exAgent + `"],"mode":"all"}`)},
		swarm.SpawnAnswer{AgentID: exAgent, State: swarm.StateSpawning}},
	"await": {awaitBody{Agents: []string{exAgent}, Mode: "all", Wait: 60},
		swarm.AwaitAnswer{Outcome: exWait.Outcome, Selected: exWait.Selected, Settled: exWait.Settled, Pending: exWait.Pending}},
	"listAgents": {answer: agentsView{[]swarm.AgentView{exView}}},
	"getAgent":   {answer: exView},
	"prompt": {promptBody{Text: "Now fix the warnings"},
		swarm.PromptAnswer{AgentID: exAgent, TurnID: exTurn, Turn: 4, State: "queued"}},
	"steer":  {steerBody{Message: "leave the tests alone"}, exAccepted},
	"pause":  exScope,
	"resume": exScope,
	"stop":   {stopBody{Mode: "drain"}, exAccepted},
	"awaitSubtree": {answer: swarm.SubtreeView{RootAgentID: exParent, Quiescent: true, AsOf: 812,
		Members: []swarm.SubtreeMember{{AgentID: exParent, State: swarm.StateDone, Outcome: bare(swarm.OutcomeSuccess)}}, BlockedOnPaused: []string{}}},
	"recover": {keyedBody{}, exWay},
	"revive":  {keyedBody{}, exWay},
	"result": {answer: swarm.ResultView{AgentID: exAgent, State: "settled", Outcome: bare(swarm.OutcomeSuccess), ResultRef: bare("turn:" + exTurn),
		Result: bare("The build is green."), TurnID: exTurn}},
	"transcript": {answer: swarm.TranscriptView{AgentID: exAgent, Turns: []swarm.TranscriptTurn{{Seq: 700, TS: exTime, TurnID: exTurn, Turn: 4, Outcome: swarm.OutcomeSuccess,
		Messages: []swarm.TranscriptMessage{{Role: "assistant", Text: "The build is green."}}}}}},
	"listPermissions":  {answer: permissionsView{[]swarm.PermissionView{exPermission}}},
	"answerPermission": {permissionBody{Decision: "once", Feedback: "only this directory"}, exPermission},
	"exec":             {execBody{ExecRequest: swarm.ExecRequest{Command: []string{"git", "status"}, TimeoutSec: 30}}, swarm.ExecAnswer{Stdout: "On branch main\n"}},

	"listCheckpoints":   {answer: checkpointsView{[]swarm.CheckpointView{exCheckpoint}}},
	"takeCheckpoint":    {keyedBody{}, exCheckpoint},
	"restoreCheckpoint": {keyedBody{}, exWay},
	"importCheckpoint":  {answer: exCheckpoint},
	"putCheckpoint":     {answer: exCheckpoint},

	"listMemory": {answer: swarm.MemoriesView{AgentID: exAgent, Entries: []swarm.MemoryView{exMemory}}},
	"getMemory":  {answer: exMemory},
	"putMemory":  {memoryBody{Value: exMemory.Value}, exMemory},

	"notifyOn": {notifyBody{Agents: []string{exAgent}, Wake: true}, swarm.Subscription{Subscribed: []string{exAgent}, Wake: true}},
	"getInbox": {answer: swarm.InboxView{AgentID: exParent, Pending: []swarm.InboxItem{{Item: 812, Kind: ledger.InboxSettled, From: exAgent,
		Outcome: swarm.OutcomeSuccess, Text: "agent worker has settled: success", QueuedAt: exTime}}, Delivered: []swarm.InboxItem{}, Watching: []string{}}},
	"deliverInbox": {keyedBody{}, swarm.InboxDelivery{Delivery: "steer"}},

	"reattachSandbox": {keyedBody{}, exWay},
	"resumeSandbox":   {keyedBody{}, exWay},
	"attachSandbox":   {keyedBody{}, exWay},

	"health":        {answer: healthView{OK: true}},
	"ready":         {answer: readyView{Readiness: swarm.Readiness{Ready: true, Recovered: 4, Total: 4}, Status: "ready"}},
	"version":       {answer: VersionInfo{Version: "1.0.0", Go: "go1.26", Runtime: "docker", Isolated: true}},
	"reconcile":     {reconcileBody{DryRun: true}, reconcileView{DryRun: true, Actions: []swarm.Action{{SandboxID: exSandbox, Action: "remove", Reason: "nobody's"}}}},
	"verifyLedger":  exLedger,
	"rebuildLedger": exLedger,
}

// bare is a pointer to a value of an example.
func bare[T any](v T) *T { return &v }
