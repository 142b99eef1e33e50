package ledger_test

import (
	"path/filepath"
	"testing"

	"github.com/alineod/alineod/internal/failpoint"
)

// Killed right before and right after a commit, at several of them. Run with
// -tags failpoint.
func TestKilledAtFailpoints(t *testing.T) {
	t.Parallel()
	if !failpoint.Enabled {
		t.Skip("built without the tag failpoint")
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	all := map[int64]string{}
	for _, at := range []string{"ledger.before-commit", "ledger.after-commit", "ledger.before-commit@2", "ledger.after-commit@2",
		"ledger.before-commit@9", "ledger.after-commit@9", "ledger.before-commit@40"} {
		for seq, payload := range runChild(t, path, -1, "ALINEOD_FAILPOINT="+at) {
			all[seq] = payload
		}
		wantAcked(t, path, all)
	}
}
