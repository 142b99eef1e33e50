package pi

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/alineod/alineod/internal/harness"
)

// ask is an open dialog of an extension.
type ask struct {
	method  string
	options []string
	inTurn  bool // raised in the turn in progress: it ends with it
}

var (
	saysNo     = regexp.MustCompile(`(?i)^\W*(?:no|don'?t|do not|deny|block|reject|refuse|cancel|abort|stop|never)\b`)
	saysAlways = regexp.MustCompile(`(?i)\b(?:always|session|remember|all)\b`)
)

// dialog reports whether method is one that waits for an answer.
func dialog(method string) bool {
	switch method {
	case "confirm", "select", "input", "editor":
		return true
	}
	return false
}

// answer puts a decision into the words of the dialog. A select offers the
// extension's own options: feedback may name one; else the first that fits the
// decision is chosen, and where none does the request is refused rather than
// guessed at. A reject that fits no option dismisses the dialog.
func (a ask) answer(id, decision, feedback string) (dialogAnswer, error) {
	ans := dialogAnswer{Type: "extension_ui_response", ID: id}
	yes := decision != harness.DecisionReject
	switch a.method {
	case "confirm":
		ans.Confirmed = &yes
	case "select":
		option, ok := a.choose(decision, feedback)
		switch {
		case ok:
			ans.Value = &option
		case yes:
			return dialogAnswer{}, fmt.Errorf("%w: none of the options %q says %s; name one as the feedback", harness.ErrRefused, a.options, decision)
		default:
			ans.Cancelled = true
		}
	default:
		if yes {
			ans.Value = &feedback
		} else {
			ans.Cancelled = true
		}
	}
	return ans, nil
}

func (a ask) choose(decision, feedback string) (string, bool) {
	if feedback != "" && slices.Contains(a.options, feedback) {
		return feedback, true
	}
	var fits []func(string) bool // best first
	no := saysNo.MatchString
	always := func(o string) bool { return !no(o) && saysAlways.MatchString(o) }
	switch decision {
	case harness.DecisionReject:
		fits = append(fits, no)
	case harness.DecisionAlways:
		fits = append(fits, always, func(o string) bool { return !no(o) })
	default:
		// Never more than was allowed: an option that means "always" is no
		// answer to "once".
		fits = append(fits, func(o string) bool { return !no(o) && !always(o) })
	}
	for _, fit := range fits {
		if i := slices.IndexFunc(a.options, fit); i >= 0 {
			return a.options[i], true
		}
	}
	return "", false
}
