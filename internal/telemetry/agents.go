package telemetry

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

var agentsDesc = prometheus.NewDesc(namespace+"_agents", "Agents, by state.", []string{"state"}, nil)

// agents asks at each scrape: the numbers are the ledger's, not a second
// count that could drift from it.
type agents struct {
	states []string
	count  func() (map[string]int, error)
}

// ObserveAgents registers alineod_agents. count is called at each scrape, from
// any goroutine, and returns the number of agents by state; a state of states
// that it leaves out is 0, one that is not in states is left out itself. It is
// called once.
func (m *Metrics) ObserveAgents(states []string, count func() (map[string]int, error)) error {
	if m == nil {
		return nil
	}
	if err := m.registry.Register(&agents{states, count}); err != nil {
		return fmt.Errorf("registering the metric of agents: %w", err)
	}
	return nil
}

func (a *agents) Describe(ch chan<- *prometheus.Desc) { ch <- agentsDesc }

func (a *agents) Collect(ch chan<- prometheus.Metric) {
	counts, err := a.count()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(agentsDesc, fmt.Errorf("counting agents: %w", err))
		return
	}
	for _, state := range a.states {
		ch <- prometheus.MustNewConstMetric(agentsDesc, prometheus.GaugeValue, float64(counts[state]), state)
	}
}
