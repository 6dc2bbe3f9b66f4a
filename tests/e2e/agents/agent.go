package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/open-telemetry/opamp-go/client"
	"github.com/open-telemetry/opamp-go/client/types"
	"github.com/open-telemetry/opamp-go/protobufs"
)

// agent is one OpAMP agent: what it says of itself, and what it was told.
type agent struct {
	index     int
	uid       types.InstanceUid
	options   *options
	reports   *reports
	startedAt uint64

	// switching lets one change of the connection happen at a time.
	switching sync.Mutex

	mutex  sync.Mutex
	client client.OpAMPClient // nil while stopped
	seen   seen
	// connection is how it connects, and key the private key that it asks certificates for, in PEM.
	connection   connection
	key          []byte
	current      types.InstanceUid // uid, or the one that it was given last
	settingsHash []byte            // of the last offer of connection settings
	askedAt      time.Time         // when it last asked for a certificate over HTTP, by itself
	// status is what a real agent keeps on its disk: what it last reported of a configuration.
	status  *protobufs.RemoteConfigStatus
	running *protobufs.AgentConfigMap
}

// seen is what happened to an agent since it was made; stopping and starting it does not reset it.
type seen struct {
	connections int
	failures    int // of connecting
	errors      int // error responses
	offers      int
	offered     string // hash of the last offer
	applied     string // hash
	failed      string // hash
	text        string // of what it runs
	newUid      string
	settings    int           // offers of connection settings
	switched    int           // times that it reconnected with other settings
	serial      string        // of the certificate that it connects with
	lostAt      time.Time     // when it lost its connection or let go of it; zero: it has one, was stopped, or had none yet
	longestGap  time.Duration // the longest time that it was without a connection, from one to the next
	lastError   string        // of the last error response
}

// lose notes that there is no connection any more; only what follows a connection is a gap.
func (s *seen) lose() {
	if s.lostAt.IsZero() && s.connections > 0 {
		s.lostAt = time.Now()
	}
}

// gap is the longest time without a connection, the present one included.
func (s *seen) gap() time.Duration {
	if s.lostAt.IsZero() {
		return s.longestGap
	}
	return max(s.longestGap, time.Since(s.lostAt))
}

// instanceUid is the same for the same seed and index, and has the form of a version 7 UUID.
func instanceUid(seed string, index int) types.InstanceUid {
	digest := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(seed), uint64(index)))
	uid := types.InstanceUid(digest[:16])
	uid[6] = uid[6]&0x0f | 0x70
	uid[8] = uid[8]&0x3f | 0x80
	return uid
}

func uidText(uid types.InstanceUid) string {
	h := hex.EncodeToString(uid[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

func newAgent(index int, options *options, reports *reports) *agent {
	return &agent{
		index: index, uid: instanceUid(options.seed, index), options: options, reports: reports,
		startedAt: uint64(time.Now().UnixNano()), connection: options.connection,
	}
}

// start connects the agent; it reports what it knew when it was stopped.
func (a *agent) start(ctx context.Context) error {
	var c client.OpAMPClient
	if a.options.transport == "http" {
		c = client.NewHTTP(nil)
	} else {
		c = client.NewWebSocket(nil)
	}
	a.mutex.Lock()
	if a.client != nil {
		a.mutex.Unlock()
		return nil
	}
	a.client, a.askedAt = c, time.Time{}
	status, connection := a.status, a.connection
	if a.current == (types.InstanceUid{}) {
		a.current = a.uid
	}
	a.mutex.Unlock() // the library asks for the effective configuration while it starts
	if err := a.startClient(ctx, c, status, connection); err != nil {
		a.mutex.Lock()
		a.client = nil
		a.mutex.Unlock()
		return err
	}
	return nil
}

func (a *agent) startClient(ctx context.Context, c client.OpAMPClient, status *protobufs.RemoteConfigStatus, via connection) error {
	if err := c.SetAgentDescription(a.description(nil)); err != nil {
		return err
	}
	if err := c.SetHealth(a.health(true, "")); err != nil {
		return err
	}
	capabilities := a.capabilities()
	if err := c.SetCapabilities(&capabilities); err != nil {
		return err
	}
	settings := types.StartSettings{
		OpAMPServerURL:     via.endpoint,
		Header:             via.header,
		TLSConfig:          via.tls,
		InstanceUid:        a.currentUid(),
		RemoteConfigStatus: status,
		HeartbeatInterval:  &a.options.heartbeat,

		LastConnectionSettingsStatus: via.status,
		Callbacks: types.Callbacks{
			OnConnect:       func(context.Context) { a.connected() },
			OnConnectFailed: func(_ context.Context, err error) { a.connectFailed(err) },
			OnError:         func(_ context.Context, err *protobufs.ServerErrorResponse) { a.refused(err) },
			OnMessage:       a.received,
			OnOpampConnectionSettings: func(_ context.Context, settings *protobufs.OpAMPConnectionSettings) error {
				return a.offeredSettings(settings)
			},
			GetEffectiveConfig: func(context.Context) (*protobufs.EffectiveConfig, error) {
				return a.effectiveConfig(), nil
			},
		},
	}
	return c.Start(ctx, settings)
}

// stop says goodbye and closes the connection.
func (a *agent) stop() error {
	a.mutex.Lock()
	c := a.client
	a.client = nil
	a.mutex.Unlock()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.Stop(ctx)
}

func (a *agent) capabilities() protobufs.AgentCapabilities {
	set := protobufs.AgentCapabilities_AgentCapabilities_ReportsStatus |
		protobufs.AgentCapabilities_AgentCapabilities_ReportsHealth |
		protobufs.AgentCapabilities_AgentCapabilities_ReportsHeartbeat
	if !a.options.behaviour.noConfig {
		set |= protobufs.AgentCapabilities_AgentCapabilities_AcceptsRemoteConfig |
			protobufs.AgentCapabilities_AgentCapabilities_ReportsRemoteConfig |
			protobufs.AgentCapabilities_AgentCapabilities_ReportsEffectiveConfig
	}
	if a.options.credentials.settings {
		set |= protobufs.AgentCapabilities_AgentCapabilities_AcceptsOpAMPConnectionSettings |
			protobufs.AgentCapabilities_AgentCapabilities_ReportsConnectionSettingsStatus
	}
	return set
}

func (a *agent) description(changed map[string]string) *protobufs.AgentDescription {
	others := a.keyValues(a.options.nonIdentifying)
	for key, value := range changed {
		others = slices.DeleteFunc(others, func(kv *protobufs.KeyValue) bool { return kv.Key == key })
		others = append(others, keyValue(key, value))
	}
	return &protobufs.AgentDescription{
		IdentifyingAttributes: a.keyValues(a.options.identifying), NonIdentifyingAttributes: others,
	}
}

func (a *agent) keyValues(list attributes) []*protobufs.KeyValue {
	var result []*protobufs.KeyValue
	for _, attribute := range list {
		choices := strings.Split(attribute.value, "|")
		value := choices[a.index%len(choices)]
		value = strings.ReplaceAll(value, "{index}", strconv.Itoa(a.index))
		value = strings.ReplaceAll(value, "{uid}", uidText(a.uid))
		result = append(result, keyValue(attribute.key, value))
	}
	return result
}

func keyValue(key, value string) *protobufs.KeyValue {
	text := &protobufs.AnyValue_StringValue{StringValue: value}
	return &protobufs.KeyValue{Key: key, Value: &protobufs.AnyValue{Value: text}}
}

func (a *agent) health(healthy bool, lastError string) *protobufs.ComponentHealth {
	status := "StatusOK"
	if !healthy {
		status = "StatusRecoverableError"
	}
	return &protobufs.ComponentHealth{
		Healthy: healthy, StartTimeUnixNano: a.startedAt, Status: status, LastError: lastError,
		StatusTimeUnixNano: uint64(time.Now().UnixNano()),
	}
}

func (a *agent) setHealth(healthy bool, lastError string) error {
	return a.withClient(func(c client.OpAMPClient) error { return c.SetHealth(a.health(healthy, lastError)) })
}

func (a *agent) describe(changed map[string]string) error {
	return a.withClient(func(c client.OpAMPClient) error { return c.SetAgentDescription(a.description(changed)) })
}

func (a *agent) withClient(do func(client.OpAMPClient) error) error {
	a.mutex.Lock()
	c := a.client
	a.mutex.Unlock()
	if c == nil {
		return fmt.Errorf("agent %d is stopped", a.index)
	}
	return do(c)
}

func (a *agent) note(change func(*seen)) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	change(&a.seen)
}

func (a *agent) currentUid() types.InstanceUid {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.current
}

func (a *agent) look() seen {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.seen
}

func (a *agent) connected() {
	a.note(func(s *seen) { s.connections++; s.longestGap, s.lostAt = s.gap(), time.Time{} })
	a.reports.event(a, "connected", nil)
	a.mutex.Lock()
	asks := a.options.credentials.csr && a.connection.serial == "" // a request may be lost with its connection
	if asks && a.options.transport == "http" {
		// Each answer is a connection then, and a request is sent at once: it would be followed by the next without a pause.
		if asks = time.Since(a.askedAt) >= a.options.heartbeat; asks {
			a.askedAt = time.Now()
		}
	}
	a.mutex.Unlock()
	if asks {
		if err := a.requestCertificate(); err != nil {
			a.reports.event(a, "problem", fields{"error": err.Error()})
		}
	}
}

func (a *agent) connectFailed(err error) {
	a.note(func(s *seen) { s.failures++; s.lose() }) // the library tries again as soon as it has lost the connection
	a.reports.event(a, "connect-failed", fields{"error": err.Error()})
}

func (a *agent) refused(err *protobufs.ServerErrorResponse) {
	a.note(func(s *seen) { s.errors++; s.lastError = err.GetErrorMessage() })
	a.reports.event(a, "error-response", fields{"type": err.GetType().String(), "error": err.GetErrorMessage()})
}

func (a *agent) received(ctx context.Context, message *types.MessageData) {
	if identity := message.AgentIdentification; identity != nil && len(identity.NewInstanceUid) == 16 {
		uid := types.InstanceUid(identity.NewInstanceUid)
		a.mutex.Lock()
		a.seen.newUid = uidText(uid)
		a.current = uid // the library has taken it already; a new connection begins with it
		a.mutex.Unlock()
		a.reports.event(a, "new-uid", fields{"new": uidText(uid)})
	}
	if message.OfferedConnectionsSettingsHash != nil {
		a.mutex.Lock()
		a.settingsHash = message.OfferedConnectionsSettingsHash
		a.mutex.Unlock()
	}
	if message.RemoteConfig != nil {
		a.offered(ctx, message.RemoteConfig)
	}
}

// offered answers a configuration as the behaviour says.
func (a *agent) offered(ctx context.Context, config *protobufs.AgentRemoteConfig) {
	hash := hex.EncodeToString(config.GetConfigHash())
	text := configText(config.GetConfig())
	a.note(func(s *seen) { s.offers++; s.offered = hash })
	a.reports.event(a, "offered", fields{"hash": hash, "size": len(text)})
	behaviour := a.options.behaviour
	switch {
	case behaviour.ignore:
	case behaviour.refuse != "" && strings.Contains(text, behaviour.refuse):
		problem := fmt.Sprintf("the configuration contains %q", behaviour.refuse)
		a.report(config, protobufs.RemoteConfigStatuses_RemoteConfigStatuses_FAILED, problem)
	case behaviour.delay > 0:
		a.report(config, protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLYING, "")
		go func() {
			select {
			case <-ctx.Done(): // the offer's context ends with the client
			case <-time.After(behaviour.delay):
				a.apply(config, text)
			}
		}()
	default:
		a.apply(config, text)
	}
}

func (a *agent) apply(config *protobufs.AgentRemoteConfig, text string) {
	a.mutex.Lock()
	a.running = config.GetConfig()
	a.seen.text = text
	a.mutex.Unlock()
	a.report(config, protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLIED, "")
	err := a.withClient(func(c client.OpAMPClient) error { return c.UpdateEffectiveConfig(context.Background()) })
	if err != nil {
		a.reports.event(a, "problem", fields{"error": err.Error()})
	}
}

func (a *agent) report(config *protobufs.AgentRemoteConfig, verdict protobufs.RemoteConfigStatuses, problem string) {
	status := &protobufs.RemoteConfigStatus{
		LastRemoteConfigHash: config.GetConfigHash(), Status: verdict, ErrorMessage: problem,
	}
	hash := hex.EncodeToString(config.GetConfigHash())
	err := a.withClient(func(c client.OpAMPClient) error { return c.SetRemoteConfigStatus(status) })
	if err != nil {
		a.reports.event(a, "problem", fields{"error": err.Error()})
		return
	}
	a.mutex.Lock()
	a.status = status
	a.mutex.Unlock()
	switch verdict {
	case protobufs.RemoteConfigStatuses_RemoteConfigStatuses_APPLIED:
		a.note(func(s *seen) { s.applied = hash })
		a.reports.event(a, "applied", fields{"hash": hash})
	case protobufs.RemoteConfigStatuses_RemoteConfigStatuses_FAILED:
		a.note(func(s *seen) { s.failed = hash })
		a.reports.event(a, "failed", fields{"hash": hash, "error": problem})
	default:
		a.reports.event(a, "applying", fields{"hash": hash})
	}
}

func (a *agent) effectiveConfig() *protobufs.EffectiveConfig {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.running == nil {
		return &protobufs.EffectiveConfig{ConfigMap: &protobufs.AgentConfigMap{}}
	}
	return &protobufs.EffectiveConfig{ConfigMap: a.running}
}

// configText is all files behind one another, in the order of their names.
func configText(config *protobufs.AgentConfigMap) string {
	names := make([]string, 0, len(config.GetConfigMap()))
	for name := range config.GetConfigMap() {
		names = append(names, name)
	}
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		text.Write(config.GetConfigMap()[name].GetBody())
		text.WriteByte('\n')
	}
	return text.String()
}
