package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/ledger"
)

func TestFiltersOfRunsAndAgents(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	// Created in an order that is not that of their names.
	for _, n := range []int{3, 1, 2} {
		run := fmt.Sprintf("r_0000000%d", n)
		mustAppend(t, l, runStarted(run, "a_root0000"))
		for _, state := range []string{"done", "purged", "running"} {
			id := fmt.Sprintf("a_%s%d", state, n)
			mustAppend(t, l, spawned(run, id), of(id, "", "", ledger.AgentStateChanged, ledger.AgentStateChangedPayload{From: "provisioning", To: state}))
		}
	}
	mustAppend(t, l, ledger.Entry{RunID: "r_00000001", Event: ledger.RunClosed})
	runs := func(f ledger.RunFilter) (out []string) {
		t.Helper()
		rs, err := l.Runs(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			out = append(out, r.RunID[len(r.RunID)-1:])
		}
		return out
	}
	for _, c := range []struct {
		f    ledger.RunFilter
		want string
	}{
		{ledger.RunFilter{}, "3 1 2"},
		{ledger.RunFilter{State: "open"}, "3 2"},
		{ledger.RunFilter{State: "closed"}, "1"},
		{ledger.RunFilter{After: "r_00000003"}, "1 2"},
		{ledger.RunFilter{After: "r_00000003", State: "open"}, "2"},
		{ledger.RunFilter{Limit: 2}, "3 1"},
	} {
		if d := cmp.Diff(c.want, strings.Join(runs(c.f), " ")); d != "" {
			t.Errorf("%+v: %s", c.f, d)
		}
	}
	for _, c := range []struct {
		f    ledger.AgentFilter
		want string
	}{
		{ledger.AgentFilter{}, "done3 purged3 running3 done1 purged1 running1 done2 purged2 running2"},
		{ledger.AgentFilter{RunID: "r_00000001"}, "done1 purged1 running1"},
		{ledger.AgentFilter{ExceptStates: []string{"purged", "aborted"}}, "done3 running3 done1 running1 done2 running2"},
		{ledger.AgentFilter{ExceptStates: []string{"purged", "done", "running"}}, ""},
		{ledger.AgentFilter{States: []string{"running", "done"}, ExceptStates: []string{"done"}}, "running3 running1 running2"},
		{ledger.AgentFilter{States: []string{"running"}, RunID: "r_00000002"}, "running2"},
		{ledger.AgentFilter{After: "a_purged1", Limit: 2}, "running1 done2"},
		{ledger.AgentFilter{After: "a_purged3", ExceptStates: []string{"purged"}, Limit: 2}, "running3 done1"},
	} {
		as, err := l.Agents(t.Context(), c.f)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range as {
			got = append(got, strings.TrimPrefix(a.AgentID, "a_"))
		}
		if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" {
			t.Errorf("%+v: %s", c.f, d)
		}
	}
	if _, err := l.Agents(t.Context(), ledger.AgentFilter{After: "a_none"}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("after an unknown agent: %v", err)
	}
	if _, err := l.Runs(t.Context(), ledger.RunFilter{After: "r_none"}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("after an unknown run: %v", err)
	}
	for what, err := range map[string]error{
		"agent":   second(l.Agent(t.Context(), "a_none")),
		"run":     second(l.Run(t.Context(), "r_none")),
		"turn":    second(l.Turn(t.Context(), "t_none")),
		"sandbox": second(l.Sandbox(t.Context(), "s_none")),
		"by":      second(l.AgentBySandbox(t.Context(), "s_none")),
	} {
		if !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestFilterOfTurns(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	for i := 1; i <= 6; i++ {
		turn := fmt.Sprintf("t_%d", i)
		mustAppend(t, l, request(turn, i))
		if i <= 4 {
			mustAppend(t, l, of(agentID, "s", turn, ledger.TurnStarted, nil))
		}
		if i <= 3 {
			mustAppend(t, l, of(agentID, "s", turn, ledger.TurnEnded, ledger.TurnEndedPayload{Outcome: "success", OwesCheckpoint: i == 2}))
		}
	}
	for _, c := range []struct {
		f    ledger.TurnFilter
		want string
	}{
		{ledger.TurnFilter{}, "1 2 3 4 5 6"},
		{ledger.TurnFilter{AgentID: agentID, States: []string{"requested", "started"}}, "4 5 6"},
		{ledger.TurnFilter{States: []string{"requested"}}, "5 6"},
		{ledger.TurnFilter{States: []string{"ended", "started"}, Desc: true}, "4 3 2 1"},
		{ledger.TurnFilter{AgentID: agentID, After: 2, Limit: 2}, "3 4"},
		{ledger.TurnFilter{AgentID: agentID, Desc: true, Limit: 1}, "6"},
		{ledger.TurnFilter{OwesCheckpoint: true}, "2"},
		{ledger.TurnFilter{AgentID: "a_none"}, ""},
	} {
		ts, err := l.Turns(t.Context(), c.f)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, turn := range ts {
			got = append(got, fmt.Sprint(turn.Number))
		}
		if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" {
			t.Errorf("%+v: %s", c.f, d)
		}
	}
}
