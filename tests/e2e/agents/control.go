package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// command is one line of standard input. `do` says what; `agents` lists numbers, absent means all. Every command is
// answered by one line {"reply": …}, with the command's `id` if it had one:
//
//	{"do": "wait", "for": {"applied": "*", "running": "v2"}, "count": 1000, "timeout": "30s"}
//	    → {"reply": "wait", "ok": true, "count": 1000, "seconds": 1.2}; count defaults to all agents named
//	{"do": "status"}    → counts of connections, offers, and agents by hash applied, failed, offered
//	{"do": "uids"}      → {"uids": ["0190…", …]}
//	{"do": "running", "agents": [7]}   → the text that the agent runs
//	{"do": "health", "agents": [1, 2], "healthy": false, "error": "why"}
//	{"do": "describe", "agents": [3], "attributes": {"key": "value"}}   changes non-identifying attributes
//	{"do": "request"}   asks for a certificate, for the same key as before
//	{"do": "renew"}     the same, again every 5 s until the agent connects with another certificate
//	{"do": "identity", "agents": [0]}  → uid, serial, certificate and key in PEM, last error response of one agent
//	{"do": "stop"}  {"do": "start"}    goodbye, and back with what was last reported
//
// Commands are carried out one after another, except that a wait lets later ones go on.
type command struct {
	ID         any               `json:"id"`
	Do         string            `json:"do"`
	Agents     []int             `json:"agents"`
	For        condition         `json:"for"`
	Count      *int              `json:"count"`
	Timeout    string            `json:"timeout"`
	Healthy    bool              `json:"healthy"`
	Error      string            `json:"error"`
	Attributes map[string]string `json:"attributes"`
}

// obey reads commands until the input ends.
func obey(ctx context.Context, input io.Reader, swarm *swarm, reports *reports) {
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 4<<20)
	var waits sync.WaitGroup
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			reports.line(fields{"reply": "", "ok": false, "error": err.Error()})
			continue
		}
		if c.Do == "wait" {
			waits.Go(func() { answer(ctx, c, swarm, reports) })
			continue
		}
		answer(ctx, c, swarm, reports)
	}
	waits.Wait()
}

func answer(ctx context.Context, c command, swarm *swarm, reports *reports) {
	result, err := carryOut(ctx, c, swarm)
	line := fields{"reply": c.Do, "ok": err == nil}
	if c.ID != nil {
		line["id"] = c.ID
	}
	if err != nil {
		line["error"] = err.Error()
	}
	for key, value := range result {
		line[key] = value
	}
	reports.line(line)
}

func carryOut(ctx context.Context, c command, swarm *swarm) (fields, error) {
	agents := swarm.choose(c.Agents)
	switch c.Do {
	case "wait":
		return await(ctx, c, swarm, agents)
	case "status":
		return swarm.summary(agents), nil
	case "uids":
		uids := make([]string, len(agents))
		for i, a := range agents {
			uids[i] = uidText(a.uid)
		}
		return fields{"uids": uids}, nil
	case "running":
		if len(agents) == 0 {
			return nil, errors.New("no such agent")
		}
		return fields{"text": agents[0].look().text}, nil
	case "request":
		return nil, swarm.each(agents, (*agent).requestCertificate)
	case "renew":
		return nil, swarm.each(agents, (*agent).renewCertificate)
	case "identity":
		if len(agents) == 0 {
			return nil, errors.New("no such agent")
		}
		return agents[0].identity(), nil
	case "health":
		return nil, swarm.each(agents, func(a *agent) error { return a.setHealth(c.Healthy, c.Error) })
	case "describe":
		return nil, swarm.each(agents, func(a *agent) error { return a.describe(c.Attributes) })
	case "stop":
		return nil, swarm.each(agents, (*agent).stop)
	case "start":
		return nil, swarm.each(agents, func(a *agent) error { return a.start(context.Background()) })
	default:
		return nil, fmt.Errorf("unknown command %q", c.Do)
	}
}

func await(ctx context.Context, c command, swarm *swarm, agents []*agent) (fields, error) {
	limit := 30 * time.Second
	if c.Timeout != "" {
		parsed, err := time.ParseDuration(c.Timeout)
		if err != nil {
			return nil, err
		}
		limit = parsed
	}
	want := len(agents)
	if c.Count != nil {
		want = *c.Count
	}
	began := time.Now()
	count, reached := swarm.wait(ctx, agents, c.For, want, limit)
	result := fields{"count": count, "seconds": time.Since(began).Seconds()}
	if !reached {
		return result, fmt.Errorf("%d of %d after %s", count, want, limit)
	}
	return result, nil
}
