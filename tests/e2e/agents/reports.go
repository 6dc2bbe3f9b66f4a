package main

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// fields is what an event or a reply says besides its name.
type fields map[string]any

// reports writes JSON objects, one a line.
type reports struct {
	mutex  sync.Mutex
	out    *json.Encoder
	events bool
}

func newReports(out io.Writer, events bool) *reports {
	return &reports{out: json.NewEncoder(out), events: events}
}

// event tells what happened to an agent; silent unless events were asked for.
func (r *reports) event(a *agent, name string, more fields) {
	if !r.events {
		return
	}
	line := fields{"event": name, "agent": a.index, "uid": uidText(a.uid), "at": time.Now().UTC().Format(time.RFC3339Nano)}
	for key, value := range more {
		line[key] = value
	}
	r.line(line)
}

func (r *reports) line(line fields) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	// The only failure is a reader that went away; then standard input ends as well and the process with it.
	_ = r.out.Encode(line)
}
