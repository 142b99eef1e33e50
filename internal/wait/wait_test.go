package wait_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/wait"
)

var now = time.UnixMilli(1_000_000)

func TestParse(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`["a","b"]`:                     "[a b] settled 0 proceed 0 ",
		`{"agents":["a"]}`:              "[a] settled 0 proceed 0 ",
		`{"agents":["a"],"mode":"all"}`: "[a] all 0 fail 0 ",
		`{"agents":["a","b"],"mode":"quorum","k":2,"onDepFailure":"proceed","deadlineSec":1.5,"onDeadline":"proceed"}`: "[a b] quorum 2 proceed 1001500 proceed",
		`{"agents":["a"],"mode":"any","deadlineSec":1}`:                                                                "[a] any 0 fail 1001000 fail",
	} {
		p, problems := wait.Parse(json.RawMessage(raw), now)
		got := fmt.Sprintf("%v %s %d %s %d %s", p.Agents, p.Mode, p.K, p.OnDepFail, p.DeadlineAt, p.OnDeadline)
		if len(problems) != 0 || got != want {
			t.Errorf("%s: %s, %v; want %s", raw, got, problems, want)
		}
	}
	for raw, paths := range map[string]string{
		`[]`:                                     "waitFor",
		`"a"`:                                    "waitFor",
		`[1]`:                                    "waitFor",
		`{"agents":["a"],"modus":"all"}`:         "waitFor",
		`["a","b","a"]`:                          "waitFor[2]",
		`{"agents":["a","a"],"mode":"most"}`:     "waitFor.agents[1] waitFor.mode",
		`{"agents":["a"],"mode":"quorum"}`:       "waitFor.k",
		`{"agents":["a"],"mode":"quorum","k":0}`: "waitFor.k",
		`{"agents":["a"],"mode":"quorum","k":2}`: "waitFor.k",
		`{"agents":["a"],"k":1}`:                 "waitFor.k",
		`{"agents":["a"],"onDepFailure":"x","deadlineSec":-1,"onDeadline":"y"}`: "waitFor.onDepFailure waitFor.deadlineSec waitFor.onDeadline",
		`{"agents":["a"],"onDeadline":"fail"}`:                                  "waitFor.onDeadline",
	} {
		_, problems := wait.Parse(json.RawMessage(raw), now)
		var got []string
		for _, p := range problems {
			got = append(got, p.Path)
		}
		if strings.Join(got, " ") != paths {
			t.Errorf("%s: %v, want %s", raw, problems, paths)
		}
	}
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	const quorum = `"mode":"quorum","k":2`
	for _, c := range []struct {
		how     string
		settled string // s: success, f: failed, -: pending; one for each of three
		late    bool
		want    string
	}{
		{``, "ss-", false, wait.Pending},
		{``, "fsf", false, wait.Satisfied},
		{`"onDepFailure":"fail"`, "-f-", false, wait.DepFail},
		{`"onDepFailure":"fail"`, "sss", false, wait.Satisfied},
		{`"mode":"all"`, "ss-", false, wait.Pending},
		{`"mode":"all"`, "sss", false, wait.Satisfied},
		{`"mode":"all"`, "-f-", false, wait.DepFail},
		{`"mode":"all","onDepFailure":"proceed"`, "-f-", false, wait.Pending},
		{`"mode":"all","onDepFailure":"proceed"`, "sfs", false, wait.Partial},
		{`"mode":"any"`, "--s", false, wait.Satisfied},
		{`"mode":"any"`, "ff-", false, wait.Pending},
		{`"mode":"any"`, "fff", false, wait.DepFail},
		{`"mode":"any","onDepFailure":"proceed"`, "fff", false, wait.Partial},
		{quorum, "s-s", false, wait.Satisfied},
		{quorum, "sf-", false, wait.Pending},
		{quorum, "ff-", false, wait.DepFail},
		{quorum + `,"onDepFailure":"proceed"`, "ff-", false, wait.Pending},
		{quorum + `,"onDepFailure":"proceed"`, "ffs", false, wait.Partial},
		{`"deadlineSec":1`, "s--", true, wait.DepFail},
		{`"deadlineSec":1,"onDeadline":"proceed"`, "s--", true, wait.Partial},
		{`"deadlineSec":1`, "sss", true, wait.Satisfied},
		{`"mode":"any","deadlineSec":1`, "-s-", true, wait.Satisfied},
	} {
		raw := `{"agents":["a0","a1","a2"]`
		if c.how != "" {
			raw += "," + c.how
		}
		p, problems := wait.Parse(json.RawMessage(raw+"}"), now)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		outcomes := map[string]string{}
		for i, r := range c.settled {
			switch r {
			case 's':
				outcomes[p.Agents[i]] = "success"
			case 'f':
				outcomes[p.Agents[i]] = "failed"
			}
		}
		a := wait.Evaluate(p, outcomes, c.late)
		if a.Outcome != c.want || len(a.Settled)+len(a.Pending) != 3 || len(a.Settled) != len(outcomes) ||
			a.Outcome == wait.Satisfied && len(a.Selected) == 0 {
			t.Errorf("%s with %s, late %v: %+v, want %s", c.how, c.settled, c.late, a, c.want)
		}
	}
}
