// Command agents runs any number of OpAMP agents in one process, on the client library of opamp-go.
//
// It is a test instrument: what happens to the agents is printed as JSON, one event a line, and commands are read from
// standard input, one JSON object a line, so that a test in any language can wait for conditions instead of sleeping.
// control.go lists the commands. The end of standard input, SIGINT and SIGTERM stop all agents with a goodbye.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	options, err := parse(arguments)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()

	reports := newReports(os.Stdout, options.events)
	swarm := newSwarm(options, reports)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		obey(stop, os.Stdin, swarm, reports)
	}()
	defer swarm.stopAll()
	if err := swarm.startAll(stop); err != nil {
		return err
	}
	select {
	case <-stop.Done():
	case <-ended:
	}
	return nil
}

// options is everything that the command line says.
type options struct {
	endpoint       string
	transport      string
	count          int
	first          int
	seed           string
	startRate      int
	heartbeat      time.Duration
	identifying    attributes
	nonIdentifying attributes
	behaviour      behaviour
	credentials    credentials
	connection     connection
	events         bool
}

// behaviour is how an agent answers what it is offered.
type behaviour struct {
	// refuse makes an agent report FAILED for a configuration that contains this text; empty: it refuses nothing.
	refuse string
	// ignore makes an agent never answer an offer.
	ignore bool
	// delay passes between APPLYING and APPLIED; zero: APPLIED at once.
	delay time.Duration
	// noConfig leaves out the capability to take remote configuration.
	noConfig bool
}

// attributes are given as key=value. A value "a|b" alternates from agent to agent, "{index}" is the agent's number and
// "{uid}" its instance uid.
type attributes []attribute

type attribute struct{ key, value string }

func (a *attributes) String() string { return "" }

func (a *attributes) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return fmt.Errorf("%q is not key=value", text)
	}
	*a = append(*a, attribute{key, value})
	return nil
}

func parse(arguments []string) (options, error) {
	var o options
	set := flag.NewFlagSet("agents", flag.ContinueOnError)
	set.StringVar(&o.endpoint, "endpoint", "ws://127.0.0.1:4320/v1/opamp", "where the server is")
	set.StringVar(&o.transport, "transport", "", "ws or http; default: what the endpoint's scheme says")
	set.IntVar(&o.count, "count", 1, "how many agents")
	set.IntVar(&o.first, "first", 0, "number of the first agent")
	set.StringVar(&o.seed, "seed", "agents", "instance uids are made from this and the agent's number")
	set.IntVar(&o.startRate, "start-rate", 0, "agents started a second; 0: all at once")
	set.DurationVar(&o.heartbeat, "heartbeat", 30*time.Second, "heartbeat interval, over HTTP the poll interval")
	set.Var(&o.identifying, "identifying", "identifying attribute key=value; may be repeated (default service.name=otelcol and the uid as service.instance.id)")
	set.Var(&o.nonIdentifying, "non-identifying", "non-identifying attribute key=value; may be repeated")
	set.StringVar(&o.behaviour.refuse, "refuse", "", "report FAILED for configuration that contains this text")
	set.BoolVar(&o.behaviour.ignore, "ignore", false, "never answer an offer")
	set.DurationVar(&o.behaviour.delay, "delay", 0, "time between APPLYING and APPLIED")
	set.BoolVar(&o.behaviour.noConfig, "no-config", false, "do not accept remote configuration")
	set.Var(&o.credentials.headers, "header", "header of every request, Name: value; may be repeated")
	set.StringVar(&o.credentials.ca, "ca", "", "file with the CAs that the server may be of")
	set.StringVar(&o.credentials.certificate, "certificate", "", "file with the client certificate to begin with")
	set.StringVar(&o.credentials.key, "key", "", "file with its private key")
	set.BoolVar(&o.credentials.settings, "settings", false, "accept connection settings, and reconnect with them")
	set.BoolVar(&o.credentials.csr, "csr", false, "ask for a certificate as soon as connected")
	set.BoolVar(&o.credentials.badSettings, "refuse-settings", false, "report FAILED for connection settings")
	set.BoolVar(&o.events, "events", false, "print an event for all that happens to an agent, not replies only")
	if err := set.Parse(arguments); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return o, o.settle()
}

// settle checks what was given and fills in what follows from it.
func (o *options) settle() error {
	scheme, rest, found := strings.Cut(o.endpoint, "://")
	if !found {
		return fmt.Errorf("%q is not a URL", o.endpoint)
	}
	plain := !strings.HasSuffix(scheme, "s") || scheme == "ws"
	switch o.transport {
	case "":
		o.transport = "ws"
		if strings.HasPrefix(scheme, "http") {
			o.transport = "http"
		}
	case "ws", "http":
	default:
		return fmt.Errorf("transport %q is neither ws nor http", o.transport)
	}
	scheme = o.transport
	if !plain {
		scheme += "s"
	}
	o.endpoint = scheme + "://" + rest
	if len(o.identifying) == 0 { // the library does not start without a description
		o.identifying = attributes{{"service.name", "otelcol"}, {"service.instance.id", "{uid}"}}
	}
	connection, err := o.credentials.newConnection(o.endpoint)
	if err != nil {
		return err
	}
	o.connection = connection
	if o.count < 0 || o.heartbeat < 0 || o.startRate < 0 {
		return errors.New("numbers may not be negative")
	}
	return nil
}
