package telemetry

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const namespace = "alineod"

// Outcomes of recoveries and checkpoints. Turns have the ledger's outcomes.
const (
	Success = "success"
	Failed  = "failed"
)

// known label values are there from the start, at zero: a rate over a series
// that appears with its first event never sees that event.
var (
	knownRungs = []string{"reattached", "resumed", "restarted", "restored"}
	knownTurns = []string{"success", "failed", "aborted", "interrupted", "lost"}
)

// Metrics is what the daemon counts and measures, in a registry of its own.
// All methods are safe for concurrent use; a nil Metrics measures nothing.
type Metrics struct {
	registry *prometheus.Registry

	recoveries       *prometheus.CounterVec
	recoverySeconds  *prometheus.HistogramVec
	bootSeconds      prometheus.Gauge
	ready            prometheus.Gauge
	checkpoints      *prometheus.CounterVec
	checkpointTime   prometheus.Histogram
	checkpointSize   prometheus.Histogram
	turns            *prometheus.CounterVec
	commitSeconds    prometheus.Histogram
	commitBatches    prometheus.Histogram
	ledgerEvents     prometheus.Counter
	runtimeUp        *prometheus.GaugeVec
	orphans          prometheus.Gauge
	sseClients       prometheus.Gauge
	requestSeconds   *prometheus.HistogramVec
	reconciliations  *prometheus.CounterVec
	reconcileSeconds prometheus.Histogram
}

// NewMetrics registers every metric. version is the daemon's, as in
// alineod_build_info.
func NewMetrics(version string) *Metrics {
	reg := prometheus.NewRegistry()
	m := &Metrics{registry: reg}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}))
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels))
	}
	// From an answer over a unix socket to a restore that pulls an image.
	slow := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600}

	m.recoveries = counters("recoveries_total", "Agents that left the recovery ladder, by the last rung tried and how it ended.", "rung", "outcome")
	m.recoverySeconds = histograms("recovery_duration_seconds", "Time an agent spent on the recovery ladder, by the last rung tried.", slow, "rung")
	m.bootSeconds = gauge("boot_duration_seconds", "Time from the start of the daemon until every agent had been through the ladder; 0 while that lasts.")
	m.ready = gauge("ready", "1 once every agent has been through the ladder after the start, 0 before.")
	m.checkpoints = counters("checkpoints_total", "Checkpoints taken, by outcome.", "outcome")
	m.checkpointTime = histogram("checkpoint_duration_seconds", "Time to take a checkpoint that succeeded.", slow)
	m.checkpointSize = histogram("checkpoint_size_bytes", "Size of a checkpoint as stored.", prometheus.ExponentialBuckets(64<<10, 4, 10))
	m.turns = counters("turns_total", "Turns that ended, by outcome.", "outcome")
	m.commitSeconds = histogram("ledger_commit_duration_seconds", "Time of one transaction of the ledger, until it is on disk.",
		[]float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5})
	m.commitBatches = histogram("ledger_commit_batches", "Appends that went into one transaction of the ledger.", prometheus.ExponentialBuckets(1, 2, 10))
	m.ledgerEvents = register(reg, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "ledger_events_total", Help: "Events stored in the ledger."}))
	m.runtimeUp = register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "runtime_up", Help: "1 while the runtime answers, 0 while it does not."}, []string{"runtime"}))
	m.orphans = gauge("orphan_sandboxes", "Sandboxes of this instance that no agent claims.")
	m.sseClients = gauge("sse_clients", "Open event streams.")
	m.requestSeconds = histograms("http_request_duration_seconds", "Time to answer a request, by route pattern. Event streams and long polls are not in it.",
		[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "route", "method", "code")
	m.reconciliations = counters("reconciliations_total", "Comparisons of the runtime's sandboxes with the ledger, by outcome.", "outcome")
	m.reconcileSeconds = histogram("reconciliation_duration_seconds", "Time of one comparison of the runtime's sandboxes with the ledger.", slow)

	register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version of the daemon and of Go as labels.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
	register(reg, collectors.NewGoCollector())
	register(reg, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	m.startAtZero()
	return m
}

func register[C prometheus.Collector](reg *prometheus.Registry, c C) C {
	reg.MustRegister(c) // two of one name are a fault of this file
	return c
}

func (m *Metrics) startAtZero() {
	for _, outcome := range []string{Success, Failed} {
		for _, rung := range knownRungs {
			m.recoveries.WithLabelValues(rung, outcome)
		}
		m.checkpoints.WithLabelValues(outcome)
		m.reconciliations.WithLabelValues(outcome)
	}
	for _, outcome := range knownTurns {
		m.turns.WithLabelValues(outcome)
	}
}

// Registry is where the metrics are registered; more may be added.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler serves the metrics. A collector that fails leaves out its own
// series and no others.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		Registry:            m.registry,
		MaxRequestsInFlight: 8,
		EnableOpenMetrics:   true,
		Timeout:             10 * time.Second,
	})
}

// LedgerCommitted counts one transaction; it makes Metrics what a ledger
// reports to.
func (m *Metrics) LedgerCommitted(took time.Duration, batches, events int) {
	if m == nil {
		return
	}
	m.commitSeconds.Observe(took.Seconds())
	m.commitBatches.Observe(float64(batches))
	m.ledgerEvents.Add(float64(events))
}

// Recovered counts an agent that left the ladder: rung is the last one tried,
// outcome Success or Failed.
func (m *Metrics) Recovered(rung, outcome string, took time.Duration) {
	if m == nil {
		return
	}
	m.recoveries.WithLabelValues(rung, outcome).Inc()
	m.recoverySeconds.WithLabelValues(rung).Observe(took.Seconds())
}

// Booted marks the end of the boot pass.
func (m *Metrics) Booted(took time.Duration) {
	if m == nil {
		return
	}
	m.bootSeconds.Set(took.Seconds())
	m.ready.Set(1)
}

// CheckpointTaken counts a checkpoint. took and bytes are those of one that
// succeeded.
func (m *Metrics) CheckpointTaken(outcome string, took time.Duration, bytes int64) {
	if m == nil {
		return
	}
	m.checkpoints.WithLabelValues(outcome).Inc()
	if outcome == Success {
		m.checkpointTime.Observe(took.Seconds())
		m.checkpointSize.Observe(float64(bytes))
	}
}

// TurnEnded counts a turn by its outcome.
func (m *Metrics) TurnEnded(outcome string) {
	if m != nil {
		m.turns.WithLabelValues(outcome).Inc()
	}
}

// RuntimeUp tells whether a runtime answers.
func (m *Metrics) RuntimeUp(runtime string, up bool) {
	if m == nil {
		return
	}
	v := 0.0
	if up {
		v = 1
	}
	m.runtimeUp.WithLabelValues(runtime).Set(v)
}

// Orphans tells how many sandboxes no agent claims.
func (m *Metrics) Orphans(n int) {
	if m != nil {
		m.orphans.Set(float64(n))
	}
}

// Reconciled counts one comparison of sandboxes with the ledger.
func (m *Metrics) Reconciled(outcome string, took time.Duration) {
	if m == nil {
		return
	}
	m.reconciliations.WithLabelValues(outcome).Inc()
	m.reconcileSeconds.Observe(took.Seconds())
}

// SSEClient counts an event stream in; the function returned counts it out.
func (m *Metrics) SSEClient() (done func()) {
	if m == nil {
		return func() {}
	}
	m.sseClients.Inc()
	return m.sseClients.Dec
}

// Request measures one answer. route is the pattern, as /agents/{id}, never
// the path; empty stands for a request no route took.
func (m *Metrics) Request(route, method string, code int, took time.Duration) {
	if m == nil {
		return
	}
	if route == "" {
		route = "none"
	}
	m.requestSeconds.WithLabelValues(route, knownMethod(method), strconv.Itoa(code)).Observe(took.Seconds())
}

// knownMethod keeps what a client makes up out of a label.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}
