package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// swarm is all agents of the process.
type swarm struct {
	options options
	agents  []*agent
	reports *reports
}

func newSwarm(options options, reports *reports) *swarm {
	s := &swarm{options: options, reports: reports}
	for i := range options.count {
		s.agents = append(s.agents, newAgent(options.first+i, &s.options, reports))
	}
	return s
}

// startAll connects all agents, at the rate that was asked for. It does not wait until they are connected.
func (s *swarm) startAll(ctx context.Context) error {
	began := time.Now()
	for i, a := range s.agents {
		if s.options.startRate > 0 {
			due := began.Add(time.Duration(i) * time.Second / time.Duration(s.options.startRate))
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Until(due)):
			}
		}
		if err := a.start(context.Background()); err != nil {
			return fmt.Errorf("agent %d: %w", a.index, err)
		}
	}
	s.reports.line(fields{"event": "started", "count": len(s.agents)})
	return nil
}

// stopAll lets all agents say goodbye, many at a time: each waits for its peer's close.
func (s *swarm) stopAll() { _ = s.each(s.agents, (*agent).stop) }

// each does something to many agents at once and returns the first error.
func (s *swarm) each(agents []*agent, do func(*agent) error) error {
	var group sync.WaitGroup
	var once sync.Once
	var first error
	slots := make(chan struct{}, 256)
	for _, a := range agents {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := do(a); err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	group.Wait()
	return first
}

// choose returns the agents with these numbers; all, when none are named.
func (s *swarm) choose(indices []int) []*agent {
	if indices == nil {
		return s.agents
	}
	var chosen []*agent
	for _, index := range indices {
		if i := index - s.options.first; i >= 0 && i < len(s.agents) {
			chosen = append(chosen, s.agents[i])
		}
	}
	return chosen
}

// condition is what a test waits for; every part that is set must hold for an agent to be counted.
type condition struct {
	Connections int    `json:"connections"` // connected at least this often
	Offers      int    `json:"offers"`      // was offered a configuration at least this often
	Applied     string `json:"applied"`     // hash of what it last applied; "*": any
	Failed      string `json:"failed"`      // hash of what it last refused; "*": any
	Running     string `json:"running"`     // text in what it runs
	NewUid      bool   `json:"new_uid"`     // was given another instance uid
	Errors      int    `json:"errors"`      // got at least as many error responses
	Failures    int    `json:"failures"`    // failed to connect at least this often
	Settings    int    `json:"settings"`    // was offered connection settings at least this often
	Switched    int    `json:"switched"`    // reconnected with other settings at least this often
	Certificate string `json:"certificate"` // serial of the certificate that it connects with; "*": any
}

func (c condition) holds(s seen) bool {
	return s.connections >= c.Connections && s.offers >= c.Offers && s.errors >= c.Errors &&
		s.failures >= c.Failures && s.settings >= c.Settings && s.switched >= c.Switched &&
		matches(c.Certificate, s.serial) &&
		matches(c.Applied, s.applied) && matches(c.Failed, s.failed) &&
		strings.Contains(s.text, c.Running) && (!c.NewUid || s.newUid != "")
}

// matches says whether a hash is the one asked for: nothing asked, any, or this one.
func matches(asked, hash string) bool {
	return asked == "" || (asked == "*" && hash != "") || asked == hash
}

func (s *swarm) count(agents []*agent, c condition) int {
	count := 0
	for _, a := range agents {
		if c.holds(a.look()) {
			count++
		}
	}
	return count
}

// wait returns as soon as the condition holds for that many agents, or when time is up; and how many there were.
func (s *swarm) wait(ctx context.Context, agents []*agent, c condition, want int, limit time.Duration) (int, bool) {
	timeout := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		count := s.count(agents, c)
		if count >= want {
			return count, true
		}
		select {
		case <-tick.C:
		case <-timeout:
			return count, false
		case <-ctx.Done():
			return count, false
		}
	}
}

// summary counts what happened to these agents.
func (s *swarm) summary(agents []*agent) fields {
	connected, connections, failures, errors, offers, newUids, settings := 0, 0, 0, 0, 0, 0, 0
	longest := time.Duration(0)
	applied, failed, offered, serials := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, a := range agents {
		seen := a.look()
		connections += seen.connections
		failures += seen.failures
		errors += seen.errors
		offers += seen.offers
		settings += seen.settings
		longest = max(longest, seen.gap())
		if seen.connections > 0 {
			connected++
		}
		if seen.newUid != "" {
			newUids++
		}
		tally(applied, seen.applied)
		tally(failed, seen.failed)
		tally(offered, seen.offered)
		tally(serials, seen.serial)
	}
	return fields{
		"agents": len(agents), "ever_connected": connected, "connections": connections, "connect_failures": failures,
		"error_responses": errors, "offers": offers, "new_uids": newUids,
		"settings": settings, "certificates": serials, "longest_gap": longest.Seconds(),
		"applied": applied, "failed": failed, "offered": offered,
	}
}

func tally(counts map[string]int, hash string) {
	if hash != "" {
		counts[hash]++
	}
}
