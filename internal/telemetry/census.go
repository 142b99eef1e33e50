package telemetry

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	agentsDesc      = prometheus.NewDesc(namespace+"_agents", "Agents that are not over, by state.", []string{"state"}, nil)
	recoveringDesc  = prometheus.NewDesc(namespace+"_agents_recovering", "Agents that are on the recovery ladder or wait for it.", nil, nil)
	turnsQueuedDesc = prometheus.NewDesc(namespace+"_turns_queued", "Prompts accepted whose turn has not started.", nil, nil)
)

// Census is how a swarm stands at one moment.
type Census struct {
	ByState     map[string]int // agents
	Recovering  int            // agents on the ladder or waiting for it
	TurnsQueued int            // prompts whose turn has not started
}

// census asks at each scrape: the numbers are the ledger's, not a second
// count that could drift from it.
type census struct {
	states []string
	take   func() (Census, error)
}

// Observe registers the metrics of a census. take is called at each scrape,
// from any goroutine. A state of states that it leaves out is 0, one that is
// not in states is left out itself. Observe is called once.
func (m *Metrics) Observe(states []string, take func() (Census, error)) error {
	if m == nil {
		return nil
	}
	if err := m.registry.Register(&census{states, take}); err != nil {
		return fmt.Errorf("registering the metrics of the swarm: %w", err)
	}
	return nil
}

func (c *census) Describe(ch chan<- *prometheus.Desc) {
	ch <- agentsDesc
	ch <- recoveringDesc
	ch <- turnsQueuedDesc
}

func (c *census) Collect(ch chan<- prometheus.Metric) {
	now, err := c.take()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(agentsDesc, fmt.Errorf("counting agents: %w", err))
		return
	}
	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, state := range c.states {
		gauge(agentsDesc, now.ByState[state], state)
	}
	gauge(recoveringDesc, now.Recovering)
	gauge(turnsQueuedDesc, now.TurnsQueued)
}
