package telemetry_test

import (
	"errors"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/alineod/alineod/internal/telemetry"
)

// used returns metrics of which every one has a value.
func used(t *testing.T) *telemetry.Metrics {
	t.Helper()
	m := telemetry.NewMetrics("v1.2.3")
	m.LedgerCommitted(time.Millisecond, 2, 9)
	m.Recovered("restored", telemetry.Success, time.Second)
	m.Recovered("restored", telemetry.Failed, time.Second)
	m.Booted(2 * time.Second)
	m.CheckpointTaken(telemetry.Success, time.Second, 1<<20)
	m.CheckpointTaken(telemetry.Failed, time.Second, 0)
	m.TurnEnded("success")
	m.RuntimeUp("docker", true)
	m.RuntimeUp("docker", false)
	m.RuntimeUp("local", true)
	m.Orphans(4)
	m.Reconciled(telemetry.Success, time.Second)
	m.SSEClient()
	m.SSEClient()()
	m.Request("/agents/{id}", "GET", 200, time.Millisecond)
	m.Request("", "BREW", 404, time.Millisecond)
	if err := m.Observe([]string{"running", "done"}, func() (telemetry.Census, error) {
		return telemetry.Census{ByState: map[string]int{"running": 5, "unheard-of": 1}, Recovering: 3, TurnsQueued: 1}, nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMetricsFollowPractice(t *testing.T) {
	t.Parallel()
	m := used(t)
	problems, err := testutil.GatherAndLint(m.Registry())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	// Only labels of few values: no identifier, no name, no path.
	allowed := []string{"state", "rung", "outcome", "runtime", "route", "method", "code", "version", "goversion"}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "alineod_") {
			continue
		}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if !slices.Contains(allowed, l.GetName()) {
					t.Errorf("%s has the label %s", f.GetName(), l.GetName())
				}
			}
		}
	}
}

func TestMetricValues(t *testing.T) {
	t.Parallel()
	text := scrape(used(t))
	for _, line := range []string{
		`alineod_agents{state="running"} 5`,
		`alineod_agents{state="done"} 0`,
		`alineod_agents_recovering 3`,
		`alineod_boot_duration_seconds 2`,
		`alineod_ready 1`,
		`alineod_checkpoints_total{outcome="failed"} 1`,
		`alineod_checkpoint_duration_seconds_count 1`,
		`alineod_checkpoint_size_bytes_sum 1.048576e+06`,
		`alineod_ledger_commit_duration_seconds_count 1`,
		`alineod_ledger_commit_batches_sum 2`,
		`alineod_ledger_events_total 9`,
		`alineod_recoveries_total{outcome="success",rung="restored"} 1`,
		`alineod_recoveries_total{outcome="failed",rung="reattached"} 0`,
		`alineod_recovery_duration_seconds_count{rung="restored"} 2`,
		`alineod_turns_total{outcome="success"} 1`,
		`alineod_turns_total{outcome="interrupted"} 0`,
		`alineod_turns_queued 1`,
		`alineod_runtime_up{runtime="docker"} 0`,
		`alineod_runtime_up{runtime="local"} 1`,
		`alineod_orphan_sandboxes 4`,
		`alineod_reconciliations_total{outcome="success"} 1`,
		`alineod_sse_clients 1`,
		`alineod_http_request_duration_seconds_count{code="200",method="GET",route="/agents/{id}"} 1`,
		`alineod_http_request_duration_seconds_count{code="404",method="other",route="none"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if !strings.Contains(text, `version="v1.2.3"`) || !strings.Contains(text, "go_goroutines") || strings.Contains(text, "unheard-of") {
		t.Errorf("unexpected:\n%s", text)
	}
}

func TestFailingCollectorLeavesTheRest(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics("v")
	if err := m.Observe([]string{"done"}, func() (telemetry.Census, error) { return telemetry.Census{}, errors.New("ledger is closed") }); err != nil {
		t.Fatal(err)
	}
	text := scrape(m)
	if strings.Contains(text, "alineod_agents{") || !strings.Contains(text, "alineod_sse_clients 0") {
		t.Errorf("unexpected:\n%s", text)
	}
	if err := m.Observe(nil, nil); err == nil {
		t.Error("a second Observe was accepted")
	}
}

func TestNilMetrics(t *testing.T) {
	t.Parallel()
	var m *telemetry.Metrics
	m.LedgerCommitted(1, 1, 1)
	m.Recovered("", "", 1)
	m.Booted(1)
	m.CheckpointTaken("", 1, 1)
	m.TurnEnded("")
	m.RuntimeUp("", true)
	m.Orphans(1)
	m.Reconciled("", 1)
	m.SSEClient()()
	m.Request("", "", 1, 1)
	if err := m.Observe(nil, nil); err != nil {
		t.Error(err)
	}
}

func scrape(m *telemetry.Metrics) string {
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(rec.Result().Body)
	if err != nil {
		panic(err)
	}
	return string(body)
}
