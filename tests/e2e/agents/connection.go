package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/open-telemetry/opamp-go/protobufs"
)

// credentials is what the command line says of how agents connect.
type credentials struct {
	// headers are sent with every request, as "Name: value".
	headers headers
	// ca is a file with the CAs that a server may be of; empty: those of the system.
	ca string
	// certificate and key are files with what the agent connects with at first.
	certificate, key string
	// settings makes an agent accept connection settings and reconnect with them.
	settings bool
	// csr makes an agent ask for a certificate as soon as it is connected, with a key of its own.
	csr bool
	// badSettings makes an agent refuse all connection settings.
	badSettings bool
}

// headers are given as "Name: value".
type headers []string

func (h *headers) String() string { return "" }

func (h *headers) Set(text string) error {
	if !strings.Contains(text, ": ") {
		return errors.New("a header is Name: value")
	}
	*h = append(*h, text)
	return nil
}

func (h headers) http() http.Header {
	result := http.Header{}
	for _, header := range h {
		name, value, _ := strings.Cut(header, ": ")
		result.Add(name, value)
	}
	return result
}

// connection is how an agent connects now: what a real agent keeps on its disk.
type connection struct {
	endpoint string
	header   http.Header
	tls      *tls.Config
	// status is what it last said of connection settings.
	status *protobufs.ConnectionSettingsStatus
	// serial of the certificate that it connects with, in hex digits; empty: none.
	serial   string
	notAfter time.Time
}

// newConnection is how an agent connects before it is told anything.
func (c *credentials) newConnection(endpoint string) (connection, error) {
	result := connection{endpoint: endpoint, header: c.headers.http()}
	if strings.HasPrefix(endpoint, "ws:") || strings.HasPrefix(endpoint, "http:") {
		return result, nil
	}
	result.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		text, err := os.ReadFile(c.ca)
		if err != nil {
			return result, err
		}
		result.tls.RootCAs = x509.NewCertPool()
		if !result.tls.RootCAs.AppendCertsFromPEM(text) {
			return result, fmt.Errorf("no certificate in %s", c.ca)
		}
	}
	if c.certificate != "" {
		pair, err := tls.LoadX509KeyPair(c.certificate, c.key)
		if err != nil {
			return result, err
		}
		if err := result.use(pair); err != nil {
			return result, err
		}
	}
	return result, nil
}

func (c *connection) use(pair tls.Certificate) error {
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return err
	}
	c.serial, c.notAfter = hex.EncodeToString(leaf.SerialNumber.Bytes()), leaf.NotAfter
	c.tls.Certificates = []tls.Certificate{pair}
	return nil
}

// with is this connection as the settings want it. They replace everything; TLS settings that are left out stay.
func (c connection) with(settings *protobufs.OpAMPConnectionSettings, key []byte) (connection, error) {
	if settings.DestinationEndpoint == "" {
		return c, errors.New("the settings name no endpoint")
	}
	next := connection{endpoint: settings.DestinationEndpoint, header: http.Header{}}
	for _, header := range settings.Headers.GetHeaders() {
		next.header.Add(header.Key, header.Value)
	}
	if strings.HasPrefix(next.endpoint, "ws:") || strings.HasPrefix(next.endpoint, "http:") {
		return next, nil
	}
	next.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.tls != nil {
		next.tls.RootCAs = c.tls.RootCAs
	}
	if pem := settings.Tls.GetCaPemContents(); pem != "" {
		next.tls.RootCAs = x509.NewCertPool()
		if !next.tls.RootCAs.AppendCertsFromPEM([]byte(pem)) {
			return c, errors.New("the settings hold a CA that is no PEM")
		}
	}
	next.tls.InsecureSkipVerify = settings.Tls.GetInsecureSkipVerify()
	if certificate := settings.Certificate; certificate != nil {
		if len(certificate.PrivateKey) > 0 {
			key = certificate.PrivateKey
		}
		pair, err := tls.X509KeyPair(certificate.Cert, key)
		if err != nil {
			return c, fmt.Errorf("the certificate of the settings: %w", err)
		}
		if err := next.use(pair); err != nil {
			return c, err
		}
	}
	return next, nil
}

// newKey makes a private key, in PEM.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// newRequest makes a certificate request for a key, in PEM.
func newRequest(key []byte) ([]byte, error) {
	block, _ := pem.Decode(key)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, parsed)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// requestCertificate sends a certificate request for the agent's key, which it keeps.
func (a *agent) requestCertificate() error {
	a.mutex.Lock()
	key, c := a.key, a.client
	a.mutex.Unlock()
	if c == nil {
		return fmt.Errorf("agent %d is stopped", a.index)
	}
	if key == nil {
		made, err := newKey()
		if err != nil {
			return err
		}
		key = made
		a.mutex.Lock()
		a.key = key
		a.mutex.Unlock()
	}
	csr, err := newRequest(key)
	if err != nil {
		return err
	}
	return c.RequestConnectionSettings(&protobufs.ConnectionSettingsRequest{
		Opamp: &protobufs.OpAMPConnectionSettingsRequest{CertificateRequest: &protobufs.CertificateRequest{Csr: csr}},
	})
}

// renewEvery is how often an agent repeats a request for which it has no new certificate yet.
const renewEvery = 5 * time.Second

// renewCertificate asks for a certificate for the agent's key again and again until it connects with another one.
func (a *agent) renewCertificate() error {
	former := a.look().serial
	if err := a.requestCertificate(); err != nil {
		return err
	}
	go func() {
		for range time.Tick(renewEvery) {
			if a.look().serial != former {
				return
			}
			if err := a.requestCertificate(); err != nil {
				a.reports.event(a, "problem", fields{"error": err.Error()}) // it may be changing its connection
			}
		}
	}()
	return nil
}

// offeredSettings takes connection settings: it switches to them as soon as the library has let go of the old ones.
func (a *agent) offeredSettings(settings *protobufs.OpAMPConnectionSettings) error {
	a.mutex.Lock()
	key, now, hash := a.key, a.connection, a.settingsHash
	a.seen.settings++
	a.mutex.Unlock()
	a.reports.event(a, "settings", fields{
		"hash": hex.EncodeToString(hash), "endpoint": settings.DestinationEndpoint,
		"headers": len(settings.Headers.GetHeaders()), "certificate": settings.Certificate != nil,
		"own_key": len(settings.Certificate.GetPrivateKey()) == 0, "heartbeat": settings.HeartbeatIntervalSeconds,
	})
	if a.options.credentials.badSettings {
		return errors.New("this agent refuses connection settings")
	}
	next, err := now.with(settings, key)
	if err != nil {
		return err
	}
	next.status = &protobufs.ConnectionSettingsStatus{
		LastConnectionSettingsHash: bytes.Clone(hash),
		Status:                     protobufs.ConnectionSettingsStatuses_ConnectionSettingsStatuses_APPLIED,
	}
	// The library waits for its callbacks when it stops.
	go a.switchTo(next, now)
	return nil
}

// switchTo connects anew with other settings; what cannot be used within a while is given up for the former ones.
func (a *agent) switchTo(next, former connection) {
	a.switching.Lock()
	defer a.switching.Unlock()
	if err := a.reconnect(next); err == nil {
		return
	}
	former.status = &protobufs.ConnectionSettingsStatus{
		LastConnectionSettingsHash: next.status.LastConnectionSettingsHash,
		Status:                     protobufs.ConnectionSettingsStatuses_ConnectionSettingsStatuses_FAILED,
		ErrorMessage:               "could not connect with the new settings",
	}
	if err := a.reconnect(former); err != nil {
		a.reports.event(a, "problem", fields{"error": err.Error()})
	}
}

func (a *agent) reconnect(to connection) error {
	a.note((*seen).lose)
	if err := a.stop(); err != nil {
		a.reports.event(a, "problem", fields{"error": err.Error()})
	}
	a.mutex.Lock()
	a.connection = to
	before := a.seen.connections
	a.mutex.Unlock()
	if err := a.start(context.Background()); err != nil {
		return err
	}
	limit := time.Now().Add(20 * time.Second)
	for a.look().connections == before {
		if time.Now().After(limit) {
			return errors.New("not connected in time")
		}
		time.Sleep(20 * time.Millisecond)
	}
	a.note(func(s *seen) { s.serial = to.serial; s.switched++ })
	a.reports.event(a, "switched", fields{"serial": to.serial, "endpoint": to.endpoint})
	return nil
}

// identity is who an agent is by now, as a thief would want to know it.
func (a *agent) identity() fields {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	headers := map[string]string{}
	for name := range a.connection.header {
		headers[name] = a.connection.header.Get(name)
	}
	result := fields{
		"headers": headers,
		"uid":     uidText(a.current), "serial": a.connection.serial, "error": a.seen.lastError, "key": string(a.key),
		"not_after": a.connection.notAfter.UTC().Format(time.RFC3339), "new_uid": a.seen.newUid,
	}
	if a.connection.tls != nil && len(a.connection.tls.Certificates) > 0 {
		pair := a.connection.tls.Certificates[0]
		var chain bytes.Buffer
		for _, der := range pair.Certificate {
			_ = pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a buffer does not fail
		}
		result["certificate"] = chain.String()
		if der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey); err == nil {
			result["key"] = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		}
	}
	return result
}
