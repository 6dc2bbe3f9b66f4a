package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-telemetry/opamp-go/protobufs"
	"github.com/open-telemetry/opamp-go/server"
	"github.com/open-telemetry/opamp-go/server/types"
)

// fakeServer is opamp-go's own server: it offers one configuration to all and keeps what they report.
type fakeServer struct {
	endpoint string // host and path, without scheme

	mutex   sync.Mutex
	config  string
	last    map[string]*protobufs.RemoteConfigStatus // by uid
	health  map[string]bool
	goodbye int
	os      map[string]int
}

func newFakeServer(t *testing.T, config string) *fakeServer {
	f := &fakeServer{
		config: config, last: map[string]*protobufs.RemoteConfigStatus{}, health: map[string]bool{}, os: map[string]int{},
	}
	callbacks := types.ConnectionCallbacks{OnMessage: f.receive}
	handler, connContext, err := server.New(nil).Attach(server.Settings{Callbacks: types.Callbacks{
		OnConnecting: func(*http.Request) types.ConnectionResponse {
			return types.ConnectionResponse{Accept: true, ConnectionCallbacks: callbacks}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	s.Config.ConnContext = connContext
	s.Start()
	t.Cleanup(s.Close)
	f.endpoint = strings.TrimPrefix(s.URL, "http://") + "/v1/opamp"
	return f
}

func (f *fakeServer) receive(_ context.Context, _ types.Connection, message *protobufs.AgentToServer) *protobufs.ServerToAgent {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	uid := string(message.InstanceUid)
	if message.AgentDisconnect != nil {
		f.goodbye++
	}
	if message.RemoteConfigStatus != nil {
		f.last[uid] = message.RemoteConfigStatus
	}
	if message.Health != nil {
		f.health[uid] = message.Health.Healthy
	}
	for _, attribute := range message.GetAgentDescription().GetNonIdentifyingAttributes() {
		if attribute.Key == "os.type" {
			f.os[attribute.Value.GetStringValue()]++
		}
	}
	reply := &protobufs.ServerToAgent{InstanceUid: message.InstanceUid}
	hash := "hash of " + f.config
	if string(f.last[uid].GetLastRemoteConfigHash()) != hash {
		files := map[string]*protobufs.AgentConfigFile{"config.yaml": {Body: []byte(f.config)}}
		reply.RemoteConfig = &protobufs.AgentRemoteConfig{
			Config: &protobufs.AgentConfigMap{ConfigMap: files}, ConfigHash: []byte(hash),
		}
	}
	return reply
}

func start(t *testing.T, arguments ...string) *swarm {
	t.Helper()
	o, err := parse(arguments)
	if err != nil {
		t.Fatal(err)
	}
	s := newSwarm(o, newReports(&bytes.Buffer{}, false))
	if err := s.startAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stopAll)
	return s
}

// ask sends one command through the same path as standard input and returns the reply.
func ask(t *testing.T, s *swarm, command string) map[string]any {
	t.Helper()
	var out bytes.Buffer
	obey(t.Context(), strings.NewReader(command), s, newReports(&out, false))
	var reply map[string]any
	if err := json.Unmarshal(out.Bytes(), &reply); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	return reply
}

func TestAllAgentsApplyAConfigurationOverEitherTransport(t *testing.T) {
	for _, transport := range []string{"ws", "http"} {
		t.Run(transport, func(t *testing.T) {
			f := newFakeServer(t, "receivers: v1")
			s := start(t, "-endpoint", transport+"://"+f.endpoint, "-count", "50", "-heartbeat", "1s",
				"-non-identifying", "os.type=linux|windows")
			reply := ask(t, s, `{"do":"wait","id":7,"for":{"applied":"*","running":"v1"},"timeout":"10s"}`)
			if reply["ok"] != true || reply["count"] != 50.0 || reply["id"] != 7.0 {
				t.Fatalf("unexpected reply %v", reply)
			}
			status := ask(t, s, `{"do":"status"}`)
			applied := fmt.Sprint(status["applied"])
			if want := fmt.Sprintf("map[%x:50]", "hash of receivers: v1"); applied != want {
				t.Errorf("applied %s, want %s", applied, want)
			}
			f.mutex.Lock()
			defer f.mutex.Unlock()
			if f.os["linux"] != 25 || f.os["windows"] != 25 {
				t.Errorf("attributes do not alternate: %v", f.os)
			}
		})
	}
}

func TestAMarkedConfigurationIsRefused(t *testing.T) {
	f := newFakeServer(t, "receivers: broken")
	s := start(t, "-endpoint", "ws://"+f.endpoint, "-count", "3", "-refuse", "broken")
	if reply := ask(t, s, `{"do":"wait","for":{"failed":"*"},"timeout":"10s"}`); reply["ok"] != true {
		t.Fatalf("unexpected reply %v", reply)
	}
	if n := s.count(s.agents, condition{Applied: "*"}); n != 0 {
		t.Errorf("%d agents applied it", n)
	}
}

func TestAnAgentComesBackWithWhatItLastReported(t *testing.T) {
	f := newFakeServer(t, "receivers: v1")
	s := start(t, "-endpoint", "ws://"+f.endpoint, "-count", "2")
	ask(t, s, `{"do":"wait","for":{"applied":"*"},"timeout":"10s"}`)
	if reply := ask(t, s, `{"do":"stop","agents":[1]}`); reply["ok"] != true {
		t.Fatalf("unexpected reply %v", reply)
	}
	f.mutex.Lock()
	if f.goodbye != 1 {
		t.Errorf("%d goodbyes, want 1", f.goodbye)
	}
	f.last = map[string]*protobufs.RemoteConfigStatus{} // the server forgot
	f.mutex.Unlock()
	ask(t, s, `{"do":"start","agents":[1]}`)
	ask(t, s, `{"do":"wait","agents":[1],"for":{"connections":2},"timeout":"10s"}`)
	eventually(t, "the agent reports its hash again", func() bool {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		uid := instanceUid("agents", 1)
		return string(f.last[string(uid[:])].GetLastRemoteConfigHash()) == "hash of receivers: v1"
	})
	if offers := s.agents[1].look().offers; offers != 1 {
		t.Errorf("%d offers, want 1", offers)
	}
}

func TestHealthIsReported(t *testing.T) {
	f := newFakeServer(t, "receivers: v1")
	s := start(t, "-endpoint", "ws://"+f.endpoint, "-count", "2")
	ask(t, s, `{"do":"health","agents":[0],"healthy":false,"error":"disk full"}`)
	eventually(t, "one agent is unhealthy", func() bool {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		first, second := instanceUid("agents", 0), instanceUid("agents", 1)
		healthy, known := f.health[string(first[:])]
		return known && !healthy && f.health[string(second[:])]
	})
}

func TestUidsAreStableAndOfVersion7(t *testing.T) {
	uid := uidText(instanceUid("seed", 3))
	if uid != uidText(instanceUid("seed", 3)) || uid == uidText(instanceUid("seed", 4)) {
		t.Error("uids do not follow from seed and index")
	}
	if uid[14] != '7' || !strings.ContainsRune("89ab", rune(uid[19])) {
		t.Errorf("%s is not of version 7", uid)
	}
}

func TestAWaitThatIsNotFulfilledSaysHowFarItCame(t *testing.T) {
	s := newSwarm(options{count: 4}, newReports(&bytes.Buffer{}, false))
	reply := ask(t, s, `{"do":"wait","for":{"connections":1},"timeout":"50ms"}`)
	if reply["ok"] != false || reply["error"] != "0 of 4 after 50ms" {
		t.Errorf("unexpected reply %v", reply)
	}
}

func TestUnknownCommandsAndOptionsAreRefused(t *testing.T) {
	s := newSwarm(options{}, newReports(&bytes.Buffer{}, false))
	for _, line := range []string{`{"do":"dance"}`, `not json`} {
		if reply := ask(t, s, line); reply["ok"] != false {
			t.Errorf("%s was accepted: %v", line, reply)
		}
	}
	for _, arguments := range [][]string{{"-transport", "udp"}, {"-endpoint", "nowhere"}, {"-identifying", "x"}, {"stray"}} {
		if _, err := parse(arguments); err == nil {
			t.Errorf("%v was accepted", arguments)
		}
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
